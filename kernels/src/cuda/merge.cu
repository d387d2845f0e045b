// merge on the GPU. A group of up to 32 lanes merges a row, each lane two times 16 bytes of columns
// at a time; neighbouring groups have neighbouring queries, because lse is contiguous along them.
//
// Parts are taken two at a time: their lse and their columns are loaded together, and the sums so
// far are scaled where a larger lse comes (online softmax). Every lane of a row computes the same
// weights. Memory is what binds; four parts at a time, or one vector a thread, leave the registers
// for fewer threads or spend more instructions on addresses (docs/notes/merge.md).
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>
#include <bit>
#include <type_traits>

#include "call/merge_call.hpp"
#include "cuda/cuda_error.hpp"
#include "cuda/gpu_library.hpp"
#include "fdma/base/interval.hpp"
#include "ptx/warpgroup.cuh"

namespace fdma::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpSize = 32;
constexpr int kAtOnce = 2;  // parts
constexpr int kVectorBytes = 16;
/// Two vectors of a row share what a thread computes for the row.
constexpr int kVectorsOfThread = 2;
constexpr std::int64_t kMaxGridHeads = 65535;

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

/// kElements neighbouring elements, which one instruction loads or stores. Those of 16 bits stay
/// pairs in 32-bit words until they are used, for each would take a register of its own.
template <class T, int kElements>
struct alignas(sizeof(T) * kElements) Elements {
  static constexpr bool kIsPaired = sizeof(T) == 2 && kElements > 1;
  using Word = std::conditional_t<kIsPaired, std::uint32_t, T>;
  static constexpr int kOfWord = static_cast<int>(sizeof(Word) / sizeof(T));
  Word words[kElements / kOfWord];

  __device__ __forceinline__ float at(int e) const {
    const Word word = words[e / kOfWord];
    if constexpr (!kIsPaired) {
      return to_float(word);
    } else if constexpr (std::is_same_v<T, __half>) {
      return to_float(__ushort_as_half(static_cast<unsigned short>(word >> 16 * (e % 2))));
    } else {
      return __uint_as_float(e % 2 == 0 ? word << 16 : word & 0xffff0000u);
    }
  }
  __device__ __forceinline__ void set(const float (&values)[kElements], float scale) {
#pragma unroll
    for (int i = 0; i < kElements / kOfWord; ++i) {
      if constexpr (!kIsPaired) {
        words[i] = from_float<T>(values[i] * scale);
      } else {
        words[i] = ptx::pack<T>(values[2 * i] * scale, values[2 * i + 1] * scale);
      }
    }
  }
};

/// A row of a head, and the batch element and head.
struct Row {
  std::int64_t batch, head, q;

  __device__ __forceinline__ std::int64_t offset(const RowStrides& strides) const {
    return batch * strides.batch + head * strides.head + q * strides.q;
  }
};

/// Merges kVectors vectors of a row, `step` columns from one to the next, as far as the row has
/// them. Every lane gets the row's lse.
template <class T, int kElements, int kVectors>
__device__ __forceinline__ float merge_columns(const MergeCall& call, const Row& row,
                                               std::int64_t column, std::int64_t step) {
  using Vector = Elements<T, kElements>;
  const auto exists = [&](int v) { return v == 0 || column + v * step < call.head_dim_v; };
  float largest = -INFINITY, sum = 0.0f;
  float sums[kVectors][kElements] = {};
  for (int first = 0; first < call.num_parts; first += kAtOnce) {
    float lse[kAtOnce];
    Vector values[kAtOnce][kVectors];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      lse[i] = -INFINITY;
      if (first + i >= call.num_parts) continue;
      const MergeCall::Part& part = call.parts[first + i];
      lse[i] = __ldg(part.lse + row.offset(part.lse_strides));
      const T* const from = static_cast<const T*>(part.out) + row.offset(part.out_strides) + column;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (exists(v)) values[i][v] = *reinterpret_cast<const Vector*>(from + v * step);
      }
    }
    float next = largest;
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) next = fmaxf(next, lse[i]);
    // Without keys so far the sums are 0, and the difference of the two may be a NaN.
    const float scale = sum == 0.0f ? 0.0f : expf(largest - next);
    largest = next;
    sum *= scale;
#pragma unroll
    for (int v = 0; v < kVectors; ++v) {
#pragma unroll
      for (int e = 0; e < kElements; ++e) sums[v][e] *= scale;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (lse[i] == -INFINITY) continue;
      const float weight = expf(lse[i] - largest);
      sum += weight;
#pragma unroll
      for (int v = 0; v < kVectors; ++v) {
        if (!exists(v)) continue;
#pragma unroll
        for (int e = 0; e < kElements; ++e) {
          sums[v][e] = fmaf(weight, values[i][v].at(e), sums[v][e]);
        }
      }
    }
  }
  const float total = sum == 0.0f ? -INFINITY : largest + logf(sum);
  float scale = sum == 0.0f ? 0.0f : 1.0f / sum;
  if (call.sinks != nullptr && sum != 0.0f) {
    scale /= 1.0f + expf(__ldg(call.sinks + row.offset(call.sink_strides)) - total);
  }
  T* const to = static_cast<T*>(call.out) + row.offset(call.out_strides) + column;
#pragma unroll
  for (int v = 0; v < kVectors; ++v) {
    if (!exists(v)) continue;
    Vector merged;
    merged.set(sums[v], scale);
    *reinterpret_cast<Vector*>(to + v * step) = merged;
  }
  return total;
}

/// A block merges rows of one head, so that where its rows begin is computed once for all of its
/// threads. Groups of `lanes` threads (a power of two up to 32) merge one row each.
template <class T, int kElements, int kVectors>
__global__ void __launch_bounds__(kThreads, 4)
    merge_kernel(const __grid_constant__ MergeCall call, int lanes) {
  const int lane = static_cast<int>(threadIdx.x) % lanes;
  const std::int64_t q = std::int64_t{blockIdx.x} * (blockDim.x / static_cast<unsigned>(lanes)) +
                         static_cast<int>(threadIdx.x) / lanes;
  if (q >= call.q_len) return;
  const auto heads = static_cast<std::uint32_t>(call.heads);
  const auto num_heads = static_cast<std::uint32_t>(call.batch) * heads;
  for (std::uint32_t index = blockIdx.y; index < num_heads; index += gridDim.y) {
    const Row row{index / heads, index % heads, q};
    const std::int64_t step = std::int64_t{lanes} * kElements;
    float lse = 0.0f;
    for (std::int64_t column = std::int64_t{lane} * kElements; column < call.head_dim_v;
         column += step * kVectors) {
      lse = merge_columns<T, kElements, kVectors>(call, row, column, step);
    }
    if (lane == 0 && call.lse != nullptr) call.lse[row.offset(call.lse_strides)] = lse;
  }
}

template <class T, int kElements, int kVectors>
void launch(const MergeCall& call, cudaStream_t stream) {
  const auto vectors =
      static_cast<std::uint64_t>(ceil_div(call.head_dim_v, std::int64_t{kElements} * kVectors));
  const int lanes = vectors >= kWarpSize ? kWarpSize : static_cast<int>(std::bit_ceil(vectors));
  // Rows of few queries take small blocks.
  const auto rows = static_cast<std::int64_t>(std::bit_ceil(
      static_cast<std::uint64_t>(std::min(call.q_len, kThreads / std::int64_t{lanes}))));
  const int threads = std::max(kWarpSize, static_cast<int>(rows) * lanes);
  const dim3 grid(static_cast<unsigned>(ceil_div(call.q_len, threads / lanes)),
                  static_cast<unsigned>(std::min(call.batch * call.heads, kMaxGridHeads)));
  merge_kernel<T, kElements, kVectors><<<grid, threads, 0, stream>>>(call, lanes);
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
  is_aligned ? launch<T, kElements, kVectorsOfThread>(call, stream) : launch<T, 1, 1>(call, stream);
}

}  // namespace
}  // namespace fdma::gpu

namespace fdma::with_cuda {

Result<void> merge(const MergeCall& call, Stream stream) {
  if (call.dtype == DType::float32) {
    gpu::launch_for<float>(call, stream);
  } else if (call.dtype == DType::float16) {
    gpu::launch_for<__half>(call, stream);
  } else {
    gpu::launch_for<__nv_bfloat16>(call, stream);
  }
  return gpu::check_cuda(cudaGetLastError(), "merge: launch");
}

}  // namespace fdma::with_cuda
