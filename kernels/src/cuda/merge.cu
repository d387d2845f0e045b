// merge on the GPU. A group of up to 32 lanes merges a row, each lane 16 bytes of columns at a
// time; neighbouring groups have neighbouring queries, because lse is contiguous along them.
//
// Parts are taken four at a time: their lse and their columns are loaded together, and the sums
// so far are scaled where a larger lse comes (online softmax). So a row of up to four parts waits
// for memory once. Every lane of a row computes the same weights.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <type_traits>

#include "call/merge_call.hpp"
#include "cuda/cuda_error.hpp"
#include "cuda/gpu_library.hpp"
#include "fdma/base/interval.hpp"

namespace fdma::sm90 {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpSize = 32;
constexpr int kAtOnce = 4;  // parts
constexpr int kVectorBytes = 16;

/// kElements neighbouring elements, which one instruction loads or stores.
template <class T, int kElements>
struct alignas(sizeof(T) * kElements) Elements {
  T at[kElements];
};

template <class T>
__device__ __forceinline__ float to_float(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __half2float(value);
  } else {
    return __bfloat162float(value);
  }
}

template <class T>
__device__ __forceinline__ T from_float(float value) {
  if constexpr (std::is_same_v<T, float>) {
    return value;
  } else if constexpr (std::is_same_v<T, __half>) {
    return __float2half_rn(value);
  } else {
    return __float2bfloat16_rn(value);
  }
}

struct Row {
  std::int64_t batch, head, q;

  __device__ __forceinline__ std::int64_t offset(const RowStrides& strides) const {
    return batch * strides.batch + head * strides.head + q * strides.q;
  }
};

/// Merges columns [column, column + kElements) of a row. Every lane gets the row's lse.
template <class T, int kElements>
__device__ __forceinline__ float merge_columns(const MergeCall& call, const Row& row,
                                               std::int64_t column) {
  using Vector = Elements<T, kElements>;
  float largest = -INFINITY, sum = 0.0f;
  float sums[kElements] = {};
  for (int first = 0; first < call.num_parts; first += kAtOnce) {
    float lse[kAtOnce];
    Vector values[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      lse[i] = -INFINITY;
      if (first + i >= call.num_parts) continue;
      const MergeCall::Part& part = call.parts[first + i];
      lse[i] = __ldg(part.lse + row.offset(part.lse_strides));
      values[i] = *reinterpret_cast<const Vector*>(static_cast<const T*>(part.out) +
                                                   row.offset(part.out_strides) + column);
    }
    float next = largest;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) next = fmaxf(next, lse[i]);
    // Without keys so far the sums are 0, and the difference of the two may be a NaN.
    const float scale = sum == 0.0f ? 0.0f : expf(largest - next);
    largest = next;
    sum *= scale;
#pragma unroll
    for (int e = 0; e < kElements; ++e) sums[e] *= scale;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (lse[i] == -INFINITY) continue;
      const float weight = expf(lse[i] - largest);
      sum += weight;
#pragma unroll
      for (int e = 0; e < kElements; ++e)
        sums[e] = fmaf(weight, to_float(values[i].at[e]), sums[e]);
    }
  }
  const float total = sum == 0.0f ? -INFINITY : largest + logf(sum);
  float scale = sum == 0.0f ? 0.0f : 1.0f / sum;
  if (call.sinks != nullptr && sum != 0.0f) {
    scale /= 1.0f + expf(__ldg(call.sinks + row.offset(call.sink_strides)) - total);
  }
  Vector merged;
#pragma unroll
  for (int e = 0; e < kElements; ++e) merged.at[e] = from_float<T>(sums[e] * scale);
  *reinterpret_cast<Vector*>(static_cast<T*>(call.out) + row.offset(call.out_strides) + column) =
      merged;
  return total;
}

/// Groups of `lanes` threads (a power of two up to 32) merge one row each.
template <class T, int kElements>
__global__ void __launch_bounds__(kThreads)
    merge_kernel(const __grid_constant__ MergeCall call, int lanes) {
  const auto thread = static_cast<int>(threadIdx.x);
  const std::uint32_t index = blockIdx.x * static_cast<std::uint32_t>(kThreads / lanes) +
                              static_cast<std::uint32_t>(thread / lanes);
  if (index >= static_cast<std::uint32_t>(call.num_rows())) return;
  const auto q_len = static_cast<std::uint32_t>(call.q_len);
  const auto heads = static_cast<std::uint32_t>(call.heads);
  const Row row{index / q_len / heads, index / q_len % heads, index % q_len};
  const int lane = thread % lanes;
  float lse = 0.0f;
  for (std::int64_t column = std::int64_t{lane} * kElements; column < call.head_dim_v;
       column += std::int64_t{lanes} * kElements) {
    lse = merge_columns<T, kElements>(call, row, column);
  }
  if (lane == 0 && call.lse != nullptr) call.lse[row.offset(call.lse_strides)] = lse;
}

template <class T, int kElements>
void launch(const MergeCall& call, cudaStream_t stream) {
  const auto vectors = static_cast<std::uint64_t>(ceil_div(call.head_dim_v, kElements));
  const int lanes = vectors >= kWarpSize ? kWarpSize : static_cast<int>(std::bit_ceil(vectors));
  const auto blocks = static_cast<unsigned>(ceil_div(call.num_rows(), kThreads / lanes));
  merge_kernel<T, kElements><<<blocks, kThreads, 0, stream>>>(call, lanes);
}

bool has_vectors(const void* out, const RowStrides& strides, std::int64_t elements) {
  return reinterpret_cast<std::uintptr_t>(out) % kVectorBytes == 0 &&
         strides.batch % elements == 0 && strides.head % elements == 0 && strides.q % elements == 0;
}

template <class T>
void launch_for(const MergeCall& call, cudaStream_t stream) {
  constexpr int kElements = kVectorBytes / sizeof(T);
  bool is_aligned =
      call.head_dim_v % kElements == 0 && has_vectors(call.out, call.out_strides, kElements);
  for (int i = 0; i < call.num_parts; ++i) {
    const MergeCall::Part& part = call.parts[static_cast<std::size_t>(i)];
    is_aligned = is_aligned && has_vectors(part.out, part.out_strides, kElements);
  }
  is_aligned ? launch<T, kElements>(call, stream) : launch<T, 1>(call, stream);
}

}  // namespace
}  // namespace fdma::sm90

namespace fdma::with_cuda {

Result<void> merge(const MergeCall& call, Stream stream) {
  if (call.dtype == DType::float32) {
    sm90::launch_for<float>(call, stream);
  } else if (call.dtype == DType::float16) {
    sm90::launch_for<__half>(call, stream);
  } else {
    sm90::launch_for<__nv_bfloat16>(call, stream);
  }
  return sm90::check_cuda(cudaGetLastError(), "merge: launch");
}

}  // namespace fdma::with_cuda
