// The keys that are evicted in a key segment (select_topk.cu). A block gathers them from the runs
// of the key segment's group and sorts them by rank.
#pragma once

#include <algorithm>
#include <cub/block/block_scan.cuh>

#include "ptx/warp_sums.cuh"
#include "selection/topk/accepted_insertions.cuh"
#include "selection/topk/device_topk.hpp"
#include "selection/topk/insertions.cuh"

namespace fdma::zoh {

inline constexpr int kTopkThreads = 512;

/// The parts of a group up to a key segment, and their runs.
struct Runs {
  const std::uint64_t* first;
  int count;
  int last_size;

  /// `index` is that of the key segment.
  __device__ Runs(const TopkCall& call, const KeySegment& key_segment, std::int64_t index)
      : first(call.runs + (index - key_segment.num_before) * kKeySegmentSize),
        count(key_segment.num_before + 1),
        last_size(key_segment.num_keys) {}
  __device__ const std::uint64_t* at(int i) const {
    return first + std::int64_t{i} * kKeySegmentSize;
  }
  __device__ int size(int i) const { return i + 1 == count ? last_size : kKeySegmentSize; }
};

/// Evicted keys come from windows of runs. Up to this many windows are merged.
inline constexpr int kMostWindows = 16;
/// At most this many keys from more windows are ordered by counting, each against all. Otherwise
/// they are sorted.
inline constexpr int kMostCounted = 256;

/// Number of equal steps into which the values of evicted keys are divided, and the number of keys
/// that one step may have. If a step has more, keys are ordered by their windows, as above.
inline constexpr int kEvictedSteps = 8 * kTopkThreads;
inline constexpr int kMostOfStep = 12;

struct EvictionStorage {
  alignas(16) std::uint64_t evicted[kKeySegmentSize];
  union {
    alignas(16) std::uint64_t merged[kKeySegmentSize];
    typename BlockSort<kTopkThreads, 1>::TempStorage sort_1;
    typename BlockSort<kTopkThreads, 2>::TempStorage sort_2;
    typename BlockSort<kTopkThreads, 4>::TempStorage sort_4;
  };
  alignas(16) std::uint16_t eviction_indices[kKeySegmentSize];  ///< of its keys (select_topk.cu)
  InsertionStorage insertions;
  int starts[kTopkThreads];
  int offsets[kTopkThreads + 1];
  int num_windows;  ///< runs with evicted keys
  /// Where the keys of each window begin in `evicted`, if there are at most kMostWindows windows
  int bounds[kMostWindows + 1];
  typename cub::BlockScan<int, kTopkThreads>::TempStorage scan;
  /// Number of keys of each step of values, then the number before each.
  alignas(16) std::uint16_t steps[kEvictedSteps + 2];
};

/// Gathers the ranks from `before` (any rank if it is 0) to below `after` of all runs, run after
/// run, into storage.evicted; returns their number. `ends`, where known for the key segment's group,
/// is the number of ranks of each run that are `after` or better, otherwise null. `ends_before` is
/// the same for `before`.
__device__ inline int gather_evicted(EvictionStorage& storage, const Runs& runs,
                                     std::uint64_t before, std::uint64_t after,
                                     const std::uint16_t* ends, const std::uint16_t* ends_before,
                                     int num_inserted) {
  const int thread = static_cast<int>(threadIdx.x);
  int filled = 0, num_windows = 0;
  for (int base = 0; base < runs.count; base += kTopkThreads) {
    int begin = 0, end = 0;
    if (base + thread < runs.count) {
      const bool is_own = base + thread == runs.count - 1;
      if (ends != nullptr && (is_own || ends_before != nullptr)) {
        begin = ends[base + thread];
        end = is_own ? num_inserted : ends_before[base + thread];
      } else {
        const std::uint64_t* run = runs.at(base + thread);
        begin = end_of_at_least(run, 0, runs.size(base + thread), after);
        end = end_of_at_least(run, begin, runs.size(base + thread), max(before, std::uint64_t{1}));
      }
    }
    // Keys are counted in the lower bits, windows in the upper ones.
    constexpr int kWindow = 1 << 16;
    int offset, total;
    cub::BlockScan<int, kTopkThreads>(storage.scan)
        .ExclusiveSum(end - begin + (begin < end ? kWindow : 0), offset, total);
    const int window = num_windows + offset / kWindow;
    offset %= kWindow;
    if (begin < end && window < kMostWindows) storage.bounds[window] = filled + offset;
    num_windows += total / kWindow;
    total %= kWindow;
    storage.starts[thread] = begin - offset;
    storage.offsets[thread] = offset;
    __syncthreads();
    const int count = min(kTopkThreads, runs.count - base);
    for (int i = thread; i < total; i += kTopkThreads) {
      int run = 0;  // the last one with offset <= i
      for (int step = 1 << (31 - __clz(count)); step > 0; step /= 2) {
        if (run + step < count && storage.offsets[run + step] <= i) run += step;
      }
      storage.evicted[filled + i] = runs.at(base + run)[storage.starts[run] + i];
    }
    filled += total;
    __syncthreads();
  }
  if (thread == 0) {
    storage.num_windows = num_windows;
    if (num_windows <= kMostWindows) storage.bounds[num_windows] = filled;
  }
  __syncthreads();
  return filled;
}

/// Merges windows of `from` pairwise into windows of `to`. Each new window begins where every
/// `stride`-th of the original windows did. A thread merges four keys, from the place that a search
/// along its diagonal finds.
__device__ __forceinline__ void merge_windows(const EvictionStorage& storage,
                                              const std::uint64_t* from, std::uint64_t* to,
                                              int stride, int num_keys) {
  constexpr int kItems = kKeySegmentSize / kTopkThreads;
  static_assert(kItems == 4);
  const int out = static_cast<int>(threadIdx.x) * kItems;
  if (out >= num_keys) return;
  const auto bound = [&](int window) { return storage.bounds[min(window, storage.num_windows)]; };
  int window = 0;
  while (bound(window + 2 * stride) <= out) window += 2 * stride;
  int begin = bound(window), middle = bound(window + stride), end = bound(window + 2 * stride);
  const int diagonal = out - begin;
  int low = max(0, diagonal - (end - middle)), high = min(diagonal, middle - begin);
  while (low < high) {
    const int probe = (low + high) / 2;
    if (from[begin + probe] >= from[middle + diagonal - 1 - probe]) {
      low = probe + 1;
    } else {
      high = probe;
    }
  }
  int a = begin + low, b = middle + diagonal - low;
  // No rank is 0.
  std::uint64_t x_a = a < middle ? from[a] : 0, x_b = b < end ? from[b] : 0;
  std::uint64_t x[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    if (x_a == 0 && x_b == 0 && out + i < num_keys) {
      window += 2 * stride;
      a = end;
      middle = bound(window + stride);
      b = middle;
      end = bound(window + 2 * stride);
      x_a = from[a];
      x_b = b < end ? from[b] : 0;
    }
    x[i] = max(x_a, x_b);
    if (x_a >= x_b) {
      ++a;
      x_a = a < middle ? from[a] : 0;
    } else {
      ++b;
      x_b = b < end ? from[b] : 0;
    }
  }
  *reinterpret_cast<ulonglong2*>(to + out) = make_ulonglong2(x[0], x[1]);
  *reinterpret_cast<ulonglong2*>(to + out + 2) = make_ulonglong2(x[2], x[3]);
}

/// Puts keys, which lie from `before` to below `after`, in descending order: by equal steps of
/// their values, and inside a step by the number of better ones. Returns false if a step has too
/// many keys; then nothing is changed.
__device__ __forceinline__ bool order_by_steps(EvictionStorage& storage, int num_evicted,
                                               std::uint64_t before, std::uint64_t after) {
  constexpr unsigned kAll = 0xFFFFFFFFu;
  constexpr int kItems = kKeySegmentSize / kTopkThreads, kWarps = kTopkThreads / 32;
  const auto value_of = [](std::uint64_t rank) {
    return score_of_ascending(static_cast<std::uint32_t>(rank >> 32));
  };
  const float most = value_of(after), distance = most - value_of(before);
  const float scale = static_cast<float>(kEvictedSteps - 1) / distance;
  if (before == 0 || !(distance > 0) || !isfinite(distance) || !isfinite(scale)) return false;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32, warp = thread / 32;
  uint4* const mine = reinterpret_cast<uint4*>(storage.steps) + thread;
  static_assert(kEvictedSteps * sizeof(storage.steps[0]) == kTopkThreads * sizeof(uint4));
  *mine = make_uint4(0, 0, 0, 0);
  __syncthreads();
  const auto step_of = [&](std::uint64_t rank) {
    return min(static_cast<int>((most - value_of(rank)) * scale), kEvictedSteps - 1);
  };
  int steps[kItems];  // and in the upper bits the key's number inside the step
  bool is_crowded = false;
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int place = i * kTopkThreads + thread;
    if (place >= num_evicted) continue;
    steps[i] = step_of(storage.evicted[place]);
    const int shift = steps[i] % 2 * 16;
    const std::uint32_t counts =
        atomicAdd(reinterpret_cast<std::uint32_t*>(storage.steps) + steps[i] / 2, 1u << shift);
    const auto index = static_cast<int>(counts >> shift & 0xFFFF);
    is_crowded |= index >= kMostOfStep;
    steps[i] |= index << 16;
  }
  if (__syncthreads_or(is_crowded) != 0) return false;
  // Counts of eight steps per thread.
  uint4 counts = *mine;
  const auto add = [](std::uint32_t word) { return (word & 0xFFFF) + (word >> 16); };
  const std::uint32_t sums[4] = {add(counts.x), add(counts.y), add(counts.z), add(counts.w)};
  const auto all = static_cast<int>(sums[0] + sums[1] + sums[2] + sums[3]);
  const int up_to = ptx::sum_up_to(all, lane);
  if (lane == 31) storage.starts[warp] = up_to;
  __syncthreads();
  const int of_warp = lane < warp ? storage.starts[lane % kWarps] : 0;
  auto first = static_cast<std::uint32_t>(up_to - all + __reduce_add_sync(kAll, of_warp));
  const auto before_word = [&first](std::uint32_t word, std::uint32_t sum) {
    const std::uint32_t begins = first | first + (word & 0xFFFF) << 16;
    first += sum;
    return begins;
  };
  counts.x = before_word(counts.x, sums[0]);
  counts.y = before_word(counts.y, sums[1]);
  counts.z = before_word(counts.z, sums[2]);
  counts.w = before_word(counts.w, sums[3]);
  *mine = counts;
  if (thread == 0) storage.steps[kEvictedSteps] = static_cast<std::uint16_t>(num_evicted);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int place = i * kTopkThreads + thread;
    if (place >= num_evicted) continue;
    storage.merged[storage.steps[steps[i] & 0xFFFF] + (steps[i] >> 16)] = storage.evicted[place];
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kItems; ++i) {
    const int at = i * kTopkThreads + thread;
    if (at >= num_evicted) continue;
    const std::uint64_t rank = storage.merged[at];
    const int step = step_of(rank), end = storage.steps[step + 1];
    int place = storage.steps[step];
    if (end - place > 1) {
#pragma unroll 1
      for (int other = storage.steps[step]; other < end; ++other) {
        place += storage.merged[other] > rank ? 1 : 0;
      }
    }
    storage.evicted[place] = rank;
  }
  __syncthreads();
  return true;
}

/// Puts few keys in descending order. The place of each key is the number of better ones.
__device__ __forceinline__ void order_few(EvictionStorage& storage, int num_evicted) {
  const int thread = static_cast<int>(threadIdx.x);
  std::uint64_t rank = 0;
  int place = 0;
  if (thread < num_evicted) {
    rank = storage.evicted[thread];
#pragma unroll 4
    for (int i = 0; i < num_evicted; ++i) place += storage.evicted[i] > rank ? 1 : 0;
  }
  __syncthreads();
  if (thread < num_evicted) storage.evicted[place] = rank;
  __syncthreads();
}

/// The same for many keys, by a block sort.
template <int kItems, class Storage>
__device__ __forceinline__ void sort_evicted(EvictionStorage& storage, Storage& sort_storage,
                                             int num_evicted) {
  const int first = static_cast<int>(threadIdx.x) * kItems;
  std::uint64_t ranks[kItems];
#pragma unroll
  for (int i = 0; i < kItems; ++i)
    ranks[i] = first + i < num_evicted ? storage.evicted[first + i] : 0;
  __syncthreads();
  BlockSort<kTopkThreads, kItems>(sort_storage).Sort(ranks, GreaterRank());
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kItems; ++i) storage.evicted[first + i] = ranks[i];
  __syncthreads();
}

/// Puts evicted keys, from `before` to below `after`, in descending order; returns their address
/// afterwards.
__device__ __forceinline__ const std::uint64_t* order_evicted(EvictionStorage& storage,
                                                              int num_evicted, std::uint64_t before,
                                                              std::uint64_t after) {
  const int num_windows = storage.num_windows;
  if (num_windows > 2 && num_evicted > 64 && order_by_steps(storage, num_evicted, before, after)) {
    return storage.evicted;
  }
  if (num_windows <= 4 || (num_windows <= kMostWindows && num_evicted > 64)) {
    std::uint64_t *from = storage.evicted, *to = storage.merged;
    for (int stride = 1; stride < num_windows; stride *= 2) {
      merge_windows(storage, from, to, stride, num_evicted);
      __syncthreads();
      std::uint64_t* const merged = to;
      to = from;
      from = merged;
    }
    return from;
  }
  if (num_evicted <= kMostCounted) {
    order_few(storage, num_evicted);
  } else if (num_evicted <= kTopkThreads) {
    sort_evicted<1>(storage, storage.sort_1, num_evicted);
  } else if (num_evicted <= 2 * kTopkThreads) {
    sort_evicted<2>(storage, storage.sort_2, num_evicted);
  } else {
    sort_evicted<4>(storage, storage.sort_4, num_evicted);
  }
  return storage.evicted;
}

}  // namespace fdma::zoh
