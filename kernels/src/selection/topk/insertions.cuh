// Builds Insertions (ranking.hpp) by a block, and names the block's sort of ranks.
#pragma once

#include <cstdint>
#include <cub/block/block_merge_sort.cuh>

#include "ptx/warp_sums.cuh"
#include "selection/topk/ranking.hpp"

namespace fdma::zoh {

struct GreaterRank {
  __device__ bool operator()(std::uint64_t a, std::uint64_t b) const { return a > b; }
};

/// Sorts ranks of a block, kItems per thread in blocked order.
template <int kThreads, int kItems>
using BlockSort = cub::BlockMergeSort<std::uint64_t, kThreads, kItems>;

struct InsertionTreeStorage {
  std::uint16_t insertions[2][kKeySegmentSize];
  /// the key of an insertion, as an index in its key segment
  std::uint16_t local_of_insertion[kKeySegmentSize];
  InsertionTree::Word words[InsertionTree::kLevels * InsertionTree::kWords];
  std::uint32_t leaves[kKeySegmentSize];
  /// Used while a level is built: sums [slot][word]. A row is one word longer, so that the slots of
  /// a word are in different banks.
  std::uint16_t sums[InsertionTree::kDigits][InsertionTree::kWords + 2];
  std::uint32_t is_inserted[InsertionTree::kWords];
  std::uint16_t inserted_before[InsertionTree::kWords];
};

/// sums[i] = number of ones in the words before i. The first warp computes it.
__device__ inline void sum_words(const std::uint32_t* words, std::uint16_t* sums) {
  if (threadIdx.x >= 32) return;
  const int lane = static_cast<int>(threadIdx.x);
  const int first = __popc(words[2 * lane]), both = first + __popc(words[2 * lane + 1]);
  const int sum = ptx::sum_up_to(both, lane);
  sums[2 * lane] = static_cast<std::uint16_t>(sum - both);
  sums[2 * lane + 1] = static_cast<std::uint16_t>(sum - both + first);
}

/// Numbers keys in the order of their indices. They come in the order of their ranks: local_of(i)
/// is the index in its key segment of the i-th best. All kThreads threads of the block call it.
template <int kThreads, class LocalOf>
__device__ void number_insertions(InsertionTreeStorage& storage, int count, LocalOf local_of) {
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < InsertionTree::kWords) storage.is_inserted[thread] = 0;
  __syncthreads();
  for (int i = thread; i < count; i += kThreads) {
    const int local = local_of(i);
    atomicOr(&storage.is_inserted[local / 32], 1u << (local % 32));
  }
  __syncthreads();
  sum_words(storage.is_inserted, storage.inserted_before);
  __syncthreads();
  for (int i = thread; i < count; i += kThreads) {
    const int local = local_of(i);
    const std::uint32_t before = storage.is_inserted[local / 32] & ((1u << (local % 32)) - 1);
    const int insertion = storage.inserted_before[local / 32] + __popc(before);
    storage.insertions[0][i] = static_cast<std::uint16_t>(insertion);
    storage.local_of_insertion[insertion] = static_cast<std::uint16_t>(local);
  }
  __syncthreads();
}

__device__ inline InsertionTree tree_of(const InsertionTreeStorage& storage) {
  return {storage.words, storage.leaves};
}

/// Fills the tree of `count` numbered keys. All kThreads threads of the block call it.
template <int kThreads>
__device__ void build_tree(InsertionTreeStorage& storage, int count) {
  constexpr int kWarps = kThreads / 32;
  constexpr unsigned kAll = 0xFFFFFFFFu;
  static_assert(kWarps >= InsertionTree::kDigits);
  const int lane = static_cast<int>(threadIdx.x) % 32, warp = static_cast<int>(threadIdx.x) / 32;
#pragma unroll
  for (int level = 0; level < InsertionTree::kLevels; ++level) {
    const std::uint16_t* const from = storage.insertions[level];
    std::uint16_t* const to = storage.insertions[1 - level];
    InsertionTree::Word* const words = storage.words + level * InsertionTree::kWords;
    for (int word = warp; word * 32 < count; word += kWarps) {
      const int at = word * 32 + lane;
      const int digit = at < count ? InsertionTree::digit_of(from[at], level) : 0;
      const std::uint32_t inside = __ballot_sync(kAll, at < count);
      const std::uint32_t planes[3] = {__ballot_sync(kAll, (digit & 1) != 0),
                                       __ballot_sync(kAll, (digit & 2) != 0),
                                       __ballot_sync(kAll, (digit & 4) != 0)};
      if (lane < InsertionTree::kDigits) {
        const std::uint32_t found =
            InsertionTree::at_least(planes, InsertionTree::digit_of_slot(lane));
        storage.sums[lane][word] = static_cast<std::uint16_t>(__popc(found & inside));
      }
      if (lane == 0) {
        words[word].planes[0] = planes[0];
        words[word].planes[1] = planes[1];
        words[word].planes[2] = planes[2];
      }
    }
    __syncthreads();
    // A lane has two words. A node has all 64 words in level 0 and 8 words in level 1.
    if (warp < InsertionTree::kDigits) {
      std::uint16_t* const mine = &storage.sums[warp][2 * lane];
      const int lanes = level == 0 ? 32 : 4;
      const int first = 64 * lane < count ? mine[0] : 0;
      const int both = 64 * lane + 32 < count ? first + mine[1] : first;
      int sum = both;
      for (int step = 1; step < lanes; step *= 2) {
        const int other = __shfl_up_sync(kAll, sum, static_cast<unsigned>(step), lanes);
        if (lane % lanes >= step) sum += other;
      }
      mine[0] = static_cast<std::uint16_t>(sum - both);
      mine[1] = static_cast<std::uint16_t>(sum - both + first);
    }
    __syncthreads();
    for (int word = warp; word * 32 < count; word += kWarps) {
      const int at = word * 32 + lane;
      int sum = 0;
      if (lane < InsertionTree::kDigits) {
        sum = storage.sums[lane][word];
        words[word].sums[lane] = static_cast<std::uint16_t>(sum);
      }
      const int insertion = at < count ? from[at] : 0;
      const int digit = InsertionTree::digit_of(insertion, level);
      const int at_least = __shfl_sync(kAll, sum, InsertionTree::slot_of(digit));
      const int above =
          __shfl_sync(kAll, sum, InsertionTree::slot_of((digit + 1) % InsertionTree::kDigits));
      const std::uint32_t equal = InsertionTree::equal_to(words[word].planes, digit);
      if (at < count) {
        const int before = at_least - (digit + 1 < InsertionTree::kDigits ? above : 0);
        to[InsertionTree::next_position(level, at, digit, equal, before)] =
            static_cast<std::uint16_t>(insertion);
      }
    }
    __syncthreads();
  }
  for (int word = warp; word * 32 < count; word += kWarps) {
    const int at = word * 32 + lane;
    std::uint32_t leaf = at < count ? 1u << (storage.insertions[0][at] % 32) : 0;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const std::uint32_t other = __shfl_up_sync(kAll, leaf, static_cast<unsigned>(step));
      if (lane >= step) leaf |= other;
    }
    storage.leaves[at] = leaf;
  }
  __syncthreads();
}

}  // namespace fdma::zoh
