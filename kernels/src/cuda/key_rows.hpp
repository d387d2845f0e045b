// K or V as rows that threads copy by index.
#pragma once

#include <cstdint>

#include "call/strided_views.hpp"
#include "fdma/base/tensor_view.hpp"

namespace fdma::gpu {

/// Rows of K or V that threads copy by index.
struct KeyRows {
  const std::uint8_t* data;
  TensorStrides strides;   ///< in bytes
  std::int32_t row_bytes;  ///< head_dim elements
};

/// The rows of `tensor`, whose elements are of a 16-bit type.
inline KeyRows key_rows(const TensorView& tensor) {
  const std::int64_t bytes = 2;  // per element
  return {static_cast<const std::uint8_t*>(tensor.data),
          {tensor.strides[0] * bytes, tensor.strides[1] * bytes, tensor.strides[2] * bytes},
          static_cast<std::int32_t>(tensor.extents[3] * bytes)};
}

}  // namespace fdma::gpu
