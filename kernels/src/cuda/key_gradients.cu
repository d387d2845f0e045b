// Three kernels bound by memory: one zeroes rows of gradients, one zeroes accumulators, one stores
// accumulators to rows of gradients.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <algorithm>

#include "cuda/gradient_rows.cuh"
#include "cuda/key_gradients.hpp"
#include "ptx/warpgroup.cuh"

namespace fdma::gpu {
namespace {

constexpr int kThreads = 256;
constexpr int kWarpThreads = 32;
constexpr int kBlockKeys = 256;
constexpr int kSumBlocks = 1056;  // of all groups: 8 per multiprocessor
constexpr int kStoreBlocks = 3;   // per multiprocessor, limited by registers
static_assert(kBlockKeys == kThreads);

// Writes zeros, 16 bytes at a time, to the rows of one head that `keys` selects, counted from
// first_key.
__device__ __forceinline__ void zero_rows(const RowsView& to, int batch, int head,
                                          std::int64_t first_key, int head_dim,
                                          const std::uint8_t* keys, int num_keys) {
  const int element_bytes = to.is_float32 ? 4 : 2;
  const int vectors = head_dim * element_bytes / 16;
  const std::int64_t row_bytes = to.strides.row * element_bytes;
  char* const rows =
      static_cast<char*>(to.data) +
      (to.strides.head_offset(batch, head) + first_key * to.strides.row) * element_bytes;
  // Vector by vector over all rows, in steps of kThreads.
  const int key_step = kThreads / vectors, vector_step = kThreads % vectors;
  int at = static_cast<int>(threadIdx.x) / vectors;
  int vector = static_cast<int>(threadIdx.x) % vectors;
  while (at < num_keys) {
    *reinterpret_cast<uint4*>(rows + keys[at] * row_bytes + 16 * vector) = make_uint4(0, 0, 0, 0);
    at += key_step;
    vector += vector_step;
    if (vector >= vectors) {
      vector -= vectors;
      ++at;
    }
  }
}

// A block handles kBlockKeys keys of a KV head.
__global__ void __launch_bounds__(kThreads)
    zero_unseen_rows(const __grid_constant__ KeyGradientParams p, int blocks_of_row) {
  constexpr int kWarps = kThreads / kWarpThreads;
  __shared__ std::uint8_t keys[kBlockKeys];
  __shared__ int counts[kWarps];
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
  if (exists && p.dkey_bias.data != nullptr) {
    p.dkey_bias.at(batch, head, key) = 0.0f;
  }
  const bool is_zeroed = exists && !is_seen;
  const std::uint32_t zeroed = __ballot_sync(~0u, is_zeroed);
  const int warp = static_cast<int>(threadIdx.x) / kWarpThreads;
  const int lane = static_cast<int>(threadIdx.x) % kWarpThreads;
  if (lane == 0) counts[warp] = __popc(zeroed);
  __syncthreads();
  int before = 0, num_keys = 0;
#pragma unroll
  for (int w = 0; w < kWarps; ++w) {
    before += w < warp ? counts[w] : 0;
    num_keys += counts[w];
  }
  if (is_zeroed) {
    keys[before + __popc(zeroed & ((1u << lane) - 1))] = static_cast<std::uint8_t>(threadIdx.x);
  }
  __syncthreads();
  zero_rows(p.dk, batch, head, first_key, p.head_dim, keys, num_keys);
  zero_rows(p.dv, batch, head, first_key, p.head_dim_v, keys, num_keys);
}

__device__ __forceinline__ std::int64_t rows_in_use(const KvAccum& sums, int group) {
  return sums.num_rows != nullptr ? sums.num_rows[group] : sums.rows_of_group;
}

// Each group has some blocks, which stride over its rows.
__global__ void __launch_bounds__(kThreads)
    zero_accum(const __grid_constant__ KvAccum sums, int blocks_of_group) {
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

/// First of the four of 16 columns that a lane has in a row of a gradient, after exchange_columns.
/// The lanes of a quad have columns 0, 8, 4 and 12.
__device__ __forceinline__ int first_column_of(int lane) {
  return lane / 4 * 16 + lane % 2 * 8 + lane / 2 % 2 * 4;
}

/// Turns four consecutive accumulators (worklist_accum_place) into four consecutive columns.
__device__ __forceinline__ float4 exchange_columns(const float4& x, int lane) {
  const bool is_odd = lane % 2 != 0;
  const float a = __shfl_xor_sync(~0u, is_odd ? x.x : x.z, 1);
  const float b = __shfl_xor_sync(~0u, is_odd ? x.y : x.w, 1);
  return is_odd ? make_float4(a, b, x.z, x.w) : make_float4(x.x, x.y, a, b);
}

template <class T>
__device__ __forceinline__ void store_4(const RowsView& to, std::int64_t at, const float4& x,
                                        float factor) {
  if (to.is_float32) {
    *reinterpret_cast<float4*>(static_cast<float*>(to.data) + at) =
        make_float4(x.x * factor, x.y * factor, x.z * factor, x.w * factor);
  } else {
    *reinterpret_cast<uint2*>(static_cast<T*>(to.data) + at) = make_uint2(
        ptx::pack<T>(x.x * factor, x.y * factor), ptx::pack<T>(x.z * factor, x.w * factor));
  }
}

// Lanes of a warp that share an accumulator row, 16 bytes each. Lanes of a longer row have more
// than 16 bytes.
template <int kDim>
constexpr int kRowLanes = kDim / 4 < kWarpThreads ? kDim / 4 : kWarpThreads;
constexpr int kRowsInFlight = 4;  // per lane, before the first is stored

// A warp has up to 32 accumulator rows. Each lane looks up one of them, then the lanes store them
// together.
template <class T, int kDim>
class SumRows {
 public:
  static constexpr int kLanes = kRowLanes<kDim>;
  static constexpr int kRowsAtOnce = kWarpThreads / kLanes;
  static constexpr int kLeastRows = kRowsInFlight * kRowsAtOnce;  ///< in flight at once

  /// Rows [row, row + num_rows) of a group's [first, end), as far as they exist.
  __device__ SumRows(const KeyGradientParams& params, std::int64_t first, std::int64_t end,
                     std::int64_t row, int num_rows)
      : p_(params), row_(row), end_(end), lane_(static_cast<int>(threadIdx.x) % kWarpThreads) {
    const AccumKey nobody{-1, -1};
    const auto key_of = [&](std::int64_t at) {
      return at >= first && at < end ? p_.sums.keys[at] : nobody;
    };
    const AccumKey of = lane_ < num_rows ? key_of(row + lane_) : nobody;
    const auto is_mine = [&](const AccumKey& other) {
      return of.key >= 0 && other.key == of.key && other.kv_row == of.kv_row;
    };
    AccumKey before{__shfl_up_sync(~0u, of.kv_row, 1), __shfl_up_sync(~0u, of.key, 1)};
    AccumKey after{__shfl_down_sync(~0u, of.kv_row, 1), __shfl_down_sync(~0u, of.key, 1)};
    if (lane_ == 0) before = key_of(row - 1);
    if (lane_ == num_rows - 1) after = key_of(row + num_rows);
    firsts_ = __ballot_sync(~0u, of.key >= 0 && !is_mine(before));
    continued_ = __ballot_sync(~0u, is_mine(after));
    const int batch = max(of.kv_row, 0) / p_.heads_kv, head = max(of.kv_row, 0) % p_.heads_kv;
    key_ = of;
    dk_at_ = p_.dk.strides.head_offset(batch, head) + of.key * p_.dk.strides.row;
    dv_at_ = p_.dv.strides.head_offset(batch, head) + of.key * p_.dv.strides.row;
    dbias_at_ = p_.dkey_bias.offset(batch, head, of.key);
  }

  __device__ void move() const {
    store_dbias();
    if (continued_ == 0) {
      for (std::uint32_t left = firsts_; left != 0;) left = move_single_rows(left);
    } else {
      for (std::uint32_t left = firsts_; left != 0; left &= left - 1) add_rows(__ffs(left) - 1);
    }
  }

 private:
  static constexpr int kChunkColumns = 4 * kLanes;

  /// Stores rows of keys that have only one row; returns the rows that are left.
  __device__ std::uint32_t move_single_rows(std::uint32_t left) const {
    int rows[kRowsInFlight];
#pragma unroll
    for (int i = 0; i < kRowsInFlight; ++i) {
      rows[i] = -1;
#pragma unroll
      for (int at_once = 0; at_once < kRowsAtOnce; ++at_once) {
        if (lane_ / kLanes == at_once) rows[i] = __ffs(left) - 1;
        left &= left - 1;
      }
    }
#pragma unroll
    for (int chunk = 0; chunk < kDim; chunk += kChunkColumns) {
      const int from = chunk + 4 * (lane_ % kLanes);
      float4 dk[kRowsInFlight], dv[kRowsInFlight];
#pragma unroll
      for (int i = 0; i < kRowsInFlight; ++i) {
        const std::int64_t at = (row_ + max(rows[i], 0)) * kDim + from;
        dk[i] = dv[i] = make_float4(0, 0, 0, 0);
        if (rows[i] >= 0) {
          dk[i] = __ldcs(reinterpret_cast<const float4*>(p_.sums.dk + at));
          dv[i] = __ldcs(reinterpret_cast<const float4*>(p_.sums.dv + at));
        }
      }
#pragma unroll
      for (int i = 0; i < kRowsInFlight; ++i) store(rows[i], chunk, dk[i], dv[i]);
    }
    return left;
  }

  /// Adds up the consecutive rows of a key and stores the sum. The first row is that of lane
  /// `first`.
  __device__ void add_rows(int first) const {
    const AccumKey of{__shfl_sync(~0u, key_.kv_row, first), __shfl_sync(~0u, key_.key, first)};
    const std::int64_t row = row_ + first;
    const auto is_of_key = [&](std::int64_t other) {
      return p_.sums.keys[other].key == of.key && p_.sums.keys[other].kv_row == of.kv_row;
    };
    int num_rows = 1;
    while (row + num_rows < end_ && is_of_key(row + num_rows)) ++num_rows;
#pragma unroll 1
    for (int chunk = 0; chunk < kDim; chunk += kChunkColumns) {
      const std::int64_t from = row * kDim + chunk + 4 * (lane_ % kLanes);
      float4 dk = make_float4(0, 0, 0, 0), dv = dk;
#pragma unroll 2
      for (int i = 0; i < num_rows; ++i) {
        const std::int64_t at = from + std::int64_t{i} * kDim;
        const float4 a = __ldcs(reinterpret_cast<const float4*>(p_.sums.dk + at));
        const float4 b = __ldcs(reinterpret_cast<const float4*>(p_.sums.dv + at));
        dk = make_float4(dk.x + a.x, dk.y + a.y, dk.z + a.z, dk.w + a.w);
        dv = make_float4(dv.x + b.x, dv.y + b.y, dv.z + b.z, dv.w + b.w);
      }
      store(lane_ < kLanes ? first : -1, chunk, dk, dv);
    }
  }

  /// Stores the row that lane `row` has looked up; -1 is none. All lanes call it.
  __device__ void store(int row, int chunk, const float4& dk, const float4& dv) const {
    const int column = chunk + first_column_of(lane_ % kLanes);
    const std::int64_t dk_at = __shfl_sync(~0u, dk_at_, max(row, 0)) + column;
    const std::int64_t dv_at = __shfl_sync(~0u, dv_at_, max(row, 0)) + column;
    const float4 k = exchange_columns(dk, lane_), v = exchange_columns(dv, lane_);
    if (row < 0) return;
    if (column < p_.head_dim) store_4<T>(p_.dk, dk_at, k, p_.scale);
    if (column < p_.head_dim_v) store_4<T>(p_.dv, dv_at, v, 1.0f);
  }

  __device__ void store_dbias() const {
    if (p_.dkey_bias.data == nullptr || p_.sums.dbias == nullptr) return;
    if ((firsts_ >> lane_ & 1u) == 0) return;
    const std::int64_t row = row_ + lane_;
    float sum = p_.sums.dbias[row];
    for (std::int64_t i = row + 1; i < end_ && p_.sums.keys[i] == key_; ++i)
      sum += p_.sums.dbias[i];
    p_.dkey_bias.data[dbias_at_] = sum;
  }

  const KeyGradientParams& p_;
  std::int64_t row_, end_;
  int lane_;
  AccumKey key_;
  /// Rows that are a key's first; rows followed by another of the same key
  std::uint32_t firsts_, continued_;
  std::int64_t dk_at_, dv_at_, dbias_at_;
};

// Each group has some blocks, which stride over its rows.
template <class T, int kDim>
__global__ void __launch_bounds__(kThreads, kStoreBlocks)
    store_accum(const __grid_constant__ KeyGradientParams p, int blocks_of_group) {
  const KvAccum& sums = p.sums;
  const int group = static_cast<int>(blockIdx.x) / blocks_of_group;
  const int block = static_cast<int>(blockIdx.x) % blocks_of_group;
  const std::int64_t first = group * sums.rows_of_group, end = first + rows_in_use(sums, group);
  // Where rows are few, the division still gives all warps some of them.
  const int num_warps = blocks_of_group * (kThreads / kWarpThreads);
  const int warp = (block * kThreads + static_cast<int>(threadIdx.x)) / kWarpThreads;
  constexpr int kLeastRows = SumRows<T, kDim>::kLeastRows;
  const std::int64_t share = (end - first + num_warps - 1) / num_warps;
  const auto num_rows = static_cast<int>(
      min((share + kLeastRows - 1) / kLeastRows * kLeastRows, std::int64_t{kWarpThreads}));
  for (std::int64_t row = first + std::int64_t{warp} * num_rows; row < end;
       row += std::int64_t{num_warps} * num_rows) {
    SumRows<T, kDim>(p, first, end, row, num_rows).move();
  }
}

int blocks_of_group(const KvAccum& sums) {
  return static_cast<int>(
      std::clamp<std::int64_t>(kSumBlocks / sums.num_groups, 1, sums.rows_of_group));
}

bool has_accum(const KvAccum& sums) { return sums.num_groups > 0 && sums.rows_of_group > 0; }

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
  if (!has_accum(params.sums)) return cudaSuccess;
  const int num_blocks = blocks_of_group(params.sums);
  zero_accum<<<static_cast<unsigned>(num_blocks * params.sums.num_groups), kThreads, 0, stream>>>(
      params.sums, num_blocks);
  return cudaGetLastError();
}

template <class T>
cudaError_t store_key_gradients(const KeyGradientParams& params, cudaStream_t stream) {
  if (!has_accum(params.sums)) return cudaSuccess;
  const int num_blocks = blocks_of_group(params.sums);
  const int dim = params.sums.dim_qk;
  const auto kernel = dim == 64    ? store_accum<T, 64>
                      : dim == 128 ? store_accum<T, 128>
                                   : store_accum<T, 256>;
  kernel<<<static_cast<unsigned>(num_blocks * params.sums.num_groups), kThreads, 0, stream>>>(
      params, num_blocks);
  return cudaGetLastError();
}

template cudaError_t store_key_gradients<__nv_bfloat16>(const KeyGradientParams&, cudaStream_t);
template cudaError_t store_key_gradients<__half>(const KeyGradientParams&, cudaStream_t);

}  // namespace fdma::gpu
