// The correction pass of the exact delta: sums dS of a step along the queries, to find what D,
// computed from `out`, lacks. Keys are rows of the accumulators, so a query's sum runs over lanes
// and then, in shared memory, over the four warps of a warpgroup. One addition to memory per query,
// step and warpgroup remains. The warpgroups do not wait for each other.
#pragma once

#include <cstdint>

#include "ptx/addresses.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/backward/params.hpp"
#include "sm90/backward/ring.cuh"

namespace fdma::sm90 {

/// Sums each x[i] over the eight lanes that share lane % 4. Each lane keeps kCount / 8 of the sums,
/// from value lane / 4 * (kCount / 8) on. Each round halves the number of values of a lane.
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

/// Sums over a warp's 16 keys, from P of a step in `p` and dP in `dp`, and stores them to `to`
/// (shared, kQueries floats). `deltas` is the address of the step's deltas, from the thread's first
/// one on.
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
  constexpr int kPairs = kQueries / 64;  // pairs of queries, 8 apart
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int query = (lane / 4 * kPairs + i) * 8 + lane % 4 * 2;
    store_pair(to + 4 * query, x[2 * i], x[2 * i + 1]);
  }
}

/// Bytes of the sums of one warpgroup in a step.
template <int kQueries>
inline constexpr std::uint32_t kGroupSumBytes = kWarpgroupThreads / 32 * kQueries * 4;

/// The sum over a group's warps for query `query` of a step, from the place where they stored
/// theirs.
template <int kQueries>
__device__ __forceinline__ float sum_of_warps(std::uint32_t from, int query) {
  float sum = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kWarpgroupThreads / 32; ++warp) {
    sum += ptx::load_float(from + 4 * (warp * kQueries + query));
  }
  return sum;
}

}  // namespace fdma::sm90
