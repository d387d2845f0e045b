// The kernels before and after the main backward kernel: what it has to know of each query, and dQ
// from its sums. Both run at the speed of memory.
#include <algorithm>

#include "ptx/grid.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/backward_kernels.hpp"
#include "sm90/backward_rows.cuh"
#include "sm90/fragment.hpp"
#include "sm90/residual.cuh"

namespace fdma::sm90 {
namespace {

constexpr int kRowLanes = 16;  // that share a row
constexpr int kBlockRows = 16;
constexpr unsigned kMaxGridY = 65535;

/// Eight elements of a row, in pairs.
struct Eight {
  float2 pairs[4];
};
template <class T>
__device__ __forceinline__ Eight load_8(const T* from) {
  const uint4 x = __ldcg(reinterpret_cast<const uint4*>(from));
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

template <class T>
__device__ __forceinline__ const T* row_at(const RowsView& rows, int batch, int row, int head) {
  return static_cast<const T*>(rows.data) + batch * rows.batch_stride + row * rows.row_stride +
         head * rows.head_stride;
}

__device__ __forceinline__ int length_of(const QueryParams& p, int batch) {
  const int length = __ldg(p.lengths + batch).x;
  return p.q_lens == nullptr ? length : min(max(__ldg(p.q_lens + batch), 0), length);
}

// Blocks of 16 rows of one head, those of all heads side by side.
template <class T>
__global__ void __launch_bounds__(kRowLanes* kBlockRows) prepare_kernel(const QueryParams p) {
  constexpr float kLog2E = 1.44269504088896340736f;
  ptx::let_next_grid_start();
  ptx::wait_for_grid_before();
  const int lane = static_cast<int>(threadIdx.x) % kRowLanes;
  const int heads = p.places.heads_q;
  const int head = static_cast<int>(blockIdx.x) % heads;
  const int row =
      static_cast<int>(blockIdx.x) / heads * kBlockRows + static_cast<int>(threadIdx.x) / kRowLanes;
  if (blockIdx.x == 0 && blockIdx.y == 0 && threadIdx.x < kNumCounters)
    p.next_units[threadIdx.x] = 0;
  for (int batch = static_cast<int>(blockIdx.y); batch < p.batch;
       batch += static_cast<int>(gridDim.y)) {
    const std::int64_t at = p.places.first_row(batch, head) + row;
    float lse_log2 = INFINITY, delta = 0.0f, dlse = 0.0f;
    if (row < length_of(p, batch)) {
      const float lse = __ldcg(p.lse + batch * p.lse_batch_stride + head * p.lse_head_stride +
                               row * p.lse_row_stride);
      const T* out = row_at<T>(p.out, batch, row, head);
      const T* dout = row_at<T>(p.dout, batch, row, head);
      const T* residual =
          p.out_residual.data == nullptr ? nullptr : row_at<T>(p.out_residual, batch, row, head);
      for (int column = lane * 8; column < p.head_dim_v; column += kRowLanes * 8) {
        const Eight gradient = load_8(dout + column);
        delta += dot_of_8(load_8(out + column), gradient);
        if (residual != nullptr) delta += dot_of_8(load_8(residual + column), gradient);
      }
      if (lane == 0 && p.dlse != nullptr) {
        dlse = __ldcg(p.dlse + batch * p.dlse_batch_stride + head * p.dlse_head_stride +
                      row * p.dlse_row_stride);
        if (!p.sums_keys) delta -= dlse;
      }
      if (lse != -INFINITY) lse_log2 = lse * kLog2E;
    }
#pragma unroll
    for (int distance = kRowLanes / 2; distance > 0; distance /= 2) {
      delta += __shfl_xor_sync(~0u, delta, distance);
    }
    float4* sums = reinterpret_cast<float4*>(p.places.dq_sums + at * p.dim);
    for (int i = lane; i < p.dim / 4; i += kRowLanes) sums[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    if (lane == 0) {
      p.places.lse_log2[at] = lse_log2;
      const bool is_dead = lse_log2 == INFINITY;
      p.places.deltas[at] = is_dead ? 0.0f : delta;
      if (p.sums_keys) {
        reinterpret_cast<float2*>(p.places.missing)[at] = make_float2(is_dead ? 0.0f : -dlse, 0.0f);
      }
      if (p.turns != nullptr && row % kSumRows == 0) {
        int2* const turns = reinterpret_cast<int2*>(p.turns) + at / kSumRows;
        turns[0] = turns[p.num_rows() / kSumRows] = make_int2(0, 0);
      }
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

// Blocks of 64 rows of one head, a warpgroup each.
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
    const float* sums = p.places.dq_sums + at * kDim;
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
    store_gradient_rows<T, kDim>(p.dq, batch * p.dq.batch_stride + head * p.dq.head_stride, x,
                                 p.scale, first_row + accumulator_cell(thread, 0).row, q_len, 0,
                                 p.head_dim, thread % 32);
  }
}

dim3 blocks_of(const QueryParams& p, int rows) {
  return {static_cast<unsigned>(p.places.padded_q_len / rows * p.places.heads_q),
          std::min(static_cast<unsigned>(p.batch), kMaxGridY)};
}

}  // namespace

template <class T>
cudaError_t prepare_queries(const QueryParams& params, cudaStream_t stream) {
  return ptx::launch_overlapping(prepare_kernel<T>, blocks_of(params, kBlockRows),
                                 dim3(kRowLanes * kBlockRows), 0, stream, params);
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

}  // namespace fdma::sm90
