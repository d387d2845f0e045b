// A checked tensor of rows: queries, keys, values, outputs and their gradients.
#pragma once

#include <array>
#include <cstdint>
#include <type_traits>

#include "fdma/base/tensor_view.hpp"

namespace fdma {

/// A tensor [batch, row, head, column] whose last stride is 1: Strided is read, MutableStrided is
/// written. Strides are in elements; data may be null.
template <class Data>
struct BasicStrided {
  using Byte = std::conditional_t<std::is_const_v<Data>, const char, char>;

  Data* data = nullptr;
  DType dtype = DType::float32;
  std::int64_t batch_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  std::array<std::int64_t, 4> extents{0, 0, 0, 0};
  Device device = Device::cpu;

  BasicStrided() = default;
  /// The tensor of a view of four axes.
  explicit BasicStrided(const BasicTensorView<Data>& view)
      : data(view.data),
        dtype(view.dtype),
        batch_stride(view.strides[0]),
        row_stride(view.strides[1]),
        head_stride(view.strides[2]),
        extents(view.extents),
        device(view.device) {}

  std::int64_t num_rows() const { return extents[1]; }
  Byte* row(std::int64_t batch, std::int64_t row, std::int64_t head) const {
    return static_cast<Byte*>(data) +
           (batch * batch_stride + row * row_stride + head * head_stride) * size_bytes(dtype);
  }
  BasicTensorView<Data> view() const {
    return {data, dtype, device, 4, extents, {batch_stride, row_stride, head_stride, 1}};
  }
};
using Strided = BasicStrided<const void>;
using MutableStrided = BasicStrided<void>;

}  // namespace fdma
