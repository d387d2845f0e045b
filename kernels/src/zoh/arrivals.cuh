// Arrivals (ranking.hpp) built by a block, and the block's sort of ranks.
#pragma once

#include <cstdint>
#include <cub/block/block_merge_sort.cuh>

#include "zoh/ranking.hpp"

namespace fdma::zoh {

struct GreaterRank {
  __device__ bool operator()(std::uint64_t a, std::uint64_t b) const { return a > b; }
};

/// Sorts ranks of a block, kItems a thread in blocked order.
template <int kThreads, int kItems>
using BlockSort = cub::BlockMergeSort<std::uint64_t, kThreads, kItems>;

struct ArrivalStorage {
  std::uint16_t arrivals[2][kPieceKeys];
  std::uint16_t local_of_arrival[kPieceKeys];  ///< the key, as an index in its piece, of an arrival
  std::uint32_t words[kPieceBits * Arrivals::kWords];
  std::uint16_t sums[kPieceBits * Arrivals::kWords];
  std::uint32_t is_entrant[Arrivals::kWords];
  std::uint16_t entrants_before[Arrivals::kWords];
};

/// sums[i] = ones in the words before i, by the first warp.
__device__ inline void sum_words(const std::uint32_t* words, std::uint16_t* sums) {
  if (threadIdx.x >= 32) return;
  const int lane = static_cast<int>(threadIdx.x);
  const int first = __popc(words[2 * lane]), both = first + __popc(words[2 * lane + 1]);
  int sum = both;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(0xFFFFFFFFu, sum, static_cast<unsigned>(step));
    if (lane >= step) sum += other;
  }
  sums[2 * lane] = static_cast<std::uint16_t>(sum - both);
  sums[2 * lane + 1] = static_cast<std::uint16_t>(sum - both + first);
}

/// Numbers keys, which come in the order of their ranks (local_of(i): the index in its piece of the
/// i-th best), in the order of their indices. All kThreads threads of the block.
template <int kThreads, class LocalOf>
__device__ void number_arrivals(ArrivalStorage& storage, int count, LocalOf local_of) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < Arrivals::kWords) storage.is_entrant[thread] = 0;
  __syncthreads();
  for (int i = thread; i < count; i += kThreads) {
    const int local = local_of(i);
    atomicOr(&storage.is_entrant[local / 32], 1u << (local % 32));
  }
  __syncthreads();
  sum_words(storage.is_entrant, storage.entrants_before);
  __syncthreads();
  for (int i = thread; i < count; i += kThreads) {
    const int local = local_of(i);
    const std::uint32_t before = storage.is_entrant[local / 32] & ((1u << (local % 32)) - 1);
    const int arrival = storage.entrants_before[local / 32] + __popc(before);
    storage.arrivals[0][i] = static_cast<std::uint16_t>(arrival);
    storage.local_of_arrival[arrival] = static_cast<std::uint16_t>(local);
  }
  __syncthreads();
}

__device__ inline Arrivals tree_of(const ArrivalStorage& storage, int count) {
  return {storage.words, storage.sums, Arrivals::levels_for(count)};
}

/// Fills the wavelet tree of `count` numbered keys.
template <int kThreads>
__device__ void build_tree(ArrivalStorage& storage, int count) {
  const int thread = static_cast<int>(threadIdx.x);
  const Arrivals tree = tree_of(storage, count);
  int from = 0;
  for (int level = tree.num_levels - 1; level >= 0; --level) {
    std::uint32_t* const words = storage.words + level * Arrivals::kWords;
    for (int i = thread; i < kPieceKeys; i += kThreads) {
      const bool bit = i < count && (storage.arrivals[from][i] >> level & 1) != 0;
      const std::uint32_t word = __ballot_sync(0xFFFFFFFFu, bit);
      if (thread % 32 == 0) words[i / 32] = word;
    }
    __syncthreads();
    sum_words(words, storage.sums + level * Arrivals::kWords);
    __syncthreads();
    if (level == 0) break;
    for (int i = thread; i < count; i += kThreads) {
      const std::uint16_t arrival = storage.arrivals[from][i];
      const int to = tree.next_position(level, i, (arrival >> level & 1) != 0);
      storage.arrivals[1 - from][to] = arrival;
    }
    from = 1 - from;
    __syncthreads();
  }
}

}  // namespace fdma::zoh
