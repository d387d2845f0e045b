// A query row is combined by 1, 4 or 16 warps, by how many partials it has: a row of decode has
// dozens of them and little company, a row of prefill a few. Every warp reads all lse of the row
// (lanes over partials), so that each knows the largest one and the sum without waiting for others;
// it then adds up its own partials, every kWarps-th, lanes over columns, and the sums of the warps
// are added in their order. Weights are relative to the largest lse: the largest weight is 1, none
// overflows, and a row of which one partial has all keys comes out as that partial.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "sm90/combine_partials.hpp"

namespace fdma::sm90 {
namespace {

constexpr int kWarpSize = 32;
constexpr int kLaneColumns = 4;
constexpr int kWarpColumns = kWarpSize * kLaneColumns;
constexpr int kLoadsInFlight = 8;

__device__ __forceinline__ void store_columns(__nv_bfloat16* to, const float4& x) {
  const __nv_bfloat162 pairs[2] = {__floats2bfloat162_rn(x.x, x.y),
                                   __floats2bfloat162_rn(x.z, x.w)};
  *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(pairs);
}
__device__ __forceinline__ void store_columns(__half* to, const float4& x) {
  const __half2 pairs[2] = {__floats2half2_rn(x.x, x.y), __floats2half2_rn(x.z, x.w)};
  *reinterpret_cast<uint2*>(to) = *reinterpret_cast<const uint2*>(pairs);
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

/// One query row of one head: where its results go. q < 0: there is no such row.
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

/// The largest lse of a row and the sum of exp(lse - largest): 0 of a row without keys.
struct Total {
  float largest, sum;
};

__device__ __forceinline__ Total total_of(const float* lse, int num_partials, int lane) {
  float largest = -INFINITY;
  for (int i = lane; i < num_partials; i += kWarpSize) {
    largest = fmaxf(largest, __ldg(lse + std::int64_t{i} * kPartialRows));
  }
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
  }
  if (largest == -INFINITY) largest = 0.0f;
  float sum = 0.0f;
  for (int i = lane; i < num_partials; i += kWarpSize) {
    sum += __expf(__ldg(lse + std::int64_t{i} * kPartialRows) - largest);
  }
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    sum += __shfl_xor_sync(~0u, sum, distance);
  }
  return {largest, sum};
}

/// Adds partials first, first + step, .. to `sums`, this lane's columns from `column` on.
template <int kVectors>
__device__ __forceinline__ void add_partials(const CombineParams& p, const float* lse,
                                             const float* out, float largest, int num_partials,
                                             int first, int step, int lane,
                                             float4 (&sums)[kVectors]) {
  const std::int64_t partial_stride = std::int64_t{kPartialRows} * p.head_dim_v;
  for (int begin = first; begin < num_partials; begin += step * kWarpSize) {
    // The lse of one partial for each lane, then loads in groups.
    const int mine = begin + step * lane;
    const float mine_lse =
        mine < num_partials ? __ldg(lse + std::int64_t{mine} * kPartialRows) : -INFINITY;
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
                             ? __ldg(reinterpret_cast<const float4*>(from + column))
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

template <class T, int kVectors>
__device__ __forceinline__ void store_row(const CombineParams& p, const Row& row,
                                          const Total& total, const float4 (&sums)[kVectors],
                                          int lane) {
  const float inverse = total.sum == 0.0f ? 0.0f : 1.0f / total.sum;
  T* to = static_cast<T*>(p.out) + row.batch * p.out_batch_stride + row.q * p.out_row_stride +
          row.head * p.out_head_stride;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    const int column = v * kWarpColumns + lane * kLaneColumns;
    if (column >= p.head_dim_v) continue;
    const float4& x = sums[v];
    store_columns(to + column,
                  make_float4(x.x * inverse, x.y * inverse, x.z * inverse, x.w * inverse));
  }
  if (lane == 0 && p.lse != nullptr) {
    p.lse[row.batch * p.lse_batch_stride + row.head * p.lse_head_stride +
          row.q * p.lse_row_stride] =
        total.sum == 0.0f ? -INFINITY : total.largest + logf(total.sum);
  }
}

/// kWarps warps to a row; with one, kRows rows to a block. Blocks: x tile rows, y their rows.
template <class T, int kVectors, int kWarps, int kRows>
__global__ void __launch_bounds__(kWarps* kRows* kWarpSize)
    combine_partials_kernel(const CombineParams p) {
  static_assert(kWarps == 1 || kRows == 1, "warps of a row meet at the barrier of the block");
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

template <class T, int kVectors, int kWarps, int kRows>
cudaError_t launch(const CombineParams& p, cudaStream_t stream) {
  // Rows past the longest length are not even looked at.
  const int rows = std::min(p.block_q, p.max_q_len) * p.heads_per_tile;
  const dim3 blocks(static_cast<unsigned>(p.num_rows),
                    static_cast<unsigned>((rows + kRows - 1) / kRows));
  combine_partials_kernel<T, kVectors, kWarps, kRows>
      <<<blocks, kWarps * kRows * kWarpSize, 0, stream>>>(p);
  return cudaGetLastError();
}

template <class T, int kVectors>
cudaError_t launch_for(const CombineParams& p, cudaStream_t stream) {
  if (p.max_partials <= 4) return launch<T, kVectors, 1, 4>(p, stream);
  if (p.max_partials <= 16) return launch<T, kVectors, 4, 1>(p, stream);
  return launch<T, kVectors, 16, 1>(p, stream);
}

template <class T>
cudaError_t launch_for(const CombineParams& p, cudaStream_t stream) {
  return p.head_dim_v <= kWarpColumns ? launch_for<T, 1>(p, stream) : launch_for<T, 2>(p, stream);
}

}  // namespace

cudaError_t combine_partials(const CombineParams& params, cudaStream_t stream) {
  if (params.num_rows == 0 || params.max_q_len == 0) return cudaSuccess;
  return params.is_bfloat16 ? launch_for<__nv_bfloat16>(params, stream)
                            : launch_for<__half>(params, stream);
}

}  // namespace fdma::sm90
