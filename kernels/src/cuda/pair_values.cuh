// Reads of tensors that are float32 or of the 16-bit type of a kernel.
#pragma once

#include <cstdint>
#include <type_traits>

#include "call/strided_views.hpp"

namespace fdma::gpu {

/// The element at `index` of values that are float32 or T.
template <class T, class Data>
__device__ __forceinline__ float value_at(const PairValues<Data>& values, std::int64_t index) {
  if (values.dtype == DType::float32) return __ldg(static_cast<const float*>(values.data) + index);
  return static_cast<float>(__ldg(static_cast<const T*>(values.data) + index));
}

/// Writes `value` there.
template <class T>
__device__ __forceinline__ void set_value(const PairValues<void>& values, std::int64_t index,
                                          float value) {
  if (values.dtype == DType::float32) {
    static_cast<float*>(values.data)[index] = value;
  } else {
    static_cast<T*>(values.data)[index] = static_cast<T>(value);
  }
}

}  // namespace fdma::gpu
