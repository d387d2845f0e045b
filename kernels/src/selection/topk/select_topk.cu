// Selection in parallel over keys. In a group of rows whose visible keys only grow, a key is
// evicted by the first query that sees w better keys, that is, when the w-th better one of them
// appears:
//
//   eviction(k) = the w-th smallest key among those of the group that rank above k
//
// (If that comes before k itself, k is never kept.) Groups are cut into key segments of 2,048 keys.
// Three kernels follow:
//   1. sort_segments      128 threads per key segment sort its ranks (sort_segments.cuh); the
//   result is a run
//   2. find_worst_by_samples, _of_few, _of_many
//                       find per key segment the threshold T, the rank of the w-th best key of its
//                       group up to the key segment's end, by samples of the runs (thresholds.cuh),
//                       in groups of more than 64 key segments bit by bit from the top
//                       (searched_thresholds.cuh)
//   3. find_evictions      with T before and after its key segment, a block knows what happens in
//   the key segment.
//                       The keys evicted there are those from T before up to T after: one window of
//                       each run. The keys of the key segment above T before are its insertions.
//                       Each of them takes the place of the worst key that is kept when it arrives,
//                       or comes too late. Evictions therefore go in the order of ranks
//                       (accepted_insertions.cuh)
// Every key is written once: by its own key segment if it is never kept or outlives its group,
// otherwise by the key segment in which it is evicted. All ranks differ, so nothing depends on the
// order in which blocks run.
//
// Fits        random scores: few keys of a late key segment enter, and step 3 does little
// Fits        rising scores: every key enters and is evicted, in the order of insertion
// Fits less   scores that drift upwards: some keys enter and come too late, which takes some rounds
// Cost        8 B written and read per key by the sort; step 2 looks at each run of a group from
//             each of its key segments, which is quadratic in kv_len / 2,048; by samples it takes
//             18 to 31 us at 64 key segments (32 rows)
#include <cuda_runtime.h>

#include <algorithm>
#include <climits>

#include "cuda/cuda_error.hpp"
#include "cuda/gpu_library.hpp"
#include "fdma/base/interval.hpp"
#include "ptx/grid.cuh"
#include "selection/topk/device_topk.hpp"
#include "selection/topk/evictions.cuh"
#include "selection/topk/searched_thresholds.cuh"
#include "selection/topk/sort_segments.cuh"
#include "selection/topk/thresholds.cuh"

namespace fdma::zoh {
namespace {

constexpr int kThreads = kTopkThreads;
constexpr int kEvictedOfThread = kKeySegmentSize / kThreads;

__device__ int local_of(const KeySegment& key_segment, std::uint64_t rank) {
  return key_segment.kind == KeySegmentKind::packed ? local_of_packed_rank(rank)
                                                    : key_of_rank(rank) - key_segment.first_key;
}

__global__ void __launch_bounds__(kSortGroupThreads, 8)
    sort_segments(const __grid_constant__ TopkCall call) {
  ptx::let_next_grid_start();
  ptx::wait_for_grid_before();
  __shared__ KeySegmentStorage storage;
  sort_key_segment(call, SortGroup(), storage, static_cast<int>(blockIdx.x));
}

__global__ void __launch_bounds__(kThresholdWarps * 32, 2)
    find_worst_by_samples(const __grid_constant__ TopkCall call, int num_key_segments) {
  ptx::let_next_grid_start();
  extern __shared__ __align__(16) unsigned char raw_storage[];
  find_thresholds(call, *reinterpret_cast<ThresholdStorage*>(raw_storage),
                  static_cast<int>(blockIdx.x) * kThresholdWarps, num_key_segments);
}

__global__ void __launch_bounds__(kThreads)
    find_worst_of_few(const __grid_constant__ TopkCall call) {
  ptx::let_next_grid_start();
  ptx::wait_for_grid_before();
  __shared__ WorstTeam team;
  search_worst_of_few(call, team);
}

__global__ void __launch_bounds__(kThreads)
    find_worst_of_many(const __grid_constant__ TopkCall call) {
  ptx::let_next_grid_start();
  ptx::wait_for_grid_before();
  search_worst_of_many(call);
}

// The eviction index of a key inside its own key segment: the insertion by which it is evicted
// there, or one of these values.
enum EvictionIndex : std::uint16_t {
  kNeverKept = 0xFFFF,
  kOutlivesGroup = 0xFFFE,
  kEvictedLater = 0xFFFD
};

// Finds the insertions of a key segment: sets what becomes of those that are not evicted in it, and
// the bits of their indices. Other keys are never kept.
__device__ __forceinline__ void find_inserted(const TopkCall& call, const KeySegment& key_segment,
                                              int index, std::uint64_t before,
                                              EvictionStorage& storage) {
  const int thread = static_cast<int>(threadIdx.x), lane = thread % 32;
  const std::uint64_t in_the_end = call.worst[index + key_segment.num_after];
  const std::uint64_t* run = call.runs + std::int64_t{index} * kKeySegmentSize;
  const std::uint64_t least = max(before, std::uint64_t{1});
  std::uint64_t ranks[kEvictedOfThread];
#pragma unroll
  for (int i = 0; i < kEvictedOfThread; ++i) {
    const int at = i * kThreads + thread;
    ranks[i] = at < key_segment.num_keys ? run[at] : 0;
  }
  static_assert(kKeySegmentSize == 4 * kThreads);
  reinterpret_cast<uint2*>(storage.eviction_indices)[thread] = make_uint2(0xFFFFFFFFu, 0xFFFFFFFFu);
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kEvictedOfThread; ++i) {
    if (ranks[i] < least) continue;
    storage.eviction_indices[local_of(key_segment, ranks[i])] =
        ranks[i] >= in_the_end ? kOutlivesGroup : kEvictedLater;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kEvictedOfThread; ++i) {
    const int word = i * (kThreads / 32) + thread / 32;
    const unsigned inserted =
        __ballot_sync(0xFFFFFFFFu, storage.eviction_indices[word * 32 + lane] != kNeverKept);
    if (lane == 0) {
      storage.insertions.is_accepted[word] = inserted;
      storage.insertions.is_rejected[word] = 0;
    }
  }
}

// Determines which keys are evicted in the key segment, and when: sets eviction indices of its own
// keys and intervals of other keys.
__device__ __forceinline__ void settle_evictions(const TopkCall& call,
                                                 const KeySegment& key_segment, int index,
                                                 std::uint64_t before, std::uint64_t after,
                                                 EvictionStorage& storage) {
  const Runs runs(call, key_segment, index);
  number_accepted<kThreads>(storage.insertions);
  const int num_inserted = storage.insertions.num_accepted;
  const std::uint16_t* ends = nullptr;
  const std::uint16_t* ends_before = nullptr;
  if (call.ends != nullptr) {
    ends = call.ends + std::int64_t{index} * call.most_parts;
    if (before != 0) ends_before = ends - call.most_parts;
  }
  const int num_evicted =
      gather_evicted(storage, runs, before, after, ends, ends_before, num_inserted);
  if (num_evicted == 0) return;
  const std::uint64_t* const evicted = order_evicted(storage, num_evicted, before, after);
  // Keys of earlier key segments have negative indices.
  constexpr int kNone = INT_MIN;
  const int thread = static_cast<int>(threadIdx.x);
  int locals[kEvictedOfThread];
#pragma unroll
  for (int i = 0; i < kEvictedOfThread; ++i) {
    const int place = i * kThreads + thread;
    locals[i] = place < num_evicted ? local_of(key_segment, evicted[place]) : kNone;
  }
  for (;;) {
    bool rejects = false;
#pragma unroll
    for (int i = 0; i < kEvictedOfThread; ++i) {
      if (i * kThreads >= num_evicted) break;
      const int place = i * kThreads + thread;
      const bool is_late = locals[i] >= 0 && eviction_of(storage.insertions, place) <= locals[i];
      const unsigned late = __ballot_sync(0xFFFFFFFFu, is_late);
      if (late == 0) continue;
      if (thread % 32 == 0) storage.insertions.is_rejected[place / 32] |= late;
      rejects = true;
      if (!is_late) continue;
      atomicAnd(&storage.insertions.is_accepted[locals[i] / 32], ~(1u << locals[i] % 32));
      storage.eviction_indices[locals[i]] = kNeverKept;
      locals[i] = kNone;
    }
    if (__syncthreads_or(rejects) == 0) break;
    number_accepted<kThreads>(storage.insertions);
  }
  int2* kept = row_of(call, key_segment);
  const int2* queries = queries_of(call, key_segment);
#pragma unroll
  for (int i = 0; i < kEvictedOfThread; ++i) {
    if (locals[i] == kNone) continue;
    const int eviction = eviction_of(storage.insertions, i * kThreads + thread);
    if (locals[i] >= 0) {
      storage.eviction_indices[locals[i]] = static_cast<std::uint16_t>(eviction);
      continue;
    }
    // Loaded by __ldg, which may come before the stores of other items.
    int2 interval = __ldg(queries + locals[i]);
    interval.y = min(interval.y, __ldg(queries + eviction).x);
    kept[locals[i]] = interval.x < interval.y ? interval : make_int2(0, 0);
  }
}

__global__ void __launch_bounds__(kThreads, 3)
    find_evictions(const __grid_constant__ TopkCall call) {
  ptx::let_next_grid_start();
  extern __shared__ __align__(16) unsigned char raw_storage[];
  EvictionStorage& storage = *reinterpret_cast<EvictionStorage*>(raw_storage);
  const int index = static_cast<int>(blockIdx.x);
  const KeySegment key_segment = call.key_segments[index];
  ptx::wait_for_grid_before();
  const std::uint64_t before = key_segment.num_before == 0 ? 0 : call.worst[index - 1];
  const std::uint64_t after = call.worst[index];
  find_inserted(call, key_segment, index, before, storage);
  __syncthreads();
  if (after != 0) settle_evictions(call, key_segment, index, before, after, storage);
  __syncthreads();
  const int2* queries = queries_of(call, key_segment);
  int2* kept = row_of(call, key_segment);
#pragma unroll
  for (int i = 0; i < kEvictedOfThread; ++i) {
    const int local = i * kThreads + static_cast<int>(threadIdx.x);
    if (local >= key_segment.num_keys) continue;
    const std::uint16_t eviction_index = storage.eviction_indices[local];
    if (eviction_index == kEvictedLater) continue;
    int2 interval = make_int2(0, 0);
    if (eviction_index != kNeverKept) {
      interval = __ldg(queries + local);
      if (eviction_index < kKeySegmentSize)
        interval.y = min(interval.y, __ldg(queries + eviction_index).x);
      if (interval.x >= interval.y) interval = make_int2(0, 0);
    }
    kept[local] = interval;
  }
}

Result<void> prepare_topk() {
  const auto allow = [](auto* kernel, std::int64_t bytes) {
    return gpu::check_cuda(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                                static_cast<int>(bytes)),
                           "cudaFuncSetAttribute");
  };
  FDMA_TRY_VOID(allow(find_worst_by_samples, sizeof(ThresholdStorage)));
  FDMA_TRY_VOID(allow(find_worst_of_many, kMostParts * kWindowBytes));
  return allow(find_evictions, sizeof(EvictionStorage));
}

Result<void> launch_thresholds(const TopkCall& call, std::int64_t num_sorted, Stream stream) {
  const dim3 one_a_piece(static_cast<unsigned>(num_sorted));
  const bool overlaps = ptx::is_worth_overlap(num_sorted);
  const char* const what = "launch of the kernel that finds thresholds";
  if (call.samples != nullptr) {
    const dim3 blocks(static_cast<unsigned>(ceil_div(num_sorted, std::int64_t{kThresholdWarps})));
    return gpu::check_cuda(ptx::launch_overlapping_if(overlaps, find_worst_by_samples, blocks,
                                                      dim3(kThresholdWarps * 32),
                                                      static_cast<int>(sizeof(ThresholdStorage)),
                                                      stream, call, static_cast<int>(num_sorted)),
                           what);
  }
  if (call.most_parts <= kFewParts) {
    const dim3 threads((static_cast<unsigned>(call.most_parts) + 31) / 32 * 32);
    return gpu::check_cuda(ptx::launch_overlapping_if(overlaps, find_worst_of_few, one_a_piece,
                                                      threads, 0, stream, call),
                           what);
  }
  return gpu::check_cuda(
      ptx::launch_overlapping_if(overlaps, find_worst_of_many, one_a_piece, dim3(kThreads),
                                 static_cast<int>(call.most_parts * kWindowBytes), stream, call),
      what);
}

class CudaTopk final : public GpuTopk {
 public:
  Result<void> launch(const TopkCall& call, std::int64_t num_key_segments, std::int64_t num_sorted,
                      Stream stream) const override {
    if (num_key_segments == 0) return {};
    FDMA_TRY_VOID(prepare_topk());
    FDMA_TRY_VOID(gpu::check_cuda(
        ptx::launch_overlapping_if(ptx::is_worth_overlap(num_key_segments), sort_segments,
                                   dim3(static_cast<unsigned>(num_key_segments)),
                                   dim3(kSortGroupThreads), 0, stream, call),
        "launch of the kernel that sorts pieces"));
    if (num_sorted == 0) return {};
    if (call.most_parts > 1) FDMA_TRY_VOID(launch_thresholds(call, num_sorted, stream));
    return gpu::check_cuda(
        ptx::launch_overlapping_if(ptx::is_worth_overlap(num_sorted), find_evictions,
                                   dim3(static_cast<unsigned>(num_sorted)), dim3(kThreads),
                                   static_cast<int>(sizeof(EvictionStorage)), stream, call),
        "launch of the kernel that finds evictions");
  }
};

}  // namespace
}  // namespace fdma::zoh

namespace fdma {

const zoh::GpuTopk& with_cuda::topk() {
  static_assert(sizeof(int2) == sizeof(Interval));
  static const zoh::CudaTopk topk;
  return topk;
}

}  // namespace fdma
