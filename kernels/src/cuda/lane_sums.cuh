// Sums over lanes that share something, of several values at once.
#pragma once

#include <cuda_runtime.h>

namespace fdma::sm90 {

/// The sums over kLanes lanes of kCount values each; lane l gets that of value l / (kLanes /
/// kCount). Each step hands half of them to the lane opposite: 8 sums take 7 shuffles and a few,
/// not 8 x 4.
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

}  // namespace fdma::sm90
