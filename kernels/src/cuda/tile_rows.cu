// Kernels that make tile rows. One block for each batch element counts the tiles of each row, sorts
// the rows by counting (1024 classes) and writes each row to its place. The kernel may start while
// the one before, possibly the forward kernel of the last call, is still running. Before that one
// has ended it computes only what follows from the plan, and writes nothing.
//
// For deterministic calls the rows are instead numbered in accumulation order (closed_form_dq_order.hpp).
#include <algorithm>

#include "cuda/tile_rows.hpp"
#include "ptx/grid.cuh"
#include "ptx/warp_sums.cuh"

namespace fdma::gpu {
namespace {

constexpr int kThreads = 512;
constexpr int kClasses = 1024;
constexpr int kPerThread = kClasses / kThreads;

constexpr int kTile = 128;            // rows and columns
constexpr int kSharedBorders = 4096;  // rows search longer lists in global memory

__device__ void set_tiles(const ClosedFormWalk& walk, int first_document, int last_document,
                          TileRowTiles& tiles) {
  tiles.num_tiles = walk.num_tiles();
  tiles.first_document = first_document;
  tiles.last_document = last_document;
  tiles.tile_runs[0] = walk.tile_run(0);
  tiles.tile_runs[1] = walk.tile_run(1);
}

// Tile row `index` of a batch element.
__device__ TileRow tile_row(const PlanArrays& plan, const ElementClosedForm& element,
                            const int2& lengths, int index) {
  TileRow row{};
  row.tiles.q_tile = index;
  const int num_rows = plan.is_backward ? lengths.y : lengths.x;
  const int begin = index * plan.block_q, end = min(begin + plan.block_q, num_rows);
  if (begin >= end) {
    row.tiles.num_tiles = kNoRow;
    return row;
  }
  if (plan.is_backward) {
    const ClosedFormColumns columns(element.closed_form, element.borders, lengths.x, lengths.y);
    const int first = columns.document(begin), last = columns.document(end - 1);
    set_tiles(columns.walk(begin, end, first, last, kTile), first, last, row.tiles);
    row.band = columns.band(begin, begin + kTile, first, last);
    return row;
  }
  const ClosedFormRows rows(element.closed_form, element.borders, lengths.x, lengths.y);
  const int first = rows.document(begin), last = rows.document(end - 1);
  set_tiles(ClosedFormWalk(rows, begin, end, first, last, kTile), first, last, row.tiles);
  if (plan.pack_shift == 0) row.band = rows.band(begin, first, last);
  return row;
}

// The closed-form mask of a batch element, with its borders in shared memory where there is room.
// All threads call it, and a barrier has to follow.
__device__ ElementClosedForm shared_closed_form(const PlanArrays& plan,
                                                const RunTimeLengths& run_time, int b,
                                                std::int32_t* shared_borders) {
  ElementClosedForm element = element_closed_form(plan, run_time, b);
  const int num_borders = element.closed_form.num_borders;
  if (num_borders > kSharedBorders) return element;
  for (int i = static_cast<int>(threadIdx.x); i < num_borders; i += kThreads) {
    shared_borders[i] = element.borders[i];
  }
  element.borders = shared_borders;
  return element;
}

__global__ void zero_counter_kernel(std::int32_t* counter) {
  ptx::let_next_grid_start();
  ptx::wait_for_grid_before();
  *counter = 0;
}

__global__ void __launch_bounds__(kThreads)
    order_tile_rows_kernel(const PlanArrays plan, const RunTimeLengths run_time, TileRow* all_rows,
                           std::int32_t* counter) {
  __shared__ int counts[kClasses];
  __shared__ int sums[kThreads / 32];
  __shared__ std::int32_t shared_borders[kSharedBorders];
  ptx::let_next_grid_start();
  const bool reads_tensors =
      run_time.q_lens != nullptr || run_time.kv_lens != nullptr || run_time.cu_seqlens != nullptr;
  if (reads_tensors) ptx::wait_for_grid_before();
  const int b = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int2 lengths = lengths_of(plan, run_time, b);
  const ElementClosedForm element = shared_closed_form(plan, run_time, b, shared_borders);
  const int num_rows = plan.max_tile_rows;
  const int most = ((plan.is_backward ? lengths.x : lengths.y) + kTile - 1) / kTile;
  for (int i = thread; i < kClasses; i += kThreads) counts[i] = 0;
  __syncthreads();
  // Class 0 has the longest rows, the last class those that do not exist.
  const auto class_of = [&](int num_tiles) {
    if (num_tiles < 0) return kClasses - 1;
    return static_cast<int>((kClasses - 2) -
                            static_cast<long long>(num_tiles) * (kClasses - 2) / max(most, 1));
  };
  TileRow own_row{};  // the first of this thread's rows
  for (int i = thread; i < num_rows; i += kThreads) {
    const TileRow row = tile_row(plan, element, lengths, i);
    if (i == thread) own_row = row;
    atomicAdd(counts + class_of(row.tiles.num_tiles), 1);
  }
  __syncthreads();
  // counts <- number of rows in earlier classes.
  int own[kPerThread], sum = 0;
  for (int i = 0; i < kPerThread; ++i) {
    own[i] = sum;
    sum += counts[thread * kPerThread + i];
  }
  const int before = ptx::sum_up_to(sum, thread % 32);
  if (thread % 32 == 31) sums[thread / 32] = before;
  __syncthreads();
  int base = before - sum;
  for (int warp = 0; warp < thread / 32; ++warp) base += sums[warp];
  for (int i = 0; i < kPerThread; ++i) counts[thread * kPerThread + i] = base + own[i];
  __syncthreads();
  ptx::wait_for_grid_before();
  if (b == 0 && thread == 0) *counter = 0;
  TileRow* out = all_rows + static_cast<std::int64_t>(b) * num_rows;
  for (int i = thread; i < num_rows; i += kThreads) {
    const TileRow row = i == thread ? own_row : tile_row(plan, element, lengths, i);
    out[atomicAdd(counts + class_of(row.tiles.num_tiles), 1)] = row;
  }
}

// Orders rows that some query sees by descending key tile, others after them. Then computes the
// offsets of query tiles.
__global__ void __launch_bounds__(kThreads)
    number_tile_rows_kernel(const PlanArrays plan, const RunTimeLengths run_time, TileRow* all_rows,
                            DqSemaphoreOffsets* all_offsets, int num_q_tiles,
                            std::int32_t* counter) {
  __shared__ int seen_of_warps[kThreads / 32];
  __shared__ std::int32_t shared_borders[kSharedBorders];
  ptx::let_next_grid_start();
  ptx::wait_for_grid_before();
  const int b = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  if (b == 0 && thread == 0) *counter = 0;
  const int2 lengths = lengths_of(plan, run_time, b);
  const ElementClosedForm element = shared_closed_form(plan, run_time, b, shared_borders);
  __syncthreads();
  const int num_rows = plan.max_tile_rows;
  TileRow* rows = all_rows + static_cast<std::int64_t>(b) * num_rows;
  int num_seen = 0;
  for (int first = 0; first < num_rows; first += kThreads) {
    const int i = first + thread;
    TileRow row{};
    if (i < num_rows) row = tile_row(plan, element, lengths, num_rows - 1 - i);
    const bool is_seen = row.tiles.num_tiles > 0;
    const unsigned seen = __ballot_sync(~0u, is_seen);
    if (thread % 32 == 0) seen_of_warps[thread / 32] = __popc(seen);
    __syncthreads();
    int before = num_seen + __popc(seen & ((1u << thread % 32) - 1));
    for (int warp = 0; warp < kThreads / 32; ++warp) {
      if (warp < thread / 32) before += seen_of_warps[warp];
      num_seen += seen_of_warps[warp];
    }
    if (i < num_rows) rows[is_seen ? before : num_rows - 1 - (i - before)] = row;
    __syncthreads();
  }
  const ClosedFormColumns columns(element.closed_form, element.borders, lengths.x, lengths.y);
  const int num_far = first_after(
      0, num_seen, [&](int n) { return columns.is_near(rows[n].tiles.q_tile * plan.block_q); });
  const auto tile_run = [&](int n) {
    const ClosedFormWalk::TileRun& whole = rows[n].tiles.tile_runs[1];
    return DqOrderRun{whole.first, whole.end};
  };
  for (int tile = thread; tile < num_q_tiles; tile += kThreads) {
    all_offsets[static_cast<std::int64_t>(b) * num_q_tiles + tile] =
        dq_semaphore_offsets(tile_run, num_far, num_seen, tile);
  }
}

}  // namespace

cudaError_t number_tile_rows(const PlanArrays& plan, const RunTimeLengths& lengths, int batch,
                             TileRow* rows, DqSemaphoreOffsets* offsets, int num_q_tiles,
                             std::int32_t* counter, cudaStream_t stream) {
  return ptx::launch_overlapping(number_tile_rows_kernel, dim3(static_cast<unsigned>(batch)),
                                 dim3(kThreads), 0, stream, plan, lengths, rows, offsets,
                                 num_q_tiles, counter);
}

cudaError_t order_tile_rows(const PlanArrays& plan, const RunTimeLengths& lengths, int batch,
                            TileRow* rows, std::int32_t* counter, cudaStream_t stream) {
  return ptx::launch_overlapping(order_tile_rows_kernel, dim3(static_cast<unsigned>(batch)),
                                 dim3(kThreads), 0, stream, plan, lengths, rows, counter);
}

cudaError_t zero_counter(std::int32_t* counter, cudaStream_t stream) {
  return ptx::launch_overlapping(zero_counter_kernel, dim3(1), dim3(1), 0, stream, counter);
}

}  // namespace fdma::gpu
