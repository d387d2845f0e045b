// Sorts ranks by one block, four per thread, as many as a key segment has or another power of two.
// The 128 ranks of a warp are sorted in registers (bitonic). Runs of 128, 256, .. are then merged
// in shared memory, where each thread merges four ranks from the place that a search along its
// diagonal finds.
#pragma once

#include <cstdint>

#include "selection/topk/ranking.hpp"

namespace fdma::zoh {

inline constexpr int kSortItems = 4;

/// Ranks in shared memory, with one unused after each 16. Ranks that are four apart, as the threads
/// of a warp access them, are in different banks.
template <int kRanks>
struct RankStorage {
  std::uint64_t ranks[kRanks + kRanks / 16];

  __device__ std::uint64_t& operator[](int i) { return ranks[i + i / 16]; }
};

/// Puts the larger rank first, within a lane.
__device__ __forceinline__ void order(std::uint64_t& a, std::uint64_t& b) {
  const std::uint64_t larger = max(a, b), smaller = min(a, b);
  a = larger;
  b = smaller;
}

/// Sorts 128 ranks in descending order, lane after lane. Each merge begins with items symmetric to
/// its middle, so that all steps have one direction.
__device__ __forceinline__ void sort_warp(std::uint64_t (&x)[kSortItems]) {
  constexpr unsigned kAll = 0xFFFFFFFFu;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const auto order_lane = [&] {
    order(x[0], x[2]);
    order(x[1], x[3]);
    order(x[0], x[1]);
    order(x[2], x[3]);
  };
  order(x[0], x[1]);
  order(x[2], x[3]);
  order(x[0], x[3]);
  order(x[1], x[2]);
  order(x[0], x[1]);
  order(x[2], x[3]);
#pragma unroll
  for (int lanes = 2; lanes <= 32; lanes *= 2) {
    const bool is_first = (lane & (lanes / 2)) == 0;
    std::uint64_t other[kSortItems];
#pragma unroll
    for (int i = 0; i < kSortItems; ++i) {
      other[i] = __shfl_xor_sync(kAll, x[kSortItems - 1 - i], lanes - 1);
    }
#pragma unroll
    for (int i = 0; i < kSortItems; ++i) {
      x[i] = (x[i] > other[i]) == is_first ? x[i] : other[i];
    }
#pragma unroll
    for (int step = lanes / 4; step > 0; step /= 2) {
      const bool is_lower = (lane & step) == 0;
#pragma unroll
      for (int i = 0; i < kSortItems; ++i) {
        const std::uint64_t opposite = __shfl_xor_sync(kAll, x[i], step);
        x[i] = (x[i] > opposite) == is_lower ? x[i] : opposite;
      }
    }
    order_lane();
  }
}

/// Sorts the ranks of all kRanks / kSortItems threads in descending order, thread after thread.
template <int kRanks>
__device__ __forceinline__ void sort_key_segment(RankStorage<kRanks>& storage,
                                                 std::uint64_t (&x)[kSortItems]) {
  sort_warp(x);
  const int first = static_cast<int>(threadIdx.x) * kSortItems;
  for (int size = 32 * kSortItems; size < kRanks; size *= 2) {
#pragma unroll
    for (int i = 0; i < kSortItems; ++i) storage[first + i] = x[i];
    __syncthreads();
    const int base = first & ~(2 * size - 1), diagonal = first - base, other = base + size;
    int low = max(0, diagonal - size), high = min(diagonal, size);
    while (low < high) {
      const int middle = (low + high) / 2;
      if (storage[base + middle] >= storage[other + diagonal - 1 - middle]) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    int a = low, b = diagonal - low;
    std::uint64_t x_a = a < size ? storage[base + a] : 0;
    std::uint64_t x_b = b < size ? storage[other + b] : 0;
#pragma unroll
    for (int i = 0; i < kSortItems; ++i) {
      // Past the end of a run there are zeros, and its rest would be zeros, too.
      if (x_a >= x_b) {
        x[i] = x_a;
        ++a;
        if (i + 1 < kSortItems) x_a = a < size ? storage[base + a] : 0;
      } else {
        x[i] = x_b;
        ++b;
        if (i + 1 < kSortItems) x_b = b < size ? storage[other + b] : 0;
      }
    }
    __syncthreads();
  }
}

}  // namespace fdma::zoh
