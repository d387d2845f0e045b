// Sums of several values at once over the lanes of a warp.
#pragma once

#include <cuda_runtime.h>

namespace fdma::gpu {

/// Sums each of kCount values over kLanes lanes; lane l returns the sum of value l / (kLanes /
/// kCount). Each step passes half of the remaining values to the opposite lane. For example, 8 sums
/// over 32 lanes take 9 shuffles instead of 8 x 5.
template <int kLanes, int kCount>
__device__ __forceinline__ float sum_each(float (&x)[kCount], int lane) {
#pragma unroll
  for (int half = kCount / 2, step = kLanes / 2; half > 0; half /= 2, step /= 2) {
    const bool is_upper = (lane & step) != 0;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const float given = is_upper ? x[i] : x[i + half];
      const float kept = is_upper ? x[i + half] : x[i];
      x[i] = kept + __shfl_xor_sync(~0u, given, step);
    }
  }
#pragma unroll
  for (int step = kLanes / kCount / 2; step > 0; step /= 2) {
    x[0] += __shfl_xor_sync(~0u, x[0], step);
  }
  return x[0];
}

}  // namespace fdma::gpu
