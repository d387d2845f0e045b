// Sorts the keys of a key segment by their values, by a warp group of 4 warps: 128 threads with 16
// keys each.
//
// The sorted items are 32-bit words, so a step of the network is one minimum and one maximum. A
// word holds 21 bits of a value, and in the other bits the key's current place, which makes the
// sort stable. The network is bitonic. Each merge begins with items symmetric to its middle, so
// that all steps have one direction. A thread's registers hold 16 keys and a warp's 512, so only
// three steps go through shared memory.
//
// Cost        a sort takes some 130 instructions for 32 keys
#pragma once

#include <algorithm>
#include <cstdint>

#include "selection/topk/ranking.hpp"

namespace fdma::zoh {

inline constexpr int kSortGroupThreads = 128;
inline constexpr int kSortGroupWarps = kSortGroupThreads / 32;
inline constexpr int kSortGroupItems = kKeySegmentSize / kSortGroupThreads;
inline constexpr int kSortGroupWarpKeys = 32 * kSortGroupItems;
inline constexpr int kDigitBits = 32 - kKeySegmentBits;  ///< bits of a value in a word

struct SortGroupStorage {
  alignas(16) std::uint32_t values[kKeySegmentSize];  ///< of each key; 0: no query sees it
  std::uint32_t words[kKeySegmentSize];               ///< in transit between warps
  alignas(16) std::uint16_t order[kKeySegmentSize];   ///< the key at each place
  std::uint32_t least[kSortGroupWarps], most[kSortGroupWarps];
};

/// The threads that sort a key segment: a block.
struct SortGroup {
  int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;

  /// The place of an item when keys are distributed so that lanes have neighbours.
  __device__ int dealt(int item) const { return warp * kSortGroupWarpKeys + item * 32 + lane; }
};

/// Puts the larger of two words first.
__device__ __forceinline__ void order_words(std::uint32_t& a, std::uint32_t& b) {
  const std::uint32_t larger = max(a, b), smaller = min(a, b);
  a = larger;
  b = smaller;
}
/// Returns the larger word for the first partner, otherwise the smaller one.
__device__ __forceinline__ std::uint32_t word_of(bool is_first, std::uint32_t mine,
                                                 std::uint32_t other) {
  return is_first ? max(mine, other) : min(mine, other);
}

/// The last steps of a merge, within a thread.
template <int kSize>
__device__ __forceinline__ void clean_thread(std::uint32_t (&x)[kSortGroupItems]) {
#pragma unroll
  for (int step = kSize / 2; step > 0; step /= 2) {
#pragma unroll
    for (int i = 0; i < kSortGroupItems; ++i) {
      if ((i & step) == 0) order_words(x[i], x[i + step]);
    }
  }
}
/// Sorts a thread's words in descending order by Batcher's odd-even merges. That takes 63
/// comparisons, whereas merges of one direction as below take 80.
template <int kSize, int kStep>
__device__ __forceinline__ void merge_odd_even(std::uint32_t (&x)[kSortGroupItems]) {
  constexpr int kFirst = kStep % kSize;
#pragma unroll
  for (int i = kFirst; i + kStep < kSortGroupItems; ++i) {
    if ((i - kFirst) / kStep % 2 == 0 && i / (2 * kSize) == (i + kStep) / (2 * kSize)) {
      order_words(x[i], x[i + kStep]);
    }
  }
  if constexpr (kStep > 1) merge_odd_even<kSize, kStep / 2>(x);
}
__device__ __forceinline__ void sort_thread(std::uint32_t (&x)[kSortGroupItems]) {
  merge_odd_even<1, 1>(x);
  merge_odd_even<2, 2>(x);
  merge_odd_even<4, 4>(x);
  merge_odd_even<8, 8>(x);
}

/// Applies `exchange` to each item, in pairs of items that are symmetric.
template <class Exchange>
__device__ __forceinline__ void mirror(std::uint32_t (&x)[kSortGroupItems], bool is_first,
                                       Exchange exchange) {
#pragma unroll
  for (int i = 0; i < kSortGroupItems / 2; ++i) {
    const int j = kSortGroupItems - 1 - i;
    const std::uint32_t other_i = exchange(j), other_j = exchange(i);
    x[i] = word_of(is_first, x[i], other_i);
    x[j] = word_of(is_first, x[j], other_j);
  }
}

/// Sorts the words of the warp group in descending order, thread after thread. In key segments with
/// fewer keys the words from `num_keys` on are smaller than all before and already in order.
__device__ __forceinline__ void sort_words(const SortGroup& sort_group, std::uint32_t* words,
                                           std::uint32_t (&x)[kSortGroupItems], int num_keys) {
  constexpr unsigned kAll = 0xFFFFFFFFu;
  const int first_of_warp = sort_group.warp * kSortGroupWarpKeys;
  if (first_of_warp < num_keys) {
    sort_thread(x);
  }
#pragma unroll 1
  for (int size = 2 * kSortGroupItems; size <= kKeySegmentSize; size *= 2) {
    const int threads = size / kSortGroupItems;
    const bool is_first = (sort_group.thread & (threads / 2)) == 0;
    // In merges within a warp all its words count, in others the words that come from the second
    // half.
    const bool is_needed = size <= kSortGroupWarpKeys
                               ? first_of_warp < num_keys
                               : (first_of_warp & -size) + size / 2 < num_keys;
    if (size <= kSortGroupWarpKeys) {
      if (is_needed) {
        mirror(x, is_first, [&](int i) { return __shfl_xor_sync(kAll, x[i], threads - 1); });
      }
    } else {
      const auto put = [&] {
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kSortGroupItems; ++i)
          words[i * kSortGroupThreads + sort_group.thread] = x[i];
        __syncthreads();
      };
      put();
      const int mirrored = sort_group.thread ^ (threads - 1);
      if (is_needed) {
        mirror(x, is_first, [&](int i) { return words[i * kSortGroupThreads + mirrored]; });
      }
      if (size == kKeySegmentSize) {
        put();
        const int opposite = sort_group.thread ^ 32;
        if (is_needed) {
#pragma unroll
          for (int i = 0; i < kSortGroupItems; ++i) {
            x[i] = word_of((sort_group.thread & 32) == 0, x[i],
                           words[i * kSortGroupThreads + opposite]);
          }
        }
      }
    }
    if (!is_needed) continue;
#pragma unroll 1
    for (int step = min(threads / 4, 16); step > 0; step /= 2) {
      const bool is_lower = (sort_group.lane & step) == 0;
#pragma unroll
      for (int i = 0; i < kSortGroupItems; ++i) {
        x[i] = word_of(is_lower, x[i], __shfl_xor_sync(kAll, x[i], step));
      }
    }
    clean_thread<kSortGroupItems>(x);
  }
}

/// Makes the word of a key: its digit, which is below 2^kDigitBits and 0 for keys that come last,
/// and the key's current place, which makes the sort stable.
__device__ __forceinline__ std::uint32_t word_of_digit(std::uint32_t digit, int place) {
  return digit << kKeySegmentBits | (kKeySegmentSize - 1 - static_cast<std::uint32_t>(place));
}
__device__ __forceinline__ std::uint32_t place_of_word(std::uint32_t word) {
  return kKeySegmentSize - 1 - (word & (kKeySegmentSize - 1));
}

/// Stores keys in their order, thread after thread, into storage.order. Called after a barrier.
__device__ __forceinline__ void store_order(const SortGroup& sort_group, SortGroupStorage& storage,
                                            const std::uint32_t (&keys)[kSortGroupItems]) {
#pragma unroll
  for (int i = 0; i < kSortGroupItems; i += 8) {
    *reinterpret_cast<uint4*>(storage.order + sort_group.thread * kSortGroupItems + i) =
        make_uint4(keys[i] | keys[i + 1] << 16, keys[i + 2] | keys[i + 3] << 16,
                   keys[i + 4] | keys[i + 5] << 16, keys[i + 6] | keys[i + 7] << 16);
  }
}

/// The least and the greatest value of all threads.
struct Range {
  std::uint32_t least = 0xFFFFFFFFu, most = 0;

  __device__ void add(std::uint32_t value) {
    least = min(least, value);
    most = max(most, value);
  }
};
__device__ __forceinline__ Range range_of_sort_group(const SortGroup& sort_group,
                                                     SortGroupStorage& storage, const Range& mine) {
  const std::uint32_t least = __reduce_min_sync(0xFFFFFFFFu, mine.least);
  const std::uint32_t most = __reduce_max_sync(0xFFFFFFFFu, mine.most);
  if (sort_group.lane == 0) {
    storage.least[sort_group.warp] = least;
    storage.most[sort_group.warp] = most;
  }
  __syncthreads();
  Range all;
#pragma unroll
  for (int i = 0; i < kSortGroupWarps; ++i) {
    all.least = min(all.least, storage.least[i]);
    all.most = max(all.most, storage.most[i]);
  }
  __syncthreads();
  return all;
}

}  // namespace fdma::zoh
