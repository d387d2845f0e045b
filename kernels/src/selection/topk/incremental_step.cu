// The kernel of incremental selection, one block per row. The row keeps the ranks of its (at most
// w) kept keys in descending order. New keys come 2,048 at a time, all of one group of rows. Sorted
// they are a second run, and the two runs are treated as select_topk.cu treats runs:
//   insertions  the new keys above the worst kept one (all while fewer than w are kept)
//   kept        the w best of both runs; their ends are open
//   evictions   the others of both runs, in each run behind those that stay. The i-th best is evicted
//               by the (i + 1)-th last of the insertions that rank above it (select_topk.cu says why)
// The two runs, up to where they are kept, are merged into the next run: the new place of each rank
// is its own place plus the number of ranks of the other run above it.
//
// Example   w = 2, kept 5 3, new keys 4 1 6 (in this order): insertions 6 4, kept 6 5, evictions 4
//           3; 4 is the best of these and is evicted by the last insertion above it, 6; 3 is
//           evicted by the second last of 4 and 6: 4
// Cost      a decoded token that is not kept: one comparison with the worst kept one
#include <cuda_runtime.h>

#include <cub/block/block_scan.cuh>

#include "cuda/cuda_error.hpp"
#include "cuda/gpu_library.hpp"
#include "fdma/select/one_interval.hpp"
#include "selection/topk/device_incremental_topk.hpp"
#include "selection/topk/insertions.cuh"

namespace fdma::zoh {
namespace {

constexpr int kThreads = 256;

struct StepStorage {
  std::uint64_t inserted[kKeySegmentSize];  ///< the run of the new keys
  union {
    typename BlockSort<kThreads, 1>::TempStorage sort_1;
    typename BlockSort<kThreads, 8>::TempStorage sort_8;
    InsertionTreeStorage insertions;
  };
};

// One row in one launch.
class Row {
 public:
  __device__ Row(const IncrementalState& state, const Step& step, StepStorage& storage)
      : state_(state),
        step_(step),
        storage_(storage),
        row_(static_cast<int>(blockIdx.x)),
        thread_(static_cast<int>(threadIdx.x)),
        now_(state.rows[row_]),
        kept_(state.kept + row_ * state.capacity),
        scores_(step.scores + row_ / state.num_heads * step.batch_stride +
                row_ % state.num_heads * step.head_stride) {}

  __device__ void run() {
    if (step_.num_new > state_.capacity - now_.kv_len ||
        step_.num_queries > kOpenEnd - 1 - now_.q_len) {
      if (thread_ == 0) atomicOr(state_.status, kTopkOverCapacity);
      return;
    }
    if (step_.end != kNoEnd) end_group(step_.end == kEndNow ? now_.q_len : step_.end);
    for (int i = thread_; i < step_.num_cleared; i += kThreads) {
      kept_[step_.first_cleared + i] = make_int2(0, 0);
    }
    if (!step_.is_causal && step_.is_first) store_new_keys();
    const int first = step_.is_causal ? now_.kv_len : step_.first_shown;
    const int count = step_.is_causal ? step_.num_new : step_.num_shown;
    for (int at = 0; at < count; at += kKeySegmentSize)
      show(first + at, min(kKeySegmentSize, count - at));
    __syncthreads();  // all threads have read the state
    if (thread_ != 0) return;
    if (step_.is_last) {
      now_.kv_len += step_.num_new;
      now_.q_len += step_.num_queries;
    }
    state_.rows[row_] = now_;
  }

 private:
  __device__ std::uint64_t* ranks_of(int buffer) const {
    return state_.ranks + (std::int64_t{row_} * 2 + buffer) * state_.w;
  }

  __device__ void end_group(int query) {
    const std::uint64_t* ranks = ranks_of(now_.buffer);
    for (int i = thread_; i < now_.num_kept; i += kThreads) kept_[key_of_rank(ranks[i])].y = query;
    now_.num_kept = 0;
    __syncthreads();
  }

  // Keys wait from the moment they come, even if only until later in this call.
  __device__ void store_new_keys() {
    for (int i = thread_; i < step_.num_new; i += kThreads) {
      const int key = now_.kv_len + i;
      const int2 seen = state_.queries[key];
      const float score = scores_[i * step_.key_stride];
      kept_[key] = seen.x < seen.y ? make_int2(seen.x, kOpenEnd) : make_int2(0, 0);
      if (state_.waiting != nullptr) state_.waiting[row_ * state_.capacity + key] = score;
      if (seen.x < seen.y && isnan(score)) atomicOr(state_.status, kTopkSawNan);
    }
    __syncthreads();
  }

  __device__ int begin_of(int key) const {
    return step_.is_causal ? now_.q_len + key - now_.kv_len : state_.queries[key].x;
  }

  __device__ std::uint64_t rank_of(int key) const {
    if (!step_.is_causal) {
      const int2 seen = state_.queries[key];
      if (seen.x >= seen.y) return 0;
      if (key < now_.kv_len) return rank_of_key(state_.waiting[row_ * state_.capacity + key], key);
    }
    const float score = scores_[(key - now_.kv_len) * step_.key_stride];
    if (isnan(score)) atomicOr(state_.status, kTopkSawNan);
    return rank_of_key(score, key);
  }

  template <int kItems, class Storage>
  __device__ void sort(Storage& sort_storage, int first_key, int count) {
    std::uint64_t ranks[kItems];
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int at = i * kThreads + thread_;  // any order: they are sorted
      ranks[i] = at < count ? rank_of(first_key + at) : 0;
    }
    BlockSort<kThreads, kItems>(sort_storage).Sort(ranks, GreaterRank());
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kItems; ++i) storage_.inserted[thread_ * kItems + i] = ranks[i];
    __syncthreads();
  }

  // Shows keys [first_key, first_key + count), at most kKeySegmentSize keys.
  __device__ void show(int first_key, int count) {
    if (count <= kThreads) {
      sort<1>(storage_.sort_1, first_key, count);
    } else {
      sort<8>(storage_.sort_8, first_key, count);
    }
    const std::uint64_t* const inserted = storage_.inserted;
    const std::uint64_t* const ranks = ranks_of(now_.buffer);
    const std::uint64_t worst = now_.num_kept == state_.w ? ranks[state_.w - 1] : 1;
    const int num_seen = end_of_at_least(inserted, 0, count, 1);
    const int num_inserted = end_of_at_least(inserted, 0, num_seen, worst);
    for (int i = num_inserted + thread_; i < num_seen; i += kThreads) {
      kept_[key_of_rank(inserted[i])] = make_int2(0, 0);
    }
    if (num_inserted > 0) enter(first_key, num_inserted);
    __syncthreads();
  }

  // Number of the kept keys that are among the `staying` best of both runs.
  __device__ int num_old_staying(const std::uint64_t* ranks, int num_inserted, int staying) const {
    int low = 0, high = min(now_.num_kept, staying);
    while (low < high) {
      const int middle = (low + high) / 2, inserted_key = staying - 1 - middle;
      if (inserted_key >= num_inserted || ranks[middle] > storage_.inserted[inserted_key]) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low;
  }

  __device__ void enter(int first_key, int num_inserted) {
    const std::uint64_t* const inserted = storage_.inserted;
    const std::uint64_t* const ranks = ranks_of(now_.buffer);
    const auto staying =
        static_cast<int>(min(static_cast<std::int64_t>(now_.num_kept) + num_inserted, state_.w));
    const int old_staying = num_old_staying(ranks, num_inserted, staying);
    const int new_staying = staying - old_staying;
    const int old_evicted = now_.num_kept - old_staying;
    const int num_evicted = old_evicted + num_inserted - new_staying;
    if (num_evicted > 0) {
      number_insertions<kThreads>(storage_.insertions, num_inserted,
                                  [&](int i) { return key_of_rank(inserted[i]) - first_key; });
      build_tree<kThreads>(storage_.insertions, num_inserted);
      const InsertionTree insertions = tree_of(storage_.insertions);
      for (int i = thread_; i < num_evicted; i += kThreads) {
        const bool is_old = i < old_evicted;
        const std::uint64_t rank =
            is_old ? ranks[old_staying + i] : inserted[new_staying + i - old_evicted];
        const int new_above = is_old ? end_of_at_least(inserted, new_staying, num_inserted, rank)
                                     : new_staying + i - old_evicted;
        const int old_above =
            is_old ? old_staying + i : end_of_at_least(ranks, old_staying, now_.num_kept, rank);
        const int place = new_above - new_staying + old_above - old_staying;
        const int last =
            first_key +
            storage_.insertions.local_of_insertion[insertions.largest(new_above, place + 1)];
        const int key = key_of_rank(rank);
        const int begin = is_old ? kept_[key].x : begin_of(key), end = begin_of(last);
        kept_[key] = begin < end ? make_int2(begin, end) : make_int2(0, 0);
      }
    }
    std::uint64_t* const merged = ranks_of(1 - now_.buffer);
    for (int i = thread_; i < old_staying; i += kThreads) {
      merged[i + end_of_at_least(inserted, 0, new_staying, ranks[i])] = ranks[i];
    }
    for (int i = thread_; i < new_staying; i += kThreads) {
      const int key = key_of_rank(inserted[i]);
      kept_[key] = make_int2(begin_of(key), kOpenEnd);
      merged[i + end_of_at_least(ranks, 0, old_staying, inserted[i])] = inserted[i];
    }
    now_.buffer = 1 - now_.buffer;
    now_.num_kept = staying;
  }

  const IncrementalState& state_;
  const Step& step_;
  StepStorage& storage_;
  int row_;
  int thread_;
  RowState now_;  ///< the same in all threads
  int2* kept_;
  const float* scores_;
};

__global__ void __launch_bounds__(kThreads, 1)
    run_step(const __grid_constant__ IncrementalState state, const __grid_constant__ Step step) {
  extern __shared__ __align__(16) unsigned char raw_storage[];
  Row(state, step, *reinterpret_cast<StepStorage*>(raw_storage)).run();
}

constexpr int kKeysPerThread = 4;

__global__ void __launch_bounds__(kThreads)
    find_live_keys(IncrementalState state, std::int32_t* keys, std::int64_t row_size,
                   std::int32_t* counts) {
  __shared__ typename cub::BlockScan<int, kThreads>::TempStorage storage;
  const int row = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int kv_len = state.rows[row].kv_len;
  const int2* kept = state.kept + row * state.capacity;
  int found = 0;
  for (int base = 0; base < kv_len; base += kThreads * kKeysPerThread) {
    const int first = base + thread * kKeysPerThread;
    bool is_live[kKeysPerThread];
    int count = 0;
#pragma unroll
    for (int i = 0; i < kKeysPerThread; ++i) {
      is_live[i] = first + i < kv_len && kept[first + i].y == kOpenEnd;
      count += is_live[i] ? 1 : 0;
    }
    int offset, total;
    cub::BlockScan<int, kThreads>(storage).ExclusiveSum(count, offset, total);
    offset += found;
#pragma unroll
    for (int i = 0; i < kKeysPerThread; ++i) {
      if (is_live[i] && offset < row_size) keys[row * row_size + offset] = first + i;
      offset += is_live[i] ? 1 : 0;
    }
    found += total;
    __syncthreads();
  }
  if (thread == 0) counts[row] = found;
}

class CudaIncrementalTopk final : public GpuIncrementalTopk {
 public:
  Result<void> prepare() const override {
    return gpu::check_cuda(
        cudaFuncSetAttribute(run_step, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(sizeof(StepStorage))),
        "cudaFuncSetAttribute");
  }

  Result<void> launch_step(const IncrementalState& state, const Step& step,
                           Stream stream) const override {
    if (state.num_rows == 0) return {};
    run_step<<<static_cast<unsigned>(state.num_rows), kThreads, sizeof(StepStorage), stream>>>(
        state, step);
    return gpu::check_cuda(cudaGetLastError(), "launch of a step of incremental selection");
  }

  Result<void> launch_live_keys(const IncrementalState& state, std::int32_t* keys,
                                std::int64_t row_size, std::int32_t* counts,
                                Stream stream) const override {
    if (state.num_rows == 0) return {};
    find_live_keys<<<static_cast<unsigned>(state.num_rows), kThreads, 0, stream>>>(
        state, keys, row_size, counts);
    return gpu::check_cuda(cudaGetLastError(), "live_keys: launch");
  }
};

}  // namespace
}  // namespace fdma::zoh

namespace fdma {

const zoh::GpuIncrementalTopk& with_cuda::incremental_topk() {
  static_assert(sizeof(int2) == sizeof(Interval));
  static const zoh::CudaIncrementalTopk topk;
  return topk;
}

}  // namespace fdma
