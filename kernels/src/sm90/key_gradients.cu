// Three kernels at the rate of memory: rows of zeros, sums of zeros, sums to rows of gradients.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "ptx/warpgroup.cuh"
#include "sm90/backward_rows.cuh"
#include "sm90/key_gradients.hpp"

namespace fdma::sm90 {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpThreads = 32;
constexpr int kBlockKeys = 256;
constexpr int kSumBlocks = 1056;  // of all groups: 8 a multiprocessor
static_assert(kBlockKeys == kThreads);

// Zeros of 16 bytes to the marked rows [first_key, first_key + kBlockKeys) of one head.
__device__ __forceinline__ void zero_rows(const RowsView& to, int batch, int head,
                                          std::int64_t first_key, int head_dim,
                                          const bool* is_zeroed) {
  const int element_bytes = to.is_float32 ? 4 : 2;
  const int vectors = head_dim * element_bytes / 16;
  char* const rows =
      static_cast<char*>(to.data) +
      (batch * to.batch_stride + head * to.head_stride + first_key * to.row_stride) * element_bytes;
  for (int i = static_cast<int>(threadIdx.x); i < kBlockKeys * vectors; i += kThreads) {
    const int key = i / vectors, vector = i - key * vectors;
    if (!is_zeroed[key]) continue;
    *reinterpret_cast<uint4*>(rows + key * to.row_stride * element_bytes + 16 * vector) =
        make_uint4(0, 0, 0, 0);
  }
}

// A block has kBlockKeys keys of a KV head.
__global__ void __launch_bounds__(kThreads)
    zero_unseen_rows(const __grid_constant__ KeyGradientParams p, int blocks_of_row) {
  __shared__ bool is_zeroed[kBlockKeys];
  const int row = static_cast<int>(blockIdx.x) / blocks_of_row;
  const int batch = row / p.heads_kv, head = row % p.heads_kv;
  const std::int64_t first_key =
      std::int64_t{static_cast<int>(blockIdx.x) % blocks_of_row} * kBlockKeys;
  const std::int64_t key = first_key + threadIdx.x;
  const bool exists = key < p.lengths[batch].y;
  bool is_seen = false;
  if (exists && p.seen != nullptr) {
    const int2 queries = __ldg(reinterpret_cast<const int2*>(p.seen) + row * p.max_kv_len + key);
    is_seen = queries.x < queries.y;
  }
  is_zeroed[threadIdx.x] = exists && !is_seen;
  if (exists && p.dkey_bias != nullptr) {
    p.dkey_bias[batch * p.dbias_batch_stride + head * p.dbias_head_stride + key] = 0.0f;
  }
  __syncthreads();
  zero_rows(p.dk, batch, head, first_key, p.head_dim, is_zeroed);
  zero_rows(p.dv, batch, head, first_key, p.head_dim_v, is_zeroed);
}

__device__ __forceinline__ std::int64_t rows_in_use(const KeySums& sums, int group) {
  return sums.num_rows != nullptr ? sums.num_rows[group] : sums.rows_of_group;
}

// Some blocks stride over the rows of a group.
__global__ void __launch_bounds__(kThreads)
    zero_sums(const __grid_constant__ KeySums sums, int blocks_of_group) {
  const int group = static_cast<int>(blockIdx.x) / blocks_of_group;
  const int block = static_cast<int>(blockIdx.x) % blocks_of_group;
  const std::int64_t num_rows = rows_in_use(sums, group), first = group * sums.rows_of_group;
  if (sums.dbias != nullptr) {
    for (std::int64_t i = std::int64_t{block} * kThreads + threadIdx.x; i < num_rows;
         i += std::int64_t{blocks_of_group} * kThreads) {
      sums.dbias[first + i] = 0.0f;
    }
  }
  const auto zero = [&](float* rows, int dim) {
    auto* const to = reinterpret_cast<float4*>(rows + first * dim);
    for (std::int64_t i = std::int64_t{block} * kThreads + threadIdx.x; i < num_rows * dim / 4;
         i += std::int64_t{blocks_of_group} * kThreads) {
      to[i] = make_float4(0, 0, 0, 0);
    }
  };
  zero(sums.dk, sums.dim_qk);
  zero(sums.dv, sums.dim_v);
}

// Rows of sums that follow each other, added up, to one row of a gradient. A warp.
template <class T>
__device__ __forceinline__ void store_row(const RowsView& to, std::int64_t at, const float* sums,
                                          int dim, int num_rows, int head_dim, float factor,
                                          int lane) {
  for (int column = 4 * lane; column < head_dim; column += 4 * kWarpThreads) {
    const float* const low = sums + listed_sum_place(column);
    const float* const high = sums + listed_sum_place(column + 2);
    float4 x = make_float4(0, 0, 0, 0);
#pragma unroll 1
    for (int i = 0; i < num_rows; ++i) {
      const float2 a = *reinterpret_cast<const float2*>(low + std::int64_t{i} * dim);
      const float2 b = *reinterpret_cast<const float2*>(high + std::int64_t{i} * dim);
      x = make_float4(x.x + a.x, x.y + a.y, x.z + b.x, x.w + b.y);
    }
    x = make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
    if (to.is_float32) {
      *reinterpret_cast<float4*>(static_cast<float*>(to.data) + at + column) = x;
    } else {
      *reinterpret_cast<uint2*>(static_cast<T*>(to.data) + at + column) =
          make_uint2(ptx::pack<T>(x.x, x.y), ptx::pack<T>(x.z, x.w));
    }
  }
}

// Some blocks stride over the rows of a group, a warp has those of a key at a time.
template <class T>
__global__ void __launch_bounds__(kThreads)
    store_sums(const __grid_constant__ KeyGradientParams p, int blocks_of_group) {
  constexpr int kWarps = kThreads / kWarpThreads;
  const KeySums& sums = p.sums;
  const int group = static_cast<int>(blockIdx.x) / blocks_of_group;
  const int block = static_cast<int>(blockIdx.x) % blocks_of_group;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  const std::int64_t first = group * sums.rows_of_group, end = first + rows_in_use(sums, group);
  for (std::int64_t row = first + std::int64_t{block} * kWarps + threadIdx.x / kWarpThreads;
       row < end; row += std::int64_t{blocks_of_group} * kWarps) {
    const SumKey of = sums.keys[row];
    const auto is_of_key = [&](std::int64_t other) {
      return sums.keys[other].key == of.key && sums.keys[other].kv_row == of.kv_row;
    };
    if (of.key < 0 || (row > first && is_of_key(row - 1))) continue;
    int num_rows = 1;
    while (row + num_rows < end && is_of_key(row + num_rows)) ++num_rows;
    const int batch = of.kv_row / p.heads_kv, head = of.kv_row % p.heads_kv;
    store_row<T>(p.dk,
                 batch * p.dk.batch_stride + head * p.dk.head_stride + of.key * p.dk.row_stride,
                 sums.dk + row * sums.dim_qk, sums.dim_qk, num_rows, p.head_dim, p.scale, lane);
    store_row<T>(p.dv,
                 batch * p.dv.batch_stride + head * p.dv.head_stride + of.key * p.dv.row_stride,
                 sums.dv + row * sums.dim_v, sums.dim_v, num_rows, p.head_dim_v, 1.0f, lane);
    if (p.dkey_bias == nullptr || sums.dbias == nullptr || lane > 0) continue;
    float sum = sums.dbias[row];
    for (int i = 1; i < num_rows; ++i) sum += sums.dbias[row + i];
    p.dkey_bias[batch * p.dbias_batch_stride + head * p.dbias_head_stride + of.key] = sum;
  }
}

int blocks_of_group(const KeySums& sums) {
  return static_cast<int>(
      std::clamp<std::int64_t>(kSumBlocks / sums.num_groups, 1, sums.rows_of_group));
}

bool has_sums(const KeySums& sums) { return sums.num_groups > 0 && sums.rows_of_group > 0; }

}  // namespace

cudaError_t zero_key_gradients(const KeyGradientParams& params, cudaStream_t stream) {
  const std::int64_t blocks_of_row = ceil_div(params.max_kv_len, std::int64_t{kBlockKeys});
  const std::int64_t num_rows = std::int64_t{params.batch} * params.heads_kv;
  if (blocks_of_row > 0 && num_rows > 0) {
    zero_unseen_rows<<<static_cast<unsigned>(blocks_of_row * num_rows), kThreads, 0, stream>>>(
        params, static_cast<int>(blocks_of_row));
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
  }
  if (!has_sums(params.sums)) return cudaSuccess;
  const int num_blocks = blocks_of_group(params.sums);
  zero_sums<<<static_cast<unsigned>(num_blocks * params.sums.num_groups), kThreads, 0, stream>>>(
      params.sums, num_blocks);
  return cudaGetLastError();
}

template <class T>
cudaError_t store_key_gradients(const KeyGradientParams& params, cudaStream_t stream) {
  if (!has_sums(params.sums)) return cudaSuccess;
  const int num_blocks = blocks_of_group(params.sums);
  store_sums<T>
      <<<static_cast<unsigned>(num_blocks * params.sums.num_groups), kThreads, 0, stream>>>(
          params, num_blocks);
  return cudaGetLastError();
}

template cudaError_t store_key_gradients<__nv_bfloat16>(const KeyGradientParams&, cudaStream_t);
template cudaError_t store_key_gradients<__half>(const KeyGradientParams&, cudaStream_t);

}  // namespace fdma::sm90
