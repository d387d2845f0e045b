// The kernel that permutes keys. A block copies 64 keys of an order. Blocks with the same keys of
// all KV heads are neighbours, because heads that share an order read rows that are adjacent in
// memory.
#include <algorithm>

#include "cuda/permute_kv.hpp"
#include "fdma/base/interval.hpp"
#include "ptx/grid.cuh"

namespace fdma::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kKeys = 64;
constexpr int kVectorBytes = 16;
constexpr int kInFlight = 4;  // vectors per thread

__device__ __forceinline__ void copy_rows(std::uint8_t* to, const std::uint8_t* from,
                                          std::int64_t row_stride, int row_bytes,
                                          const std::int32_t* keys, int num_keys) {
  const int vectors = row_bytes / kVectorBytes, total = num_keys * vectors;
  for (int first = static_cast<int>(threadIdx.x); first < total; first += kInFlight * kThreads) {
    uint4 values[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int at = first + i * kThreads;
      if (at >= total) continue;
      const int row = at / vectors, vector = at - row * vectors;
      values[i] = __ldcg(
          reinterpret_cast<const uint4*>(from + keys[row] * row_stride + vector * kVectorBytes));
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int at = first + i * kThreads;
      if (at < total) reinterpret_cast<uint4*>(to)[at] = values[i];
    }
  }
}

__global__ void __launch_bounds__(kThreads) permute_kv_kernel(const PermuteParams p) {
  ptx::let_next_grid_start();
  ptx::wait_for_grid_before();
  if (blockIdx.x == 0 && threadIdx.x == 0) *p.counter = 0;
  const int num_rows = p.batch * p.heads_kv;
  const int row = static_cast<int>(blockIdx.x) % num_rows;
  const int first = static_cast<int>(blockIdx.x) / num_rows * kKeys;
  const int index = p.orders.permutation_of[row];
  if (index < 0) return;
  const KvPermutation order = p.orders.orders[index];
  const int num_keys = static_cast<int>(min(order.num_keys - first, std::int64_t{kKeys}));
  if (num_keys <= 0) return;
  const std::int32_t* keys = p.orders.keys + order.first_key + first;
  const int batch = row / p.heads_kv, kv_head = row % p.heads_kv;
  const std::int64_t to = std::int64_t{row} * p.orders.max_keys + first;
  copy_rows(p.permuted_k + to * p.k.row_bytes, p.k.strides.head_of(p.k.data, batch, kv_head),
            p.k.strides.row, p.k.row_bytes, keys, num_keys);
  copy_rows(p.permuted_v + to * p.v.row_bytes, p.v.strides.head_of(p.v.data, batch, kv_head),
            p.v.strides.row, p.v.row_bytes, keys, num_keys);
  if (p.key_bias.data == nullptr) return;
  const float* bias = p.key_bias.head(batch, kv_head);
  for (int i = static_cast<int>(threadIdx.x); i < num_keys; i += kThreads) {
    p.permuted_bias[to + i] = __ldcg(bias + keys[i]);
  }
}

}  // namespace

cudaError_t permute_kv(const PermuteParams& params, cudaStream_t stream) {
  const std::int64_t num_blocks = std::int64_t{params.batch} * params.heads_kv *
                                  ceil_div(std::int64_t{params.orders.max_keys}, kKeys);
  return ptx::launch_overlapping(permute_kv_kernel, dim3(static_cast<unsigned>(num_blocks)),
                                 dim3(kThreads), 0, stream, params);
}

}  // namespace fdma::gpu
