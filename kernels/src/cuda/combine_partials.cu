// Two kernels. If rows are many, one warp combines a row, or four warps if the row has more than a
// few partials; lanes run over columns. If rows are few and partials many, as in decode, a block
// has 32 columns of a row and eight lanes per partial, so that nothing waits for a second round of
// loads.
//
// Every warp reads all lse of its row (lanes run over partials), so that each knows the largest one
// and the sum without waiting for others. It then sums its own partials, and the sums of the warps
// are added in their order. Weights are relative to the largest lse. The largest weight is
// therefore 1, none overflows, and a row whose keys are all in one partial equals that partial.
#include <algorithm>

#include "cuda/combine_partials.hpp"
#include "cuda/out_low.cuh"
#include "cuda/pair_values.cuh"
#include "ptx/grid.cuh"
#include "ptx/warpgroup.cuh"

namespace fdma::gpu {
namespace {

constexpr int kWarpSize = 32;
constexpr int kLaneColumns = 4;
constexpr int kWarpColumns = kWarpSize * kLaneColumns;
constexpr int kLoadsInFlight = 8;
constexpr int kFewPartials = 8;  ///< one warp has all their loads in flight at once
constexpr int kFewRows = 64;

/// Stores four columns of out, and their low halves where these are wanted. `at` counts elements
/// from the first of out.
template <class T>
__device__ __forceinline__ void store_columns(const CombineParams& p, std::int64_t at,
                                              const float4& x) {
  *reinterpret_cast<uint2*>(static_cast<T*>(p.out) + at) =
      make_uint2(ptx::pack<T>(x.x, x.y), ptx::pack<T>(x.z, x.w));
  if (p.out_low == nullptr) return;
  *reinterpret_cast<uint2*>(static_cast<T*>(p.out_low) + at) =
      make_uint2(pack_out_low<T>(x.x, x.y), pack_out_low<T>(x.z, x.w));
}

__device__ __forceinline__ void add_scaled(float4& sum, float weight, const float4& x) {
  sum.x = fmaf(weight, x.x, sum.x);
  sum.y = fmaf(weight, x.y, sum.y);
  sum.z = fmaf(weight, x.z, sum.z);
  sum.w = fmaf(weight, x.w, sum.w);
}

__device__ __forceinline__ SplitRow tile_row(const CombineParams& p, int index) {
  if (p.split_rows != nullptr) return p.split_rows[index];
  const SplitGrid& grid = p.grid;
  const int head_set = index % grid.num_head_sets;
  const int q_tile = index / grid.num_head_sets % grid.num_q_tiles;
  const int batch = index / grid.num_head_sets / grid.num_q_tiles;
  const int sets = head_sets_of_group(p.group_size, p.heads_per_tile);
  const int head = head_set / sets * p.group_size + head_set % sets * p.heads_per_tile;
  return {batch, head, q_tile, grid.partial_of(batch, q_tile, head_set, 0), grid.num_splits};
}

/// One query row of one head, to which results go. q < 0: there is no such row.
struct Row {
  std::int32_t batch, q, head;
};

__device__ __forceinline__ Row row_of(const CombineParams& p, const SplitRow& tile, int row) {
  const int in_set = row % p.heads_per_tile;
  const int q = tile.q_tile * p.block_q + row / p.heads_per_tile;
  int q_len = __ldg(&p.lengths[tile.batch].x);
  if (p.q_lens != nullptr) q_len = min(q_len, __ldg(p.q_lens + tile.batch));
  const bool exists =
      row < kPartialRows && q < q_len && tile.head % p.group_size + in_set < p.group_size;
  return {tile.batch, exists ? q : -1, tile.head + in_set};
}

/// The largest lse of a row and the sum of exp(lse - largest), which is 0 for a row without keys.
struct Total {
  float largest, sum;
};

__device__ __forceinline__ float lse_of(const float* lse, int partial, int num_partials) {
  return partial < num_partials ? lse[std::int64_t{partial} * kPartialRows] : -INFINITY;
}

__device__ __forceinline__ Total total_of(const float* lse, int num_partials, int lane) {
  constexpr int kAtOnce = 5;  // 160 partials: more than one for each multiprocessor
  float first[kAtOnce];
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) first[i] = lse_of(lse, lane + i * kWarpSize, num_partials);
  float largest = -INFINITY;
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) largest = fmaxf(largest, first[i]);
  for (int i = lane + kAtOnce * kWarpSize; i < num_partials; i += kWarpSize) {
    largest = fmaxf(largest, lse_of(lse, i, num_partials));
  }
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
  }
  if (largest == -INFINITY) largest = 0.0f;
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kAtOnce; ++i) sum += __expf(first[i] - largest);
  for (int i = lane + kAtOnce * kWarpSize; i < num_partials; i += kWarpSize) {
    sum += __expf(lse_of(lse, i, num_partials) - largest);
  }
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(~0u, sum, distance);
  }
  return {largest, sum};
}

/// Adds partials first, first + step, .. to `sums`, which are this lane's columns from `column` on.
template <int kVectors>
__device__ __forceinline__ void add_partials(const CombineParams& p, const float* lse,
                                             const float* out, float largest, int num_partials,
                                             int first, int step, int lane,
                                             float4 (&sums)[kVectors]) {
  const std::int64_t partial_stride = std::int64_t{kPartialRows} * p.head_dim_v;
  for (int begin = first; begin < num_partials; begin += step * kWarpSize) {
    // The lse of one partial for each lane, then loads in groups.
    const int mine = begin + step * lane;
    const float mine_lse = lse_of(lse, mine, num_partials);
    const int count = min(kWarpSize, (num_partials - begin + step - 1) / step);
    for (int i = 0; i < count; i += kLoadsInFlight) {
      float weights[kLoadsInFlight];
      float4 values[kLoadsInFlight][kVectors];
#pragma unroll
      for (int j = 0; j < kLoadsInFlight; ++j) {
        const float its_lse = __shfl_sync(~0u, mine_lse, (i + j) % kWarpSize);
        const bool is_there = i + j < count && its_lse != -INFINITY;
        weights[j] = is_there ? __expf(its_lse - largest) : 0.0f;
        const float* from = out + (begin + std::int64_t{step} * (i + j)) * partial_stride;
#pragma unroll
        for (int v = 0; v < kVectors; ++v) {
          const int column = v * kWarpColumns + lane * kLaneColumns;
          values[j][v] = is_there && column < p.head_dim_v
                             ? *reinterpret_cast<const float4*>(from + column)
                             : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
        }
      }
#pragma unroll
      for (int j = 0; j < kLoadsInFlight; ++j) {
#pragma unroll
        for (int v = 0; v < kVectors; ++v) add_scaled(sums[v], weights[j], values[j][v]);
      }
    }
  }
}

__device__ __forceinline__ void store_lse(const CombineParams& p, const Row& row,
                                          const Total& total) {
  if (p.lse.data == nullptr) return;
  p.lse.at(row.batch, row.head, row.q) =
      total.sum == 0.0f ? -INFINITY : total.largest + logf(total.sum);
}

/// What a row's sum of weighted outputs is multiplied by.
template <class T>
__device__ __forceinline__ float factor_of(const CombineParams& p, const Row& row,
                                           const Total& total) {
  if (total.sum == 0.0f) return 0.0f;
  if (p.sinks.data == nullptr) return 1.0f / total.sum;
  const float sink = value_at<T>(p.sinks, p.sinks.offset(row.batch, row.head, row.q));
  return 1.0f / (total.sum + __expf(sink - total.largest));
}

/// Offset of a row in elements from the first of out.
__device__ __forceinline__ std::int64_t first_of_row(const CombineParams& p, const Row& row) {
  return p.out_strides.offset(row.batch, row.q, row.head);
}

template <class T, int kVectors>
__device__ __forceinline__ void store_row(const CombineParams& p, const Row& row,
                                          const Total& total, const float4 (&sums)[kVectors],
                                          int lane) {
  const float inverse = factor_of<T>(p, row, total);
  const std::int64_t at = first_of_row(p, row);
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = v * kWarpColumns + lane * kLaneColumns;
    if (column >= p.head_dim_v) continue;
    const float4& x = sums[v];
    store_columns<T>(p, at + column,
                     make_float4(x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse));
  }
  if (lane == 0) store_lse(p, row, total);
}

__device__ __forceinline__ void add_lanes(float4& x, int distance) {
  x.x += __shfl_xor_sync(~0u, x.x, distance);
  x.y += __shfl_xor_sync(~0u, x.y, distance);
  x.z += __shfl_xor_sync(~0u, x.z, distance);
  x.w += __shfl_xor_sync(~0u, x.w, distance);
}

constexpr int kColumnThreads = 256;
constexpr int kPartialLanes = 8;  ///< lanes that share a partial
constexpr int kBlockColumns = kPartialLanes * kLaneColumns;
constexpr int kPartialsAtOnce = kColumnThreads / kPartialLanes;

/// Combines few rows of many partials. Blocks: x tile rows, y their rows, z columns.
template <class T>
__global__ void __launch_bounds__(kColumnThreads) combine_columns_kernel(const CombineParams p) {
  constexpr int kRounds = 5;  // 160 partials without waiting
  constexpr int kWarps = kColumnThreads / kWarpSize;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % kWarpSize;
  const SplitRow tile = tile_row(p, static_cast<int>(blockIdx.x));
  ptx::wait_for_grid_before();  // the grid before writes the partial results
  const Row row = row_of(p, tile, static_cast<int>(blockIdx.y));
  if (row.q < 0) return;
  const std::int64_t first = std::int64_t{tile.first_partial} * kPartialRows + blockIdx.y;
  const float* lse = p.partial_lse + first;
  const int column =
      static_cast<int>(blockIdx.z) * kBlockColumns + thread % kPartialLanes * kLaneColumns;
  const float* out = p.partial_out + first * p.head_dim_v + column;
  const std::int64_t partial_stride = std::int64_t{kPartialRows} * p.head_dim_v;

  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  Total total{};
  for (int begin = thread / kPartialLanes; begin - thread / kPartialLanes < tile.num_partials;
       begin += kRounds * kPartialsAtOnce) {
    float mine[kRounds];
    float4 values[kRounds];
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      const int partial = begin + i * kPartialsAtOnce;
      mine[i] = lse_of(lse, partial, tile.num_partials);
      // Loaded without waiting for its lse. Values that are not meant to be read are not used.
      values[i] = partial < tile.num_partials && column < p.head_dim_v
                      ? *reinterpret_cast<const float4*>(out + partial * partial_stride)
                      : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
    if (begin == thread / kPartialLanes) total = total_of(lse, tile.num_partials, lane);
#pragma unroll
    for (int i = 0; i < kRounds; ++i) {
      if (mine[i] != -INFINITY) add_scaled(sum, __expf(mine[i] - total.largest), values[i]);
    }
  }
#pragma unroll
  for (int distance = kPartialLanes; distance < kWarpSize; distance *= 2) add_lanes(sum, distance);
  __shared__ float4 shared[kWarps][kPartialLanes];
  if (lane < kPartialLanes) shared[thread / kWarpSize][lane] = sum;
  __syncthreads();
  if (thread >= kPartialLanes) return;
#pragma unroll
  for (int other = 1; other < kWarps; ++other) add_scaled(sum, 1.0f, shared[other][lane]);
  if (column < p.head_dim_v) {
    const float inverse = factor_of<T>(p, row, total);
    store_columns<T>(
        p, first_of_row(p, row) + column,
        make_float4(sum.x * inverse, sum.y * inverse, sum.z * inverse, sum.w * inverse));
  }
  if (thread == 0 && blockIdx.z == 0) store_lse(p, row, total);
}

/// kWarps warps per row; with one warp, kRows rows per block. Blocks: x tile rows, y their rows.
template <class T, int kVectors, int kWarps, int kRows>
__global__ void __launch_bounds__(kWarps* kRows* kWarpSize)
    combine_partials_kernel(const CombineParams p) {
  static_assert(kWarps == 1 || kRows == 1, "warps of a row meet at the barrier of the block");
  ptx::wait_for_grid_before();  // the grid before writes the partial results
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
  const int warp = static_cast<int>(threadIdx.x) / kWarpSize;
  const SplitRow tile = tile_row(p, static_cast<int>(blockIdx.x));
  const int tile_row = static_cast<int>(blockIdx.y) * kRows + (kRows > 1 ? warp : 0);
  const Row row = row_of(p, tile, tile_row);
  if (row.q < 0) return;
  const std::int64_t first = std::int64_t{tile.first_partial} * kPartialRows + tile_row;
  const float* lse = p.partial_lse + first;
  const float* out = p.partial_out + first * p.head_dim_v;
  const int own = kWarps > 1 ? warp : 0;

  const Total total = total_of(lse, tile.num_partials, lane);
  float4 sums[kVectors] = {};
  add_partials(p, lse, out, total.largest, tile.num_partials, own, kWarps, lane, sums);
  if constexpr (kWarps > 1) {
    __shared__ float4 shared[kWarps][kVectors][kWarpSize];
#pragma unroll
    for (int v = 0; v < kVectors; ++v) shared[warp][v][lane] = sums[v];
    __syncthreads();
    if (warp > 0) return;
#pragma unroll 3
    for (int other = 1; other < kWarps; ++other) {
#pragma unroll
      for (int v = 0; v < kVectors; ++v) add_scaled(sums[v], 1.0f, shared[other][v][lane]);
    }
  }
  store_row<T>(p, row, total, sums, lane);
}

int rows_of_tile(const CombineParams& p) {
  // Rows past the longest length get no block.
  return std::min(p.block_q, p.max_q_len) * p.heads_per_tile;
}

template <class T, int kVectors, int kWarps, int kRows>
cudaError_t launch(const CombineParams& p, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(p.num_rows),
                    static_cast<unsigned>((rows_of_tile(p) + kRows - 1) / kRows));
  return ptx::launch_overlapping(combine_partials_kernel<T, kVectors, kWarps, kRows>, blocks,
                                 dim3(kWarps * kRows * kWarpSize), 0, stream, p);
}

template <class T>
cudaError_t launch_columns(const CombineParams& p, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(p.num_rows), static_cast<unsigned>(rows_of_tile(p)),
                    static_cast<unsigned>((p.head_dim_v + kBlockColumns - 1) / kBlockColumns));
  return ptx::launch_overlapping(combine_columns_kernel<T>, blocks, dim3(kColumnThreads), 0, stream,
                                 p);
}

template <class T, int kVectors>
cudaError_t launch_rows(const CombineParams& p, cudaStream_t stream) {
  return p.max_partials <= kFewPartials ? launch<T, kVectors, 1, 4>(p, stream)
                                        : launch<T, kVectors, 4, 1>(p, stream);
}

template <class T>
cudaError_t launch_for(const CombineParams& p, cudaStream_t stream) {
  if (p.max_partials > kFewPartials && std::int64_t{p.num_rows} * rows_of_tile(p) <= kFewRows) {
    return launch_columns<T>(p, stream);
  }
  return p.head_dim_v <= kWarpColumns ? launch_rows<T, 1>(p, stream) : launch_rows<T, 2>(p, stream);
}

}  // namespace

cudaError_t combine_partials(const CombineParams& params, cudaStream_t stream) {
  if (params.num_rows == 0 || params.max_q_len == 0) return cudaSuccess;
  return params.is_bfloat16 ? launch_for<__nv_bfloat16>(params, stream)
                            : launch_for<__half>(params, stream);
}

}  // namespace fdma::gpu
