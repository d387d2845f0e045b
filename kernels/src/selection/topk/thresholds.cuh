// Step 2 of selection (select_topk.cu): finds the threshold of each key segment, which is the rank
// of the w-th best key of its group up to its end, and how many keys of each run are at least as
// good.
//
// A warp narrows the threshold of a key segment between two ranks. Each round asks whether enough
// ranks are at least as good as the one in the middle. Samples of the runs, in shared memory for
// all key segments of a block, give for each run the two places between which a rank lies. The sums
// of the lower and of the upper places over all runs mostly answer the question. If not, the runs
// are searched between these places. When few candidates are left, they are loaded all at once and
// counted.
//
// Fits        all orders: samples are so dense that the sums differ by a 16th of w
// Fits less   w of many key segments: the last questions are answered by searching runs
// Cost        a few questions of samples, some ten of registers, and three reads of memory
#pragma once

#include <algorithm>
#include <cstdint>

#include "ptx/async_copy.cuh"
#include "ptx/grid.cuh"
#include "ptx/warp_sums.cuh"
#include "selection/topk/device_topk.hpp"
#include "selection/topk/evictions.cuh"

namespace fdma::zoh {

inline constexpr int kThresholdWarps = 8;
inline constexpr int kRunsOfLane = 2;
static_assert(32 * kRunsOfLane == kSampledParts);
inline constexpr int kCandidatesOfLane = 8;
inline constexpr int kCandidates = 32 * kCandidatesOfLane;

/// Ranks of a run's samples in shared memory, plus two unused, so that ranks that lanes read at one
/// index are in different banks.
inline constexpr int kSampleStride = kSamples + 2;
/// Runs of the key segments of a block: those of one group before its first key segment, and its
/// own key segments.
inline constexpr int kMostSampledRuns = static_cast<int>(kSampledParts) + kThresholdWarps - 1;

struct ThresholdStorage {
  alignas(16) std::uint64_t samples[kMostSampledRuns * kSampleStride];
  struct Warp {
    int ends[kSampledParts];
    std::uint16_t begins[kSampledParts];
    std::uint16_t offsets[kSampledParts];
  } warps[kThresholdWarps];
};

/// A lane's share of the runs of a key segment: for each run, where the ranks lie that may be the
/// threshold.
struct SampledRun {
  const std::uint64_t* samples;
  int first_sample, end_sample;
  int begin, end;

  /// Number of samples that are `rank` or better.
  __device__ __forceinline__ int count(std::uint64_t rank) const {
    return end_of_at_least(samples, first_sample, end_sample, rank);
  }
  /// Lower and upper bound of the number of ranks of the run that are `rank` or better, given the
  /// number of such samples.
  __device__ __forceinline__ int least(int count) const {
    return max(count == 0 ? 0 : sample_place(count - 1) + 1, begin);
  }
  __device__ __forceinline__ int most(int count) const { return min(sample_place(count), end); }
};

/// The greatest rank of a warp.
__device__ __forceinline__ std::uint64_t greatest_of_warp(std::uint64_t rank) {
  constexpr unsigned kAll = 0xFFFFFFFFu;
  const std::uint32_t mine = static_cast<std::uint32_t>(rank >> 32);
  const std::uint32_t upper = __reduce_max_sync(kAll, mine);
  const std::uint32_t lower =
      __reduce_max_sync(kAll, mine == upper ? static_cast<std::uint32_t>(rank) : 0);
  return std::uint64_t{upper} << 32 | lower;
}
__device__ __forceinline__ std::uint64_t least_of_warp(std::uint64_t rank) {
  return ~greatest_of_warp(~rank);
}

/// Finds worst[index], the rank of the w-th best key of a group up to the end of key segment
/// `index` (0 if there are fewer), and its place in each run (`ends`). One warp.
__device__ __forceinline__ void find_threshold(const TopkCall& call, ThresholdStorage::Warp& shared,
                                               const std::uint64_t* samples,
                                               const KeySegment& key_segment, int index) {
  constexpr unsigned kAll = 0xFFFFFFFFu;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  if (key_segment.num_before == 0) return;
  if (key_segment.num_seen < call.w) {
    if (lane == 0) call.worst[index] = 0;
    return;
  }
  const Runs runs(call, key_segment, index);
  SampledRun mine[kRunsOfLane];
#pragma unroll
  for (int k = 0; k < kRunsOfLane; ++k) {
    const int run = k * 32 + lane;
    const bool has_run = run < runs.count;
    mine[k] = {samples + (has_run ? run : 0) * kSampleStride, 0, has_run ? kSamples : 0, 0,
               has_run ? runs.size(run) : 0};
  }
  // The threshold is `low` or better, and worse than `high`. If each full run has w / num_before
  // ranks that are at least as good as some rank, that rank is not better than the threshold. If no
  // run has more than (w - 1) / count ranks better than some rank, that rank is not worse than it.
  const auto w = static_cast<int>(call.w);
  std::uint64_t low = 0, high = 0;
  const int enough = sample_from((w - 1) / key_segment.num_before);
  const int few = min(sample_up_to((w - 1) / runs.count), kSamples - 1);
  if (enough < kSamples) low = ~std::uint64_t{0};
#pragma unroll
  for (int k = 0; k < kRunsOfLane; ++k) {
    const int run = k * 32 + lane;
    if (enough < kSamples && run < key_segment.num_before) low = min(low, mine[k].samples[enough]);
    if (run < runs.count) high = max(high, mine[k].samples[few]);
  }
  low = least_of_warp(low);
  high = greatest_of_warp(high) + 1;
  int total = 0;
#pragma unroll
  for (int k = 0; k < kRunsOfLane; ++k) {
    const int end = mine[k].count(low);
    const int first = mine[k].count(high);
    mine[k].end = mine[k].most(end);
    mine[k].begin = mine[k].least(first);
    mine[k].end_sample = end;
    mine[k].first_sample = first;
    total += mine[k].end - mine[k].begin;
  }
  // `wanted` of the `total` ranks in the windows are at least as good as the threshold.
  int wanted = 0;
#pragma unroll
  for (int k = 0; k < kRunsOfLane; ++k) wanted += mine[k].begin;
  wanted = w - __reduce_add_sync(kAll, wanted);
  total = __reduce_add_sync(kAll, total);
  while (total > kCandidates && high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    int counts[kRunsOfLane], least[kRunsOfLane], most[kRunsOfLane];
    int sum_least = 0, sum_most = 0;
#pragma unroll
    for (int k = 0; k < kRunsOfLane; ++k) {
      counts[k] = mine[k].count(middle);
      least[k] = mine[k].least(counts[k]);
      most[k] = mine[k].most(counts[k]);
      sum_least += least[k] - mine[k].begin;
      sum_most += most[k] - mine[k].begin;
    }
    sum_least = __reduce_add_sync(kAll, sum_least);
    sum_most = __reduce_add_sync(kAll, sum_most);
    std::uint64_t next_low = middle, next_high = middle;
    if (sum_least < wanted && wanted <= sum_most) {
      // The exact count; and no rank lies between the neighbours of the middle.
      int sum = 0;
      std::uint64_t above = ~std::uint64_t{0}, below = 0;
#pragma unroll
      for (int k = 0; k < kRunsOfLane; ++k) {
        const int run = k * 32 + lane;
        const std::uint64_t* const ranks = runs.at(run);
        const int split = end_of_at_least(ranks, least[k], most[k], middle);
        least[k] = split;
        most[k] = split;
        sum += split - mine[k].begin;
        if (run >= runs.count) continue;
        if (split > 0) above = min(above, ranks[split - 1]);
        if (split < runs.size(run)) below = max(below, ranks[split]);
      }
      sum_least = __reduce_add_sync(kAll, sum);
      sum_most = sum_least;
      next_low = least_of_warp(above);
      next_high = greatest_of_warp(below) + 1;
    }
    const bool is_above = wanted <= sum_least;
#pragma unroll
    for (int k = 0; k < kRunsOfLane; ++k) {
      if (is_above) {
        mine[k].end_sample = counts[k];
        mine[k].end = most[k];
      } else {
        mine[k].first_sample = counts[k];
        mine[k].begin = least[k];
      }
    }
    if (is_above) {
      low = next_low;
      total = sum_most;
    } else {
      high = next_high;
      wanted -= sum_least;
      total -= sum_least;
    }
  }
  std::uint16_t* const ends = call.ends + std::int64_t{index} * call.most_parts;
  if (total > kCandidates) {
    // The threshold is `low`.
#pragma unroll
    for (int k = 0; k < kRunsOfLane; ++k) {
      const int run = k * 32 + lane;
      if (run >= runs.count) continue;
      ends[run] = static_cast<std::uint16_t>(
          end_of_at_least(runs.at(run), mine[k].begin, mine[k].end, low));
    }
    if (lane == 0) call.worst[index] = low;
    return;
  }
  int filled = 0;
#pragma unroll
  for (int k = 0; k < kRunsOfLane; ++k) {
    const int run = k * 32 + lane;
    const int sum = ptx::sum_up_to(mine[k].end - mine[k].begin, lane);
    shared.ends[run] = mine[k].begin;
    shared.begins[run] = static_cast<std::uint16_t>(mine[k].begin);
    shared.offsets[run] = static_cast<std::uint16_t>(filled + sum - (mine[k].end - mine[k].begin));
    filled += __shfl_sync(kAll, sum, 31);
  }
  __syncwarp();
  std::uint64_t ranks[kCandidatesOfLane];
  int run_of[kCandidatesOfLane];
#pragma unroll
  for (int k = 0; k < kCandidatesOfLane; ++k) {
    const int i = k * 32 + lane;
    ranks[k] = 0;
    int run = 0;  // the last run that begins at i or before
    if (i < total) {
#pragma unroll
      for (int step = static_cast<int>(kSampledParts) / 2; step > 0; step /= 2) {
        if (shared.offsets[run + step] <= i) run += step;
      }
      ranks[k] = runs.at(run)[shared.begins[run] + (i - shared.offsets[run])];
    }
    run_of[k] = run;
  }
  const auto count = [&](std::uint64_t rank) {
    int sum = 0;
#pragma unroll
    for (int k = 0; k < kCandidatesOfLane; ++k) sum += ranks[k] >= rank ? 1 : 0;
    return __reduce_add_sync(kAll, sum);
  };
  while (high - low > 1) {
    const std::uint64_t middle = low + (high - low) / 2;
    const int above = count(middle);
    (wanted <= above ? low : high) = middle;
    if (wanted == above) break;
  }
  // `wanted` candidates are at least as good as `low`, and the threshold is the worst of them.
  std::uint64_t found = ~std::uint64_t{0};
#pragma unroll
  for (int k = 0; k < kCandidatesOfLane; ++k) {
    if (ranks[k] < low) continue;
    found = min(found, ranks[k]);
    atomicAdd(&shared.ends[run_of[k]], 1);
  }
  found = least_of_warp(found);
  if (lane == 0) call.worst[index] = found;
  __syncwarp();
#pragma unroll
  for (int k = 0; k < kRunsOfLane; ++k) {
    const int run = k * 32 + lane;
    if (run < runs.count) ends[run] = static_cast<std::uint16_t>(shared.ends[run]);
  }
}

/// Finds the thresholds of kThresholdWarps key segments, by a block, which waits for the kernel
/// before.
__device__ __forceinline__ void find_thresholds(const TopkCall& call, ThresholdStorage& storage,
                                                int first, int num_key_segments) {
  const int thread = static_cast<int>(threadIdx.x);
  const int last = min(first + kThresholdWarps, num_key_segments) - 1;
  // The runs from first_run to that of the last key segment.
  const int first_run = first - call.key_segments[first].num_before;
  const int warp = thread / 32, index = min(first + warp, last);
  const KeySegment key_segment = call.key_segments[index];
  ptx::wait_for_grid_before();
  constexpr int kCopies = kSamples / 2;
  const int num_copies = (last + 1 - first_run) * kCopies;
  const auto to = static_cast<std::uint32_t>(__cvta_generic_to_shared(storage.samples));
  for (int i = thread; i < num_copies; i += kThresholdWarps * 32) {
    const int run = i / kCopies, at = i % kCopies;
    ptx::copy_16_async(
        to + static_cast<std::uint32_t>((run * kSampleStride + 2 * at) * sizeof(std::uint64_t)),
        call.samples + (std::int64_t{first_run} + run) * kSamples + 2 * at, 16);
  }
  ptx::copies_commit();
  ptx::copies_wait<0>();
  __syncthreads();
  if (first + warp > last) return;
  find_threshold(call, storage.warps[warp],
                 storage.samples + (index - key_segment.num_before - first_run) * kSampleStride,
                 key_segment, index);
}

}  // namespace fdma::zoh
