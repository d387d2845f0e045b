// Tensors of an attention call as kernels address them: a pointer and its strides. The structs are
// plain, so they are members of kernel parameters as well as of calls on the host.
#pragma once

#include <cstdint>

#include "fdma/kernels/host_device.hpp"

namespace fdma {

/// A value for each query row [batch, head, row], for instance lse. Strides in elements.
template <class T>
struct QueryValues {
  T* data;  ///< or null
  std::int64_t batch_stride, head_stride, row_stride;

  FDMA_HOST_DEVICE constexpr T& at(std::int32_t batch, std::int32_t head, std::int32_t row) const {
    return data[batch * batch_stride + head * head_stride + row * row_stride];
  }
  /// The address of a value that may not be there.
  FDMA_HOST_DEVICE constexpr T* place(std::int32_t batch, std::int32_t head,
                                      std::int32_t row) const {
    return data + batch * batch_stride + head * head_stride + row * row_stride;
  }
};

/// A value for each key [batch, head, key], for instance its bias. Strides in elements; keys are
/// adjacent.
template <class T>
struct KeyValues {
  T* data;  ///< or null
  std::int64_t batch_stride, head_stride;

  FDMA_HOST_DEVICE constexpr T& at(std::int32_t batch, std::int32_t head, std::int32_t key) const {
    return data[offset(batch, head, key)];
  }
  FDMA_HOST_DEVICE constexpr std::int64_t offset(std::int32_t batch, std::int32_t head,
                                                 std::int32_t key) const {
    return batch * batch_stride + head * head_stride + key;
  }
  /// The values of a head, from key 0 on.
  FDMA_HOST_DEVICE constexpr T* head(std::int32_t batch, std::int32_t head) const {
    return data + batch * batch_stride + head * head_stride;
  }
};

}  // namespace fdma
