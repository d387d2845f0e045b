// What D of `out` lacks: dS of a step added up along rows of the mask. Keys are rows of registers
// here, so that a query's sum is one over lanes, then over the four warps of a warpgroup in shared
// memory. One addition to memory for each query, step and warpgroup is left; warpgroups do not wait
// for each other.
#pragma once

#include <cstdint>

#include "ptx/warpgroup.cuh"
#include "sm90/backward/params.hpp"
#include "sm90/backward/ring.cuh"

namespace fdma::sm90 {

/// x[i] of the eight lanes that share lane % 4 added up: lane keeps those of kCount / 8 values,
/// from value lane / 4 * (kCount / 8) on. Each round halves what a lane has.
template <int kCount>
__device__ __forceinline__ void add_up_lanes(float (&x)[kCount], int lane) {
  int count = kCount / 2;
#pragma unroll
  for (int distance = 16; distance >= 4; distance /= 2, count /= 2) {
    const bool keeps_upper = (lane & distance) != 0;
#pragma unroll
    for (int i = 0; i < kCount / 2; ++i) {
      if (i >= count) break;
      const float given = keeps_upper ? x[i] : x[i + count];
      const float got = __shfl_xor_sync(~0u, given, distance);
      x[i] = (keeps_upper ? x[i + count] : x[i]) + got;
    }
  }
}

/// The sums of a warp's 16 keys, P of a step in `p` and dP in `dp`, to `to` (shared, kQueries
/// floats); `deltas`: those of the step, from the first of the thread on.
template <int kQueries>
__device__ __forceinline__ void store_warp_sums(const float (&p)[kQueries / 2],
                                                const float (&dp)[kQueries / 2],
                                                std::uint32_t deltas, std::uint32_t to, int lane) {
  float x[kQueries / 4];
#pragma unroll
  for (int j = 0; j < kQueries / 8; ++j) {
    const float2 delta = load_pair(deltas + 32 * j);
    x[2 * j] = fmaf(p[4 * j], dp[4 * j] - delta.x, p[4 * j + 2] * (dp[4 * j + 2] - delta.x));
    x[2 * j + 1] =
        fmaf(p[4 * j + 1], dp[4 * j + 1] - delta.y, p[4 * j + 3] * (dp[4 * j + 3] - delta.y));
  }
  add_up_lanes(x, lane);
  constexpr int kPairs = kQueries / 64;  // of queries, 8 apart
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int query = (lane / 4 * kPairs + i) * 8 + lane % 4 * 2;
    store_pair(to + 4 * query, x[2 * i], x[2 * i + 1]);
  }
}

/// Of a step, one warpgroup.
template <int kQueries>
inline constexpr std::uint32_t kGroupSumBytes = kWarpgroupThreads / 32 * kQueries * 4;

/// The sum of a group's warps for query `query` of a step, from where they have stored theirs.
template <int kQueries>
__device__ __forceinline__ float sum_of_warps(std::uint32_t from, int query) {
  float sum = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kWarpgroupThreads / 32; ++warp) {
    float one;
    asm volatile("ld.shared.f32 %0, [%1];"
                 : "=f"(one)
                 : "r"(from + 4 * (warp * kQueries + query))
                 : "memory");
    sum += one;
  }
  return sum;
}

}  // namespace fdma::sm90
