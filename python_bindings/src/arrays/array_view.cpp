// NumPy, PyTorch, JAX and CuPy all hand over their memory by DLPack; plain Python buffers come by
// the buffer protocol. Either way the pointer, extents and strides are taken as they are. Nothing
// is converted or copied, so an array that cannot be used as it lies in memory is an error.
#include "arrays/array_view.hpp"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays/python_error.hpp"
#include "arrays/tensor_exchange.hpp"
#include "fdma/kernels/device_memory.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

using AnyInput = nb::ndarray<nb::ro>;
using AnyOutput = nb::ndarray<>;
using NewArray = nb::ndarray<nb::array_api>;

constexpr std::size_t kAlignment = 64;

constexpr std::pair<DType, nb::dlpack::dtype> dtype_pair(DType dtype, nb::dlpack::dtype_code code,
                                                         std::uint8_t bits) {
  return {dtype, {static_cast<std::uint8_t>(code), bits, 1}};
}

constexpr std::pair<DType, nb::dlpack::dtype> kDTypes[] = {
    dtype_pair(DType::boolean, nb::dlpack::dtype_code::Bool, 8),
    dtype_pair(DType::int8, nb::dlpack::dtype_code::Int, 8),
    dtype_pair(DType::int16, nb::dlpack::dtype_code::Int, 16),
    dtype_pair(DType::int32, nb::dlpack::dtype_code::Int, 32),
    dtype_pair(DType::int64, nb::dlpack::dtype_code::Int, 64),
    dtype_pair(DType::uint8, nb::dlpack::dtype_code::UInt, 8),
    dtype_pair(DType::uint16, nb::dlpack::dtype_code::UInt, 16),
    dtype_pair(DType::uint32, nb::dlpack::dtype_code::UInt, 32),
    dtype_pair(DType::uint64, nb::dlpack::dtype_code::UInt, 64),
    dtype_pair(DType::float16, nb::dlpack::dtype_code::Float, 16),
    dtype_pair(DType::bfloat16, nb::dlpack::dtype_code::Bfloat, 16),
    dtype_pair(DType::float32, nb::dlpack::dtype_code::Float, 32),
    dtype_pair(DType::float64, nb::dlpack::dtype_code::Float, 64),
};

std::string device_text(int type, int id) {
  switch (type) {
    case nb::device::cuda::value:
      return fmt::format("cuda:{}", id);
    case nb::device::cuda_host::value:
      return "pinned CUDA host memory";
    case nb::device::cuda_managed::value:
      return "managed CUDA memory";
    case nb::device::rocm::value:
      return fmt::format("rocm:{}", id);
    case nb::device::metal::value:
      return fmt::format("metal:{}", id);
    default:
      return fmt::format("DLPack device type {}", type);
  }
}

std::string class_name(nb::handle object) {
  return nb::cast<std::string>(nb::str(nb::handle(Py_TYPE(object.ptr())).attr("__name__")));
}

// The reason that an object with __dlpack__ states for giving nothing (an element type or a device
// that DLPack lacks), else an empty text.
std::string own_reason(nb::handle object) {
  if (!nb::hasattr(object, "__dlpack__")) return {};
  try {
    object.attr("__dlpack__")();
  } catch (const nb::python_error& error) {
    return fmt::format(": {}", nb::cast<std::string>(nb::str(error.value())));
  }
  return {};
}

// `object`, or for an array on a CUDA device its DLPack capsule, requested with stream -1 ("do not
// synchronize"). Kernels use the array on a stream that the caller names. By default DLPack makes
// another stream wait, which would end a CUDA graph capture.
nb::object importable(nb::handle object) {
  if (!nb::hasattr(object, "__dlpack_device__") || !nb::hasattr(object, "__dlpack__")) {
    return nb::borrow(object);
  }
  try {
    const auto device = nb::cast<nb::tuple>(object.attr("__dlpack_device__")());
    if (nb::cast<int>(nb::int_(device[0])) == nb::device::cuda::value) {
      return object.attr("__dlpack__")(nb::arg("stream") = -1);
    }
  } catch (const nb::python_error&) {  // the import that follows reports what is wrong
  } catch (const nb::cast_error&) {
  }
  return nb::borrow(object);
}

// Results of this module have no gradient. PyTorch's export to DLPack does not always refuse a
// tensor that requires one, so this is checked here.
void check_gradient(std::string_view name, nb::handle object, Gradients gradients) {
  if (gradients == Gradients::elsewhere) return;
  if (nb::getattr(object, "requires_grad", nb::bool_(false)).is(nb::bool_(true))) {
    throw PythonError({ErrorCode::invalid_argument,
                       fmt::format("{}: a tensor that requires a gradient, which is not computed "
                                   "here; detach() it",
                                   name)});
  }
}

template <class Array>
Array import_array(std::string_view name, nb::handle object, const char* expected) {
  Array array;
  if (object.is_none() || !nb::try_cast(importable(object), array)) {
    throw PythonError({ErrorCode::invalid_argument,
                       fmt::format("{}: expected {} (DLPack or buffer protocol), got {}{}", name,
                                   expected, class_name(object), own_reason(object))});
  }
  return array;
}

// A view with dtype, device, rank, extents and strides of `array`; the caller sets the pointer.
template <class Array>
TensorView describe(std::string_view name, const Array& array) {
  TensorView view;
  if (array.device_type() == nb::device::cuda::value) {
    view.device = Device::cuda;
  } else if (array.device_type() != nb::device::cpu::value) {
    throw PythonError({ErrorCode::unsupported,
                       fmt::format("{}: expected an array on the host or on a CUDA device, got one "
                                   "on {}; move it first",
                                   name, device_text(array.device_type(), array.device_id()))});
  }
  const auto* found = std::find_if(std::begin(kDTypes), std::end(kDTypes),
                                   [&](const auto& pair) { return pair.second == array.dtype(); });
  if (found == std::end(kDTypes)) {
    throw PythonError(
        {ErrorCode::unsupported,
         fmt::format("{}: expected booleans, integers of 8 to 64 bits, float16, bfloat16, float32 "
                     "or float64, got DLPack type code {} with {} bits and {} lanes",
                     name, array.dtype().code, array.dtype().bits, array.dtype().lanes)});
  }
  if (array.ndim() > kMaxRank) {
    throw PythonError(
        {ErrorCode::invalid_argument,
         fmt::format("{}: expected at most {} dimensions, got {}", name, kMaxRank, array.ndim())});
  }
  view.dtype = found->first;
  view.rank = static_cast<int>(array.ndim());
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    view.extents[i] = static_cast<std::int64_t>(array.shape(i));
    view.strides[i] = array.stride(i);
    // The stride of a dimension with at most one element has no meaning, and frameworks write any
    // number there.
    if (view.extents[i] <= 1 && i + 1 == array.ndim()) view.strides[i] = 1;
  }
  return view;
}

template <class Array>
Place place_of(const Array& array) {
  if (array.device_type() != nb::device::cuda::value) return {};
  return {Device::cuda, array.device_id()};
}

// True iff, from the smallest stride up, each dimension steps over all that the dimensions before
// it reach. Then no two elements share an address. False also for the rare layouts that interleave
// elements without overlap.
bool elements_are_apart(const TensorView& view) {
  std::vector<std::pair<std::int64_t, std::int64_t>> steps;
  for (int i = 0; i < view.rank; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (view.extents[at] == 0) return true;
    if (view.extents[at] > 1) steps.emplace_back(std::abs(view.strides[at]), view.extents[at]);
  }
  std::sort(steps.begin(), steps.end());
  std::int64_t reach = 0;
  for (const auto& [stride, extent] : steps) {
    if (stride <= reach) return false;
    reach += stride * (extent - 1);
  }
  return true;
}

// The addresses [first byte, end) of the memory that `view` spans; an empty range if it has no
// elements.
std::pair<std::uintptr_t, std::uintptr_t> address_range(const TensorView& view) {
  std::int64_t lowest = 0, highest = 0;
  for (int i = 0; i < view.rank; ++i) {
    const auto at = static_cast<std::size_t>(i);
    if (view.extents[at] == 0) return {0, 0};
    const std::int64_t reach = view.strides[at] * (view.extents[at] - 1);
    (reach < 0 ? lowest : highest) += reach;
  }
  const auto begin = reinterpret_cast<std::uintptr_t>(view.data);
  const std::int64_t bytes = size_bytes(view.dtype);
  return {begin + static_cast<std::uintptr_t>(lowest * bytes),
          begin + static_cast<std::uintptr_t>((highest + 1) * bytes)};
}

// The memory of `array`, seen with another element type of the same size.
template <class Framework>
nb::object reinterpret(const AnyOutput& array, DType dtype) {
  std::vector<std::size_t> extents;
  std::vector<std::int64_t> strides;
  for (std::size_t i = 0; i < array.ndim(); ++i) {
    extents.push_back(array.shape(i));
    strides.push_back(array.stride(i));
  }
  auto kept = std::make_unique<AnyOutput>(array);
  const nb::capsule owner(kept.get(),
                          [](void* data) noexcept { delete static_cast<AnyOutput*>(data); });
  static_cast<void>(kept.release());  // the capsule owns it now
  return nb::cast(nb::ndarray<Framework>(array.data(), array.ndim(), extents.data(), owner,
                                         strides.data(), dlpack_dtype(dtype)));
}

AnyOutput checked_for_bits(const char* name, nb::handle object, DType expected) {
  check_gradient(name, object, Gradients::refused);
  AnyOutput array = import_array<AnyOutput>(name, object, "a writable array");
  const TensorView view = describe(name, array);
  check_on_host(name, place_of(array));
  if (view.dtype != expected) {
    throw PythonError(
        {ErrorCode::invalid_argument, fmt::format("{}: expected elements of type {}, got {}", name,
                                                  to_string(expected), to_string(view.dtype))});
  }
  return array;
}

nb::object bfloat16_from_bits(nb::handle bits) {
  return reinterpret<nb::array_api>(checked_for_bits("bits", bits, DType::uint16), DType::bfloat16);
}

nb::object bits_from_bfloat16(nb::handle array) {
  return reinterpret<nb::numpy>(checked_for_bits("array", array, DType::bfloat16), DType::uint16);
}

}  // namespace

nb::dlpack::dtype dlpack_dtype(DType dtype) {
  return std::find_if(std::begin(kDTypes), std::end(kDTypes),
                      [&](const auto& pair) { return pair.first == dtype; })
      ->second;
}

DType parse_dtype(std::string_view name, std::string_view text) {
  for (const auto& [dtype, ignored] : kDTypes) {
    if (to_string(dtype) == text) return dtype;
  }
  throw PythonError(
      {ErrorCode::invalid_argument,
       fmt::format("{}: expected float32, float16 or bfloat16, got '{}'", name, text)});
}

std::string to_string(const Place& place) {
  return place.device == Device::cpu ? "the host" : fmt::format("cuda:{}", place.index);
}

void check_on_host(std::string_view name, const Place& place) {
  if (place.device == Device::cpu) return;
  throw PythonError({ErrorCode::unsupported,
                     fmt::format("{}: expected an array in host memory, got one on {}; move it to "
                                 "the host first",
                                 name, to_string(place))});
}

void check_on(std::string_view name, const Place& got, const Place& expected) {
  if (got == expected) return;
  refuse(ErrorCode::invalid_argument, fmt::format("{}: expected an array on {}, got one on {}",
                                                  name, to_string(expected), to_string(got)));
}

InputArray input_array(std::string_view name, nb::handle object, Gradients gradients) {
  check_gradient(name, object, gradients);
  if (const std::optional<ExchangedTensor> tensor = exchanged(object)) {
    InputArray result{{}, describe(name, *tensor), place_of(*tensor)};
    result.view.data = tensor->data();
    return result;
  }
  InputArray result{import_array<AnyInput>(name, object, "an array"), {}, {}};
  result.view = describe(name, result.owner);
  result.view.data = result.owner.data();
  result.place = place_of(result.owner);
  return result;
}

namespace {

template <class Array>
OutputArray writable(std::string_view name, nb::handle object, const Array& array) {
  const TensorView view = describe(name, array);
  if (!elements_are_apart(view)) {
    throw PythonError({ErrorCode::invalid_argument,
                       fmt::format("{}: expected strides that give each element its own place, got "
                                   "an array whose elements overlap",
                                   name)});
  }
  return {nb::borrow(object),
          {},
          {array.data(), view.dtype, view.device, view.rank, view.extents, view.strides},
          place_of(array)};
}

}  // namespace

OutputArray output_array(std::string_view name, nb::handle object, Gradients gradients) {
  check_gradient(name, object, gradients);
  if (const std::optional<ExchangedTensor> tensor = exchanged(object)) {
    return writable(name, object, *tensor);
  }
  const auto array = import_array<AnyOutput>(name, object, "a writable array");
  OutputArray result = writable(name, object, array);
  result.owner = array;
  return result;
}

void check_apart(std::string_view out_name, const TensorView& out, std::string_view input_name,
                 const TensorView& input) {
  const auto [out_begin, out_end] = address_range(out);
  const auto [input_begin, input_end] = address_range(input);
  if (out_begin >= input_end || input_begin >= out_end) return;
  throw PythonError({ErrorCode::invalid_argument,
                     fmt::format("{}: expected memory of its own, got an array that lies in that "
                                 "of {}",
                                 out_name, input_name)});
}

OutputArray new_array(std::string_view name, DType dtype, int rank,
                      const std::array<std::int64_t, kMaxRank>& extents, const Place& place) {
  std::optional<std::size_t> bytes = static_cast<std::size_t>(size_bytes(dtype));
  std::vector<std::size_t> shape;
  for (int i = 0; i < rank; ++i) {
    shape.push_back(static_cast<std::size_t>(extents[static_cast<std::size_t>(i)]));
    std::size_t product = 0;
    if (bytes && __builtin_mul_overflow(*bytes, shape.back(), &product)) bytes.reset();
    if (bytes) bytes = product;
  }
  const bool is_representable = bytes && *bytes <= PTRDIFF_MAX - kAlignment;
  const bool is_on_host = place.device == Device::cpu;
  void* data = nullptr;
  if (is_representable && is_on_host) {
    const std::size_t rounded = std::max((*bytes + kAlignment - 1) / kAlignment, std::size_t{1});
    data = std::aligned_alloc(kAlignment, rounded * kAlignment);
  } else if (is_representable) {
    data = value_or_throw(DeviceMemory::allocate(static_cast<std::int64_t>(*bytes))).release();
  }
  if (data == nullptr) {
    throw PythonError(
        {ErrorCode::out_of_memory, fmt::format("{}: no memory for an array of {} and shape ({})",
                                               name, to_string(dtype), fmt::join(shape, ", "))});
  }
  const auto free_on_host = [](void* memory) noexcept { std::free(memory); };
  const nb::capsule owner =
      is_on_host ? nb::capsule(data, free_on_host)
                 : nb::capsule(data, [](void* memory) noexcept { free_device_memory(memory); });
  const NewArray array(data, shape.size(), shape.data(), owner, nullptr, dlpack_dtype(dtype),
                       is_on_host ? nb::device::cpu::value : nb::device::cuda::value, place.index,
                       'C');
  MutableTensorView view = make_contiguous_mutable_view(data, dtype, rank, extents.data());
  view.device = place.device;
  return {nb::cast(array), {}, view, place};
}

void bind_arrays(nb::module_& module) {
  module.def("bfloat16_from_bits", &bfloat16_from_bits, nb::arg("bits"),
             nb::sig("def bfloat16_from_bits(bits: NDArray[numpy.uint16]) -> NewArray"),
             "An object with __dlpack__ that gives the memory of a writable uint16 array\n"
             "as bfloat16.\n\n"
             "NumPy has no bfloat16. Nothing is copied.");
  module.def("bits_from_bfloat16", &bits_from_bfloat16, nb::arg("array"),
             nb::sig("def bits_from_bfloat16(array: Array) -> NDArray[numpy.uint16]"),
             "A NumPy array of uint16 on the memory of a writable bfloat16 array. Nothing\n"
             "is copied.");
}

}  // namespace fdma::python
