// The kernels before and after the main backward kernel. prepare_kernel computes lse and deltas of
// each query; store_kernel stores dQ from its accumulators. Both are bound by memory.
#include <algorithm>

#include "cuda/gradient_rows.cuh"
#include "cuda/lane_sums.cuh"
#include "cuda/out_low.cuh"
#include "cuda/query_passes.hpp"
#include "cuda/work_tile.hpp"
#include "plan/thread_cells.hpp"
#include "ptx/grid.cuh"
#include "ptx/loads.cuh"
#include "ptx/warpgroup.cuh"

namespace fdma::gpu {
namespace {

constexpr unsigned kMaxGridY = 65535;

/// Eight elements of a row, as pairs.
struct Eight {
  float2 pairs[4];
};
template <class T>
__device__ __forceinline__ Eight widen(const uint4& x) {
  return {{unpack<T>(x.x), unpack<T>(x.y), unpack<T>(x.z), unpack<T>(x.w)}};
}

__device__ __forceinline__ float dot_of_8(const Eight& a, const Eight& b) {
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    sum = fmaf(a.pairs[i].x, b.pairs[i].x, fmaf(a.pairs[i].y, b.pairs[i].y, sum));
  }
  return sum;
}

__device__ __forceinline__ int length_of(const QueryParams& p, int batch) {
  const int length = __ldg(p.lengths + batch).x;
  return p.q_lens == nullptr ? length : min(max(__ldg(p.q_lens + batch), 0), length);
}

/// How the threads of a block share its rows, for kDim columns. kLanes lanes share a row, and each
/// has kChunks times 16 bytes of it in each of kRows rows, all in flight at once. With one row the
/// work done once per thread, 300 instructions, would bound the kernel instead of memory; with four
/// the registers would.
template <int kDim>
struct PrepareLayout {
  static constexpr int kThreads = 256;
  static constexpr int kLanes = kDim < 128 ? kDim / 8 : 16;
  static constexpr int kChunks = kDim / 8 / kLanes;
  static constexpr int kBlocks = kChunks > 1 ? 3 : 4;  ///< per multiprocessor, limited by registers
  static constexpr int kRows = 2;
  static constexpr int kBlockRows = kThreads / kLanes * kRows;
  static constexpr int kShare = kLanes / kRows;  ///< lanes that end with the sum of a row
  static constexpr int kZeroVectors = 2048;      ///< of 16 bytes, per block that fills with zeros
  static_assert(kTileKeys % kBlockRows == 0 && kTileKeys * kDim / 4 % kZeroVectors == 0);
};

/// A thread's data: 16 bytes of each chunk of each of its rows.
template <int kDim>
using RowChunks = uint4[PrepareLayout<kDim>::kRows][PrepareLayout<kDim>::kChunks];

/// Loads rows from `row` on. Elements beyond q_len or the columns are zeros.
template <class T, int kDim>
__device__ __forceinline__ void load_rows(const RowsView& rows, int batch, int head, int row,
                                          int column, int q_len, int head_dim,
                                          RowChunks<kDim>& chunks) {
  using Layout = PrepareLayout<kDim>;
  const T* from = rows.strides.head_of(static_cast<const T*>(rows.data), batch, head) +
                  row * rows.strides.row + column;
#pragma unroll
  for (int i = 0; i < Layout::kRows; ++i) {
#pragma unroll
    for (int c = 0; c < Layout::kChunks; ++c) {
      const int ahead = c * Layout::kLanes * 8;
      chunks[i][c] = make_uint4(0, 0, 0, 0);
      if (row + i < q_len && column + ahead < head_dim) {
        chunks[i][c] = __ldcg(reinterpret_cast<const uint4*>(from + ahead));
      }
    }
    from += rows.strides.row;
  }
}

/// Zeroes a block's part of the accumulators of zeroed_heads of a batch element.
template <int kDim>
__device__ __forceinline__ void zero_accum(const QueryPlaces& places, int batch, int block) {
  using Layout = PrepareLayout<kDim>;
  auto* const sums =
      reinterpret_cast<float4*>(places.dq_accum + places.first_row(batch, 0) * kDim) +
      std::int64_t{block} * Layout::kZeroVectors + threadIdx.x;
#pragma unroll
  for (int i = 0; i < Layout::kZeroVectors; i += Layout::kThreads) {
    sums[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  }
}

// The first `zero_blocks` blocks write zeros, because memory is faster when it is first written and
// then read than when both happen at once. Each other block has kBlockRows rows of one head. Blocks
// with the same rows of all heads are neighbours.
template <class T, int kDim, bool kHasOutLow>
__global__ void __launch_bounds__(PrepareLayout<kDim>::kThreads, PrepareLayout<kDim>::kBlocks)
    prepare_kernel(const QueryParams p, int zero_blocks) {
  using Layout = PrepareLayout<kDim>;
  constexpr float kLog2E = 1.44269504088896340736f;
  ptx::let_next_grid_start();
  ptx::wait_for_grid_before();
  const int block = static_cast<int>(blockIdx.x) - zero_blocks;
  const int thread = static_cast<int>(threadIdx.x), lane = thread % Layout::kLanes;
  const int heads = p.places.heads_q, head = block % heads;
  const int first_row =
      (block / heads * (Layout::kThreads / Layout::kLanes) + thread / Layout::kLanes) *
      Layout::kRows;
  const int row = first_row + lane / Layout::kShare;  // the row whose sum this lane ends with
  const bool is_first = lane % Layout::kShare == 0;   // and this lane writes it
  if (block == 0 && blockIdx.y == 0 && thread < kNumCounters) p.next_tile_groups[thread] = 0;
  if (block < 0) {
#pragma unroll 1
    for (int batch = static_cast<int>(blockIdx.y); batch < p.zeroed_elements;
         batch += static_cast<int>(gridDim.y)) {
      zero_accum<kDim>(p.places, batch, static_cast<int>(blockIdx.x));
    }
    return;
  }
  for (int batch = static_cast<int>(blockIdx.y); batch < p.batch;
       batch += static_cast<int>(gridDim.y)) {
    const int q_len = length_of(p, batch);
    const bool is_read = is_first && row < q_len;
    const float lse = ptx::load_if(is_read, p.lse.place(batch, head, row), -INFINITY);
    const float dlse =
        ptx::load_if(is_read && p.dlse.data != nullptr, p.dlse.place(batch, head, row), 0.0f);
    RowChunks<kDim> out, dout, out_low;
    load_rows<T, kDim>(p.out, batch, head, first_row, lane * 8, q_len, p.head_dim_v, out);
    load_rows<T, kDim>(p.dout, batch, head, first_row, lane * 8, q_len, p.head_dim_v, dout);
    if constexpr (kHasOutLow) {
      load_rows<T, kDim>(p.out_low, batch, head, first_row, lane * 8, q_len, p.head_dim_v, out_low);
    }
    float deltas[Layout::kRows];
#pragma unroll
    for (int i = 0; i < Layout::kRows; ++i) {
      deltas[i] = 0.0f;
#pragma unroll
      for (int c = 0; c < Layout::kChunks; ++c) {
        const Eight gradient = widen<T>(dout[i][c]);
        deltas[i] += dot_of_8(widen<T>(out[i][c]), gradient);
        if constexpr (kHasOutLow) deltas[i] += dot_of_8(widen<T>(out_low[i][c]), gradient);
      }
    }
    const float delta = sum_each<Layout::kLanes>(deltas, lane);
    if (!is_first) continue;
    const std::int64_t at = p.places.first_row(batch, head) + row;
    const bool is_dead = lse == -INFINITY;
    p.places.lse_log2[at] = is_dead ? INFINITY : lse * kLog2E;
    p.places.deltas[at] = is_dead ? 0.0f : p.corrects_delta ? delta : delta - dlse;
    if (p.corrects_delta) {
      reinterpret_cast<float2*>(p.places.missing)[at] = make_float2(is_dead ? 0.0f : -dlse, 0.0f);
    }
    if (p.dq_semaphores != nullptr && row % kSumRows == 0) {
      int2* const dq_semaphores = reinterpret_cast<int2*>(p.dq_semaphores) + at / kSumRows;
      dq_semaphores[0] = dq_semaphores[p.num_rows() / kSumRows] = make_int2(0, 0);
    }
  }
}

constexpr int kAddThreads = 256;

__global__ void __launch_bounds__(kAddThreads) add_missing_kernel(const QueryParams p) {
  ptx::let_next_grid_start();
  ptx::wait_for_grid_before();
  const std::int64_t at = std::int64_t{blockIdx.x} * kAddThreads + threadIdx.x;
  if (at >= p.num_rows()) return;
  const float2 missing = __ldcg(reinterpret_cast<const float2*>(p.places.missing) + at);
  p.places.deltas[at] += missing.x + missing.y;
}

// Each block stores 64 rows of one head, with one warpgroup.
template <class T, int kDim>
__global__ void __launch_bounds__(kWarpgroupThreads) store_kernel(const QueryParams p) {
  ptx::let_next_grid_start();
  ptx::wait_for_grid_before();
  const int heads = p.places.heads_q, thread = static_cast<int>(threadIdx.x);
  const int head = static_cast<int>(blockIdx.x) % heads;
  const int first_row = static_cast<int>(blockIdx.x) / heads * kSumRows;
  for (int batch = static_cast<int>(blockIdx.y); batch < p.batch;
       batch += static_cast<int>(gridDim.y)) {
    const int q_len = length_of(p, batch);
    if (first_row >= q_len) continue;
    const std::int64_t at = p.places.first_row(batch, head) + first_row;
    const float* sums = p.places.dq_accum + at * kDim;
    float x[kDim / 2];
#pragma unroll
    for (int i = 0; i < kDim / 8; ++i) {
      const float4 four =
          __ldcg(reinterpret_cast<const float4*>(sums + sum_place<kDim>(thread, 8 * i)));
      x[4 * i] = four.x;
      x[4 * i + 1] = four.y;
      x[4 * i + 2] = four.z;
      x[4 * i + 3] = four.w;
    }
    store_gradient_rows<T, kDim>(p.dq, p.dq.strides.head_offset(batch, head), x, p.scale,
                                 first_row + accumulator_cell(thread, 0).row, q_len, 0, p.head_dim,
                                 thread % 32);
  }
}

dim3 blocks_of(const QueryParams& p, int rows) {
  return {static_cast<unsigned>(p.places.padded_q_len / rows * p.places.heads_q),
          std::min(static_cast<unsigned>(p.batch), kMaxGridY)};
}

template <class T, int kDim>
cudaError_t launch_prepare(const QueryParams& params, cudaStream_t stream) {
  using Layout = PrepareLayout<kDim>;
  const auto kernel = params.out_low.data != nullptr ? prepare_kernel<T, kDim, true>
                                                     : prepare_kernel<T, kDim, false>;
  const int zero_blocks = params.places.padded_q_len / kTileKeys *
                          (kTileKeys * kDim / 4 / Layout::kZeroVectors) * params.zeroed_heads;
  dim3 blocks = blocks_of(params, Layout::kBlockRows);
  blocks.x += static_cast<unsigned>(zero_blocks);
  return ptx::launch_overlapping(kernel, blocks, dim3(Layout::kThreads), 0, stream, params,
                                 zero_blocks);
}

}  // namespace

template <class T>
cudaError_t prepare_queries(const QueryParams& params, cudaStream_t stream) {
  return params.dim == 64    ? launch_prepare<T, 64>(params, stream)
         : params.dim == 128 ? launch_prepare<T, 128>(params, stream)
                             : launch_prepare<T, 256>(params, stream);
}

cudaError_t add_missing(const QueryParams& params, cudaStream_t stream) {
  const auto num_blocks =
      static_cast<unsigned>((params.num_rows() + kAddThreads - 1) / kAddThreads);
  return ptx::launch_overlapping(add_missing_kernel, dim3(num_blocks), dim3(kAddThreads), 0, stream,
                                 params);
}

template <class T>
cudaError_t store_query_gradients(const QueryParams& params, cudaStream_t stream) {
  const auto kernel = params.dim == 64    ? store_kernel<T, 64>
                      : params.dim == 128 ? store_kernel<T, 128>
                                          : store_kernel<T, 256>;
  return ptx::launch_overlapping(kernel, blocks_of(params, kSumRows), dim3(kWarpgroupThreads), 0,
                                 stream, params);
}

template cudaError_t prepare_queries<__nv_bfloat16>(const QueryParams&, cudaStream_t);
template cudaError_t prepare_queries<__half>(const QueryParams&, cudaStream_t);
template cudaError_t store_query_gradients<__nv_bfloat16>(const QueryParams&, cudaStream_t);
template cudaError_t store_query_gradients<__half>(const QueryParams&, cudaStream_t);

}  // namespace fdma::gpu
