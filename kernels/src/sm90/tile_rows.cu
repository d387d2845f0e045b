// One block for each batch element: counts the tiles of each row, sorts by counting (1024 classes),
// and writes each row to its place.
#include <algorithm>

#include "ptx/grid.cuh"
#include "sm90/tile_rows.hpp"

namespace fdma::sm90 {
namespace {

constexpr int kThreads = 512;
constexpr int kClasses = 1024;
constexpr int kPerThread = kClasses / kThreads;

constexpr int kSharedBorders = 4096;  // of longer lists rows search in global memory

__device__ TileRow tile_row(const PlanArrays& plan, const FormulaRows& rows, int q_tile,
                            int q_len) {
  TileRow row{};
  TileRowTiles& tiles = row.tiles;
  tiles.q_tile = q_tile;
  const int q_begin = q_tile * plan.block_q, q_end = min(q_begin + plan.block_q, q_len);
  if (q_begin >= q_end) {
    tiles.num_tiles = kNoRow;
    return row;
  }
  const int first = rows.document(q_begin), last = rows.document(q_end - 1);
  const FormulaWalk walk(rows, q_begin, q_end, first, last, 128);
  tiles.num_tiles = walk.num_tiles();
  tiles.first_document = first;
  tiles.last_document = last;
  tiles.stretches[0] = walk.stretch(0);
  tiles.stretches[1] = walk.stretch(1);
  if (plan.pack_shift == 0) row.band = rows.band(q_begin, first, last);
  return row;
}

__global__ void zero_counter_kernel(std::int32_t* counter) {
  ptx::let_next_grid_start();
  *counter = 0;
}

__global__ void __launch_bounds__(kThreads)
    order_tile_rows_kernel(const PlanArrays plan, const RunTimeLengths run_time, TileRow* all_rows,
                           std::int32_t* counter) {
  __shared__ int counts[kClasses];
  __shared__ int sums[kThreads / 32];
  __shared__ std::int32_t shared_borders[kSharedBorders];
  ptx::let_next_grid_start();
  const int b = static_cast<int>(blockIdx.x), thread = static_cast<int>(threadIdx.x);
  const int2 lengths = lengths_of(plan, run_time, b);
  const ElementFormula element = element_formula(plan, run_time, b);
  const int num_borders = element.formula.num_borders;
  if (num_borders <= kSharedBorders) {
    for (int i = thread; i < num_borders; i += kThreads) shared_borders[i] = element.borders[i];
  }
  const FormulaRows rows(element.formula,
                         num_borders <= kSharedBorders ? shared_borders : element.borders,
                         lengths.x, lengths.y);
  const int num_rows = plan.max_tile_rows;
  const int most = (lengths.y + 127) / 128;
  if (b == 0 && thread == 0) *counter = 0;
  for (int i = thread; i < kClasses; i += kThreads) counts[i] = 0;
  __syncthreads();
  // Class 0 has the longest rows; the last one those that are none.
  const auto class_of = [&](int num_tiles) {
    if (num_tiles < 0) return kClasses - 1;
    return static_cast<int>((kClasses - 2) -
                            static_cast<long long>(num_tiles) * (kClasses - 2) / max(most, 1));
  };
  TileRow own_row{};  // the first of this thread's
  for (int i = thread; i < num_rows; i += kThreads) {
    const TileRow row = tile_row(plan, rows, i, lengths.x);
    if (i == thread) own_row = row;
    atomicAdd(counts + class_of(row.tiles.num_tiles), 1);
  }
  __syncthreads();
  // counts <- number of rows in classes before.
  int own[kPerThread], sum = 0;
  for (int i = 0; i < kPerThread; ++i) {
    own[i] = sum;
    sum += counts[thread * kPerThread + i];
  }
  int before = sum;
  for (int distance = 1; distance < 32; distance *= 2) {
    const int other = __shfl_up_sync(~0u, before, distance);
    if (thread % 32 >= distance) before += other;
  }
  if (thread % 32 == 31) sums[thread / 32] = before;
  __syncthreads();
  int base = before - sum;
  for (int warp = 0; warp < thread / 32; ++warp) base += sums[warp];
  for (int i = 0; i < kPerThread; ++i) counts[thread * kPerThread + i] = base + own[i];
  __syncthreads();
  TileRow* out = all_rows + static_cast<std::int64_t>(b) * num_rows;
  for (int i = thread; i < num_rows; i += kThreads) {
    const TileRow row = i == thread ? own_row : tile_row(plan, rows, i, lengths.x);
    out[atomicAdd(counts + class_of(row.tiles.num_tiles), 1)] = row;
  }
}

}  // namespace

cudaError_t order_tile_rows(const PlanArrays& plan, const RunTimeLengths& lengths, int batch,
                            TileRow* rows, std::int32_t* counter, cudaStream_t stream) {
  order_tile_rows_kernel<<<batch, kThreads, 0, stream>>>(plan, lengths, rows, counter);
  return cudaGetLastError();
}

cudaError_t zero_counter(std::int32_t* counter, cudaStream_t stream) {
  zero_counter_kernel<<<1, 1, 0, stream>>>(counter);
  return cudaGetLastError();
}

}  // namespace fdma::sm90
