// Step 2 of selection (select_topk.cu) for groups of more key segments than thresholds.cuh takes. A
// block finds the threshold of a key segment bit by bit from the top, by searching all runs of the
// key segment's group.
#pragma once

#include <cstdint>

#include "selection/topk/device_topk.hpp"
#include "selection/topk/evictions.cuh"

namespace fdma::zoh {

/// Shared memory of search_worst_of_many per run: its window and where that splits.
inline constexpr std::int64_t kWindowBytes = sizeof(ushort2) + sizeof(std::uint16_t);
static_assert(kMostParts * kWindowBytes <= 224 * 1024);

struct WorstTeam {
  int counts[3];  ///< of three successive bits, so that one barrier a bit is enough
  std::uint32_t differing[2];
};

/// Computes worst[key segment]: the w-th best rank of its group up to its end, 0 while there are
/// fewer. It serves groups of at most as many parts as a block has threads, for key segments after
/// the first. Each thread has a run, the run's window of ranks whose bits above the current one are
/// those of `worst`, and the best and the worst rank of the window.
__device__ __forceinline__ void search_worst_of_few(const TopkCall& call, WorstTeam& shared) {
  const int index = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const KeySegment key_segment = call.key_segments[index];
  if (key_segment.num_before == 0) return;
  if (key_segment.num_seen < call.w) {
    if (thread == 0) call.worst[index] = 0;
    return;
  }
  const Runs runs(call, key_segment, index);
  if (thread < 3) shared.counts[thread] = 0;
  if (thread < 2) shared.differing[thread] = 0;
  const std::uint64_t* const run = runs.at(min(thread, runs.count - 1));
  int begin = 0, end = thread < runs.count ? runs.size(thread) : 0;
  std::uint64_t best = 0, least = 0, worst = runs.at(0)[0];
  std::uint64_t differs = 0;
  if (end > 0) {
    best = run[0];
    least = run[end - 1];
    differs = (best ^ worst) | (least ^ worst);
  }
  __syncthreads();
  const auto high = __reduce_or_sync(0xFFFFFFFFu, static_cast<std::uint32_t>(differs >> 32));
  const auto low = __reduce_or_sync(0xFFFFFFFFu, static_cast<std::uint32_t>(differs));
  if (thread % 32 == 0) {
    atomicOr(&shared.differing[0], low);
    atomicOr(&shared.differing[1], high);
  }
  __syncthreads();
  const int top = shared.differing[1] != 0 ? 63 - __clz(static_cast<int>(shared.differing[1]))
                                           : 31 - __clz(static_cast<int>(shared.differing[0]));
  worst = top < 63 ? worst >> (top + 1) << (top + 1) : 0;
  int total = key_segment.num_before * kKeySegmentSize + key_segment.num_keys;
  int wanted = static_cast<int>(call.w);  // at most num_seen
  for (int bit = top; bit >= 0 && total > 1; --bit) {
    const std::uint64_t middle = worst | std::uint64_t{1} << bit;
    int split = end;
    std::uint64_t above_split = least, below_split = best;
    if (begin < end && least < middle) {
      split = begin;
      if (best >= middle) {
        // run[split - 1] is above the middle and run[past] below it; both are known.
        int past = end - 1;
        ++split;
        above_split = best;
        below_split = least;
        while (split < past) {
          const int probe = (split + past) / 2;
          const std::uint64_t rank = run[probe];
          if (rank >= middle) {
            split = probe + 1;
            above_split = rank;
          } else {
            past = probe;
            below_split = rank;
          }
        }
      }
    }
    const int count = __reduce_add_sync(0xFFFFFFFFu, split - begin);
    int* const sum = &shared.counts[bit % 3];
    if (thread % 32 == 0 && count != 0) atomicAdd(sum, count);
    if (thread == 0) shared.counts[(bit + 2) % 3] = 0;  // of the next bit: the bit before is read
    __syncthreads();
    const int above = *sum;
    if (wanted <= above) {
      worst = middle;
      total = above;
      end = split;
      least = above_split;
    } else {
      wanted -= above;
      total -= above;
      begin = split;
      best = below_split;
    }
  }
  if (begin < end) call.worst[index] = best;
  if (thread < runs.count) {
    call.ends[std::int64_t{index} * call.most_parts + thread] = static_cast<std::uint16_t>(end);
  }
}

/// The same for any number of parts; it records no ends.
__device__ __forceinline__ void search_worst_of_many(const TopkCall& call) {
  // For each run the elements whose bits above the current one are those of `worst`. The counts of
  // three successive bits make one barrier a bit enough.
  extern __shared__ ushort2 windows[];
  auto* const splits = reinterpret_cast<std::uint16_t*>(windows + call.most_parts);
  __shared__ int counts[3];
  const KeySegment key_segment = call.key_segments[blockIdx.x];
  if (key_segment.num_seen < call.w) {
    if (threadIdx.x == 0) call.worst[blockIdx.x] = 0;
    return;
  }
  const Runs runs(call, key_segment, blockIdx.x);
  const int thread = static_cast<int>(threadIdx.x), threads = static_cast<int>(blockDim.x);
  if (thread < 3) counts[thread] = 0;
  for (int i = thread; i < runs.count; i += threads) {
    windows[i] = make_ushort2(0, static_cast<unsigned short>(runs.size(i)));
  }
  __syncthreads();
  std::int64_t total =
      std::int64_t{key_segment.num_before} * kKeySegmentSize + key_segment.num_keys;
  std::int64_t wanted = call.w;
  std::uint64_t worst = 0;
  for (int bit = 63; bit >= 0 && total > 1; --bit) {
    const std::uint64_t middle = worst | std::uint64_t{1} << bit;
    int count = 0;
    for (int i = thread; i < runs.count; i += threads) {
      const ushort2 window = windows[i];
      const int split = split_window(runs.at(i), window.x, window.y, middle);
      splits[i] = static_cast<std::uint16_t>(split);
      count += split - window.x;
    }
    count = __reduce_add_sync(0xFFFFFFFFu, count);
    int* const sum = &counts[bit % 3];
    if (thread % 32 == 0 && count != 0) atomicAdd(sum, count);
    // For the next bit, because the bit before is still being read
    if (thread == 0) counts[(bit + 2) % 3] = 0;
    __syncthreads();
    const int above = *sum;
    const bool is_above = wanted <= above;
    if (is_above) {
      worst = middle;
      total = above;
    } else {
      wanted -= above;
      total -= above;
    }
    for (int i = thread; i < runs.count; i += threads) {
      const ushort2 window = windows[i];
      windows[i] = is_above ? make_ushort2(window.x, splits[i]) : make_ushort2(splits[i], window.y);
    }
  }
  for (int i = thread; i < runs.count; i += threads) {
    if (windows[i].x < windows[i].y) call.worst[blockIdx.x] = runs.at(i)[windows[i].x];
  }
}

}  // namespace fdma::zoh
