// The kernels for sinks of the backward pass. One has a thread for each row, the other a block for
// each gradient that is a sum of rows, or for the rows of a head. Both are bound by memory, and read
// four bytes a row.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/pair_values.cuh"
#include "cuda/sink_rows.hpp"
#include "cuda/work_tile.hpp"
#include "ptx/grid.cuh"

namespace fdma::gpu {
namespace {

constexpr int kRowThreads = 256, kSumThreads = 512;
constexpr float kLog2E = 1.44269504088896340736f;
/// exp(lse' - lse) is cut at this power of two, because a weight that it multiplies is then 0.
constexpr float kLargestShift = 120.0f;

__device__ __forceinline__ int q_len_of(const SinkParams& p, int batch) {
  const int length = __ldg(p.lengths + batch).x;
  return p.q_lens == nullptr ? length : min(max(__ldg(p.q_lens + batch), 0), length);
}

// kIsLast: `missing` is complete.
template <class T, bool kIsLast>
__global__ void __launch_bounds__(kRowThreads) take_sinks_kernel(const SinkParams p) {
  ptx::let_next_grid_start();
  ptx::wait_for_grid_before();
  const std::int64_t at = std::int64_t{blockIdx.x} * kRowThreads + threadIdx.x;
  if (at >= p.num_rows()) return;
  const auto row = static_cast<int>(at % p.places.padded_q_len);
  const auto pair = static_cast<int>(at / p.places.padded_q_len);
  const int batch = pair / p.places.heads_q, head = pair % p.places.heads_q;
  const float lse = row < q_len_of(p, batch) ? p.lse.at(batch, head, row) * kLog2E : -INFINITY;
  if (lse == -INFINITY) {  // no keys, no gradients
    p.terms[at] = 0.0f;
    return;
  }
  const float sink = value_at<T>(p.sinks, p.sinks.offset(batch, head, row)) * kLog2E;
  // A NaN in either becomes one of the row.
  const bool is_larger = sink > lse;
  const float larger = is_larger ? sink : lse, smaller = is_larger ? lse : sink;
  const float finished = larger + log2f(1.0f + exp2f(smaller - larger));
  const float share = sink == INFINITY ? 1.0f : exp2f(sink - finished);
  float2* const missing = reinterpret_cast<float2*>(p.places.missing) + at;
  float delta = p.places.deltas[at];
  if constexpr (kIsLast) {
    const float2 sums = *missing;
    delta += sums.x + sums.y;
  } else {
    p.places.lse_log2[at] = finished;
  }
  p.terms[at] = -share * delta;
  if (!kIsLast && p.corrects_delta) {
    *missing = make_float2(-share * delta, 0.0f);
    return;
  }
  const float dlse = p.dlse.data == nullptr ? 0.0f : p.dlse.at(batch, head, row);
  p.places.deltas[at] = delta - dlse * exp2f(fminf(finished - lse, kLargestShift));
}

template <class T, bool kIsLast>
cudaError_t launch_take_sinks(const SinkParams& params, cudaStream_t stream) {
  const auto num_blocks =
      static_cast<unsigned>((params.num_rows() + kRowThreads - 1) / kRowThreads);
  return ptx::launch_overlapping(take_sinks_kernel<T, kIsLast>, dim3(num_blocks), dim3(kRowThreads),
                                 0, stream, params);
}

/// The sum of `x` over the block, in thread 0.
__device__ __forceinline__ float sum_of_block(float x) {
  __shared__ float warps[kSumThreads / kWarpSize];
  const int lane = static_cast<int>(threadIdx.x) % kWarpSize;
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(~0u, x, distance);
  }
  if (lane == 0) warps[threadIdx.x / kWarpSize] = x;
  __syncthreads();
  if (threadIdx.x >= kWarpSize) return 0.0f;
  x = lane < kSumThreads / kWarpSize ? warps[lane] : 0.0f;
#pragma unroll
  for (int distance = kWarpSize / 2; distance > 0; distance /= 2) {
    x += __shfl_xor_sync(~0u, x, distance);
  }
  return x;
}

// Blocks: x heads, y batch elements that have gradients of their own.
template <class T>
__global__ void __launch_bounds__(kSumThreads) store_sink_gradients_kernel(const SinkParams p) {
  ptx::let_next_grid_start();
  ptx::wait_for_grid_before();
  const auto head = static_cast<int>(blockIdx.x), first = static_cast<int>(blockIdx.y);
  const int end = p.dsinks.batch_stride == 0 ? p.batch : first + 1;
  const auto thread = static_cast<std::int64_t>(threadIdx.x);
  if (p.dsinks.row_stride != 0) {
    for (std::int64_t row = thread; row < p.num_dsinks_rows; row += kSumThreads) {
      float value = 0.0f;
      if (row < p.places.padded_q_len) value = p.terms[p.places.first_row(first, head) + row];
      set_value<T>(p.dsinks, p.dsinks.offset(first, head, row), value);
    }
    return;
  }
  float sum = 0.0f;
  for (int batch = first; batch < end; ++batch) {
    const float* terms = p.terms + p.places.first_row(batch, head);
    for (std::int64_t row = thread; row < p.places.padded_q_len; row += kSumThreads) {
      sum += terms[row];
    }
  }
  sum = sum_of_block(sum);
  if (thread == 0) set_value<T>(p.dsinks, p.dsinks.offset(first, head, 0), sum);
}

}  // namespace

template <class T>
cudaError_t take_sinks(const SinkParams& params, cudaStream_t stream) {
  return launch_take_sinks<T, false>(params, stream);
}

template <class T>
cudaError_t add_missing_to_sinks(const SinkParams& params, cudaStream_t stream) {
  return launch_take_sinks<T, true>(params, stream);
}

template <class T>
cudaError_t store_sink_gradients(const SinkParams& params, cudaStream_t stream) {
  const dim3 blocks(static_cast<unsigned>(params.places.heads_q),
                    params.dsinks.batch_stride == 0 ? 1u : static_cast<unsigned>(params.batch));
  return ptx::launch_overlapping(store_sink_gradients_kernel<T>, blocks, dim3(kSumThreads), 0,
                                 stream, params);
}

template cudaError_t take_sinks<__nv_bfloat16>(const SinkParams&, cudaStream_t);
template cudaError_t take_sinks<__half>(const SinkParams&, cudaStream_t);
template cudaError_t add_missing_to_sinks<__nv_bfloat16>(const SinkParams&, cudaStream_t);
template cudaError_t add_missing_to_sinks<__half>(const SinkParams&, cudaStream_t);
template cudaError_t store_sink_gradients<__nv_bfloat16>(const SinkParams&, cudaStream_t);
template cudaError_t store_sink_gradients<__half>(const SinkParams&, cudaStream_t);

}  // namespace fdma::gpu
