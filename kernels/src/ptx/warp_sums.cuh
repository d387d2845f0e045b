// Sums over the lanes of a warp.
#pragma once

#include <cuda_runtime.h>

namespace fdma::ptx {

/// Returns the sum of `value` over this lane and all lanes before it (inclusive scan). All lanes of
/// a warp call it.
__device__ __forceinline__ int sum_up_to(int value, int lane) {
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(~0u, value, static_cast<unsigned>(step));
    if (lane >= step) value += other;
  }
  return value;
}

}  // namespace fdma::ptx
