#include "fdma/base/tensor_view.hpp"

namespace fdma {

int size_bytes(DType dtype) {
  switch (dtype) {
    case DType::boolean:
    case DType::int8:
    case DType::uint8:
      return 1;
    case DType::int16:
    case DType::uint16:
    case DType::float16:
    case DType::bfloat16:
      return 2;
    case DType::int32:
    case DType::uint32:
    case DType::float32:
      return 4;
    case DType::int64:
    case DType::uint64:
    case DType::float64:
      return 8;
  }
  return 0;
}

std::string_view to_string(DType dtype) {
  switch (dtype) {
    case DType::boolean:
      return "boolean";
    case DType::int8:
      return "int8";
    case DType::int16:
      return "int16";
    case DType::int32:
      return "int32";
    case DType::int64:
      return "int64";
    case DType::uint8:
      return "uint8";
    case DType::uint16:
      return "uint16";
    case DType::uint32:
      return "uint32";
    case DType::uint64:
      return "uint64";
    case DType::float16:
      return "float16";
    case DType::bfloat16:
      return "bfloat16";
    case DType::float32:
      return "float32";
    case DType::float64:
      return "float64";
  }
  return "unknown";
}

template <class Data>
std::int64_t BasicTensorView<Data>::num_elements() const {
  std::int64_t count = 1;
  for (int i = 0; i < rank; ++i) count *= extents[static_cast<std::size_t>(i)];
  return count;
}

template <class Data>
bool BasicTensorView<Data>::is_contiguous() const {
  std::int64_t expected = 1;
  for (int i = rank - 1; i >= 0; --i) {
    const auto d = static_cast<std::size_t>(i);
    if (extents[d] != 1 && strides[d] != expected) return false;
    expected *= extents[d];
  }
  return true;
}

template struct BasicTensorView<const void>;
template struct BasicTensorView<void>;

MutableTensorView make_contiguous_mutable_view(void* data, DType dtype, int rank,
                                               const std::int64_t* extents) {
  MutableTensorView view;
  view.data = data;
  view.dtype = dtype;
  view.rank = rank;
  std::int64_t stride = 1;
  for (int i = rank - 1; i >= 0; --i) {
    const auto d = static_cast<std::size_t>(i);
    view.extents[d] = extents[i];
    view.strides[d] = stride;
    stride *= extents[i];
  }
  return view;
}

TensorView make_contiguous_view(const void* data, DType dtype, int rank,
                                const std::int64_t* extents) {
  return make_contiguous_mutable_view(nullptr, dtype, rank, extents).with_data(data);
}

}  // namespace fdma
