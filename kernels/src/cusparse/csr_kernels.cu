// Kernels of the cuSPARSE attention, with one warp or one block per row. Rows have as many cells as
// the mask has keys in them. Nothing is tuned, because the products of cuSPARSE take nearly all of
// the time.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cusparse/csr_kernels.hpp"

namespace fdma::cusparse {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpsPerBlock = kThreads / 32;
constexpr std::int64_t kMaxBlocks = 1 << 20;

unsigned num_blocks(std::int64_t count) {
  return static_cast<unsigned>(std::clamp<std::int64_t>(count, 1, kMaxBlocks));
}

// One warp per row: its lanes write the columns of one interval after the other.
template <class Index>
__global__ void __launch_bounds__(kThreads)
    expand_kernel(std::int64_t num_rows, const Index* row_offsets,
                  const std::int64_t* interval_offsets, const Interval* intervals, Index* columns) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const std::int64_t step = std::int64_t{gridDim.x} * kWarpsPerBlock;
  for (std::int64_t row = std::int64_t{blockIdx.x} * kWarpsPerBlock + threadIdx.x / 32;
       row < num_rows; row += step) {
    Index* out = columns + row_offsets[row];
    for (std::int64_t i = interval_offsets[row]; i < interval_offsets[row + 1]; ++i) {
      const Interval keys = intervals[i];
      for (std::int64_t k = lane; k < std::int64_t{keys.end} - keys.begin; k += 32) {
        out[k] = static_cast<Index>(keys.begin + k);
      }
      out += keys.end - keys.begin;
    }
  }
}

template <class To, class From>
__global__ void __launch_bounds__(kThreads)
    copy_kernel(const From* from, std::int64_t from_stride, To* to, std::int64_t to_stride,
                std::int64_t num_rows, std::int64_t num_columns) {
  const std::int64_t step = std::int64_t{gridDim.x} * kThreads;
  for (std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
       i < num_rows * num_columns; i += step) {
    const std::int64_t row = i / num_columns, column = i % num_columns;
    const float value =
        from != nullptr ? static_cast<float>(from[row * from_stride + column]) : 0.0f;
    to[row * to_stride + column] = static_cast<To>(value);
  }
}

template <class To, class From>
cudaError_t copy(const Rows& from, const MutableRows& to, std::int64_t num_rows,
                 std::int64_t num_columns, cudaStream_t stream) {
  const std::int64_t blocks = (num_rows * num_columns + kThreads - 1) / kThreads;
  copy_kernel<To, From><<<num_blocks(blocks), kThreads, 0, stream>>>(
      static_cast<const From*>(from.data), from.row_stride, static_cast<To*>(to.data),
      to.row_stride, num_rows, num_columns);
  return cudaGetLastError();
}

template <class To>
cudaError_t copy_from(const Rows& from, const MutableRows& to, std::int64_t num_rows,
                      std::int64_t num_columns, cudaStream_t stream) {
  switch (from.dtype) {
    case DType::float16:
      return copy<To, __half>(from, to, num_rows, num_columns, stream);
    case DType::bfloat16:
      return copy<To, __nv_bfloat16>(from, to, num_rows, num_columns, stream);
    default:
      return copy<To, float>(from, to, num_rows, num_columns, stream);
  }
}

// The maximum or sum of one number per thread, returned to all threads.
template <class Combine>
__device__ float over_block(float mine, float* shared, const Combine& combine) {
  for (int distance = 16; distance > 0; distance /= 2) {
    mine = combine(mine, __shfl_xor_sync(0xffffffffu, mine, distance));
  }
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = mine;
  __syncthreads();
  float all = shared[0];
  for (int warp = 1; warp < kWarpsPerBlock; ++warp) all = combine(all, shared[warp]);
  __syncthreads();
  return all;
}

// One block per row, in three passes over its cells: the largest logit; exponentials and their sum;
// probabilities.
template <class Index, class P>
__global__ void __launch_bounds__(kThreads) softmax_kernel(const SoftmaxArguments arguments) {
  __shared__ float shared[kWarpsPerBlock];
  const Index* const row_offsets = static_cast<const Index*>(arguments.row_offsets);
  const Index* const columns = static_cast<const Index*>(arguments.columns);
  float* const logits = arguments.logits;
  P* const probabilities = static_cast<P*>(arguments.probabilities);
  for (std::int64_t row = blockIdx.x; row < arguments.num_rows; row += gridDim.x) {
    const std::int64_t begin = row_offsets[row], end = row_offsets[row + 1];
    float largest = -INFINITY;
    for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      const float bias = arguments.key_bias != nullptr ? arguments.key_bias[columns[i]] : 0.0f;
      const float logit = fmaf(arguments.scale, logits[i], bias);
      logits[i] = logit;
      largest = fmaxf(largest, logit);  // fmaxf returns the number if one is NaN
    }
    largest = over_block(largest, shared, [](float a, float b) { return fmaxf(a, b); });
    const float reference = largest == -INFINITY ? 0.0f : largest;
    float total = 0;
    for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      const float term = expf(logits[i] - reference);
      logits[i] = term;
      total += term;
    }
    total = over_block(total, shared, [](float a, float b) { return a + b; });
    for (std::int64_t i = begin + threadIdx.x; i < end; i += kThreads) {
      probabilities[i] = static_cast<P>(total == 0.0f ? 0.0f : logits[i] / total);
    }
    if (threadIdx.x == 0 && arguments.lse != nullptr) {
      arguments.lse[row * arguments.lse_stride] =
          total == 0.0f ? -INFINITY : reference + logf(total);
    }
  }
}

template <class Index>
cudaError_t softmax(const SoftmaxArguments& arguments, DType dtype, cudaStream_t stream) {
  const unsigned blocks = num_blocks(arguments.num_rows);
  switch (dtype) {
    case DType::float16:
      softmax_kernel<Index, __half><<<blocks, kThreads, 0, stream>>>(arguments);
      break;
    case DType::bfloat16:
      softmax_kernel<Index, __nv_bfloat16><<<blocks, kThreads, 0, stream>>>(arguments);
      break;
    default:
      softmax_kernel<Index, float><<<blocks, kThreads, 0, stream>>>(arguments);
  }
  return cudaGetLastError();
}

template <class Index>
cudaError_t expand(std::int64_t num_rows, const void* row_offsets,
                   const std::int64_t* interval_offsets, const Interval* intervals, void* columns,
                   cudaStream_t stream) {
  expand_kernel<<<num_blocks((num_rows + kWarpsPerBlock - 1) / kWarpsPerBlock), kThreads, 0,
                  stream>>>(num_rows, static_cast<const Index*>(row_offsets), interval_offsets,
                            intervals, static_cast<Index*>(columns));
  return cudaGetLastError();
}

}  // namespace

cudaError_t expand_columns(std::int64_t num_rows, const void* row_offsets,
                           const std::int64_t* interval_offsets, const Interval* intervals,
                           void* columns, bool is_wide, cudaStream_t stream) {
  return is_wide ? expand<std::int64_t>(num_rows, row_offsets, interval_offsets, intervals, columns,
                                        stream)
                 : expand<std::int32_t>(num_rows, row_offsets, interval_offsets, intervals, columns,
                                        stream);
}

cudaError_t copy_rows(const Rows& from, const MutableRows& to, std::int64_t num_rows,
                      std::int64_t num_columns, cudaStream_t stream) {
  switch (to.dtype) {
    case DType::float16:
      return copy_from<__half>(from, to, num_rows, num_columns, stream);
    case DType::bfloat16:
      return copy_from<__nv_bfloat16>(from, to, num_rows, num_columns, stream);
    default:
      return copy_from<float>(from, to, num_rows, num_columns, stream);
  }
}

cudaError_t softmax_rows(const SoftmaxArguments& arguments, DType dtype, bool is_wide,
                         cudaStream_t stream) {
  return is_wide ? softmax<std::int64_t>(arguments, dtype, stream)
                 : softmax<std::int32_t>(arguments, dtype, stream);
}

}  // namespace fdma::cusparse
