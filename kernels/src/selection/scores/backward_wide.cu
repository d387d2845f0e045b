// dvalues and ddt_proj of a wide dt_proj, on tensor cores, once ddt is known. A block handles 128
// elements of the rows and a part of the keys, 64 at a time; a warp handles 32 of the elements.
//
//   spread   [keys, elements] = ddt [keys, heads] dt_proj [heads, elements], whose fragments stay
//            in registers
//   gather   [elements, heads] += values^T [elements, keys] ddt [keys, heads], in registers over
//            all keys of the part
//
// Products are TF32, which represents values and weights of 16 bits exactly. ddt is split into high
// + low of 11 bits each, and so are values and weights of float32. The product low times low is
// left out, which is 2^-22 of a term. Values come by cp.async a tile ahead; rows of keys without a
// ddt come as zeros. A sum does not depend on which key, head or element is which row or column of
// a fragment, so they are chosen such that a lane's items are neighbours in memory.
#include <algorithm>
#include <cstdint>

#include "cuda/cuda_error.hpp"
#include "ptx/async_copy.cuh"
#include "ptx/mma.cuh"
#include "selection/scores/backward_arrays.cuh"
#include "selection/scores/zoh_vector.cuh"

namespace fdma::zoh {
namespace {

constexpr int kThreads = 128;
constexpr int kTileKeys = 64, kTileColumns = 128;
constexpr int kWarpColumns = 32, kPairs = kWarpColumns / 16;  // a pair is two tiles of columns
constexpr int kMostHeads = 32;

template <class T>
constexpr bool kIsSplit = sizeof(T) == 4;  ///< into two TF32
/// Row stride of values in shared memory: the lanes of a load access different banks.
template <class T>
constexpr int kRowBytes = int{sizeof(T)} * kTileColumns + 16;

__device__ __forceinline__ void multiply(float (&sum)[4], const std::uint32_t (&a)[4],
                                         std::uint32_t b0, std::uint32_t b1) {
  ptx::mma<float>(sum, a[0], a[1], a[2], a[3], b0, b1);
}

/// Two adjacent elements of 16 bits as float32.
template <class T>
__device__ __forceinline__ float2 widen_pair(std::uint32_t raw);
template <>
__device__ __forceinline__ float2 widen_pair<__nv_bfloat16>(std::uint32_t raw) {
  return {__uint_as_float(raw << 16), __uint_as_float(raw & 0xFFFF0000u)};
}
template <>
__device__ __forceinline__ float2 widen_pair<__half>(std::uint32_t raw) {
  return __half22float2(*reinterpret_cast<const __half2*>(&raw));
}

/// Splits x into the nearest number of 11 bits and the rest, of which the tensor core reads 11
/// bits. A value that is not finite is all in the first.
__device__ __forceinline__ uint2 split(float x) {
  const std::uint32_t high = (__float_as_uint(x) + 0x1000u) & 0xFFFFE000u;
  const bool is_finite = (high & 0x7F800000u) != 0x7F800000u;
  return is_finite ? make_uint2(high, __float_as_uint(x - __uint_as_float(high)))
                   : make_uint2(__float_as_uint(x), 0);
}

/// Where two keys of a head lie. Lanes that load 16 bytes together, of four keys and two heads or
/// of two keys and four heads, access different banks.
__device__ __forceinline__ int place(int head, int key) {
  return key ^ ((head & 1) << 3 | (head & 2) << 1);
}

template <class T>
struct Shared {
  uint2 ddt[2][kMostHeads][kTileKeys];  ///< high and low
  unsigned char values[2][kTileKeys][kRowBytes<T>];
  std::uint8_t used[2][kTileKeys];
};

template <class T, int kHeadTiles>
class Block {
 public:
  static constexpr int kHeads = 8 * kHeadTiles;
  static constexpr int kDdts = kHeads * kTileKeys / kThreads;  // per thread

  static constexpr int kElements = 16 / static_cast<int>(sizeof(T));
  static constexpr int kChunks = kTileColumns / kElements;  ///< of 16 bytes, in a row

  __device__ Block(const BackwardCall& call, const Arrays& arrays, Shared<T>& shared)
      : call_(call),
        forward_(call.forward),
        arrays_(arrays),
        shared_(shared),
        thread_(static_cast<int>(threadIdx.x)),
        group_(thread_ % 32 / 4),
        quad_(thread_ % 4),
        first_column_(static_cast<int>(blockIdx.x) * kTileColumns),
        warp_column_(thread_ / 32 * kWarpColumns),
        width_(forward_.num_heads * forward_.head_dim),
        end_(min((static_cast<int>(blockIdx.y) + 1) * arrays.part_keys, arrays.num_keys)) {
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
      // Column n of the j-th tile is element 4 (n / 2) + 2 j + n % 2 of the pair.
      const int column = first_column_ + warp_column_ + 16 * p + 4 * quad_;
      const int head = column / forward_.head_dim, element = column % forward_.head_dim;
      is_inside_[p] = column < width_;
      to_[p] = head * call.dvalues.head_stride + element;
      other_from_[p] = head * call.other.head_stride + element;
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int row = 8 * h + quad_ + 4 * (i % 2);
          const int at =
              first_column_ + warp_column_ + 16 * p + 4 * (group_ / 2) + i / 2 * 2 + group_ % 2;
          const bool is_inside = row < forward_.num_heads && at < width_;
          const float weight =
              is_inside
                  ? forward_.weights[row * forward_.weight_row_stride + at * forward_.weight_stride]
                  : 0.0F;
          weights_[p][h][i / 2][i % 2] = __float_as_uint(weight);
          if constexpr (kIsSplit<T>) {
            const uint2 parts = split(weight);
            weights_[p][h][i / 2][i % 2] = parts.x;
            low_weights_[p][h][i / 2][i % 2] = parts.y;
          }
        }
      }
    }
    const int chunk_column = first_column_ + kElements * (thread_ % kChunks);
    values_ = static_cast<const T*>(forward_.values.data);
    if (chunk_column < width_ && call.ddt_proj.data != nullptr) {
      reads_values_ = true;
      values_ += chunk_column / forward_.head_dim * forward_.head_stride +
                 chunk_column % forward_.head_dim;
    }
  }

  __device__ void run() {
    std::int64_t key = static_cast<int>(blockIdx.y) * arrays_.part_keys;
    float ddt[kDdts];
    load_values(0, key);
    load_ddt(key, ddt);
    store_ddt(0, ddt);
    int stage = 0;
    for (; key < end_; key += kTileKeys, stage ^= 1) {
      const bool has_next = key + kTileKeys < end_;
      if (has_next) {
        load_values(stage ^ 1, key + kTileKeys);
        load_ddt(key + kTileKeys, ddt);
        ptx::copies_wait<1>();
      } else {
        ptx::copies_wait<0>();
      }
      __syncthreads();
      if (call_.ddt_proj.data != nullptr) gather(stage);
      if (call_.dvalues.data != nullptr) spread(stage, key);
      if (has_next) store_ddt(stage ^ 1, ddt);
      __syncthreads();
    }
    if (call_.ddt_proj.data != nullptr) store_sums();
  }

 private:
  /// Batch element of a key.
  __device__ int batch_of(std::int64_t flat) const {
    return forward_.num_batches == 1
               ? 0
               : static_cast<int>(static_cast<std::uint32_t>(flat) /
                                  static_cast<std::uint32_t>(forward_.kv_len));
  }

  __device__ void load_values(int stage, std::int64_t first) {
    if (thread_ < kTileKeys) {
      shared_.used[stage][thread_] = first + thread_ < end_ ? arrays_.used[first + thread_] : 0;
    }
    constexpr int kRows = kThreads / kChunks;
    bool is_read[kTileKeys / kRows];
#pragma unroll
    for (int i = 0; i < kTileKeys / kRows; ++i) {
      const std::int64_t flat = first + thread_ / kChunks + kRows * i;
      is_read[i] = reads_values_ && flat < end_ && arrays_.used[flat] != 0;
    }
#pragma unroll
    for (int i = 0; i < kTileKeys / kRows; ++i) {
      const int row = thread_ / kChunks + kRows * i;
      const T* from = values_;
      if (is_read[i]) {
        const std::int64_t flat = first + row;
        const int batch = batch_of(flat);
        from +=
            batch * forward_.batch_stride + (flat - batch * forward_.kv_len) * forward_.key_stride;
      }
      const auto to = static_cast<std::uint32_t>(
          __cvta_generic_to_shared(&shared_.values[stage][row][16 * (thread_ % kChunks)]));
      ptx::copy_16_async(to, from, is_read[i] ? 16 : 0);
    }
    ptx::copies_commit();
  }

  // A thread has one key and every second head.
  __device__ void load_ddt(std::int64_t first, float (&ddt)[kDdts]) const {
    const std::int64_t flat = first + thread_ % kTileKeys;
    const bool is_inside = flat < end_;
    const std::int64_t batch = is_inside ? batch_of(flat) : 0;
    const float* const from =
        arrays_.ddt + batch * (forward_.num_heads - 1) * forward_.kv_len + flat;
#pragma unroll
    for (int i = 0; i < kDdts; ++i) {
      const int head = thread_ / kTileKeys + kThreads / kTileKeys * i;
      ddt[i] = is_inside && head < forward_.num_heads ? from[head * forward_.kv_len] : 0.0F;
    }
  }
  __device__ void store_ddt(int stage, const float (&ddt)[kDdts]) const {
#pragma unroll
    for (int i = 0; i < kDdts; ++i) {
      const int head = thread_ / kTileKeys + kThreads / kTileKeys * i;
      shared_.ddt[stage][head][place(head, thread_ % kTileKeys)] = split(ddt[i]);
    }
  }

  /// High and low of keys `key` and `key` + 1.
  __device__ uint4 load_two(int stage, int head, int key) const {
    return *reinterpret_cast<const uint4*>(&shared_.ddt[stage][head][place(head, key)]);
  }

  // Rows g and g + 8 of a fragment are elements 2g and 2g + 1 of the pair. Columns t and t + 4 are
  // keys 2t and 2t + 1.
  __device__ void gather(int stage) {
#pragma unroll kIsSplit < T> ? 1 : 2
    for (int key = 0; key < kTileKeys; key += 8) {
      std::uint32_t a[kPairs][4], low[kIsSplit<T> ? kPairs : 1][4];
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const unsigned char* const at =
              &shared_.values[stage][key + 2 * quad_ + i]
                             [sizeof(T) * (warp_column_ + 16 * p + 2 * group_)];
          if constexpr (kIsSplit<T>) {
            const float2 both = *reinterpret_cast<const float2*>(at);
            const uint2 x = split(both.x), y = split(both.y);
            a[p][2 * i] = x.x;
            a[p][2 * i + 1] = y.x;
            low[p][2 * i] = x.y;
            low[p][2 * i + 1] = y.y;
          } else {
            const float2 both = widen_pair<T>(*reinterpret_cast<const std::uint32_t*>(at));
            a[p][2 * i] = __float_as_uint(both.x);
            a[p][2 * i + 1] = __float_as_uint(both.y);
          }
        }
      }
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
        const uint4 b = load_two(stage, 8 * h + group_, key + 2 * quad_);
#pragma unroll
        for (int p = 0; p < kPairs; ++p) {
          multiply(sums_[p][h], a[p], b.x, b.z);
          multiply(sums_[p][h], a[p], b.y, b.w);
          if constexpr (kIsSplit<T>) multiply(sums_[p][h], low[p], b.x, b.z);
        }
      }
    }
  }

  /// Two rows of a tile for a lane: keys 2g and 2g + 1 of 16, their offsets in dvalues, and the
  /// values of other_dvalues there.
  struct Rows {
    bool is_used[2], is_stored[2];
    std::int64_t to[2];
    uint4 other[2][kPairs];
  };
  __device__ void load_rows(int stage, std::int64_t first, int key, Rows& rows) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int row = key + 2 * group_ + i;
      const std::int64_t flat = first + row;
      rows.is_used[i] = shared_.used[stage][row] != 0;
      rows.is_stored[i] = flat < end_ && (rows.is_used[i] || !call_.is_in_place);
      const int batch = batch_of(flat);
      const std::int64_t at = flat - batch * forward_.kv_len;
      rows.to[i] = batch * call_.dvalues.batch_stride + at * call_.dvalues.key_stride;
      if (call_.other.data == nullptr) continue;
      const std::int64_t from = batch * call_.other.batch_stride + at * call_.other.key_stride;
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
        if (!rows.is_stored[i] || !is_inside_[p]) continue;
        if (kIsSplit<T> || call_.other.dtype == DType::float32) {
          rows.other[i][p] = __ldcs(reinterpret_cast<const uint4*>(
              static_cast<const float*>(call_.other.data) + from + other_from_[p]));
        } else {
          const uint2 raw = __ldcs(reinterpret_cast<const uint2*>(
              static_cast<const T*>(call_.other.data) + from + other_from_[p]));
          rows.other[i][p] = make_uint4(raw.x, raw.y, 0, 0);
        }
      }
    }
  }

  // Rows g and g + 8 of a fragment are keys 2g and 2g + 1.
  __device__ void spread(int stage, std::int64_t first) const {
    Rows rows;
    load_rows(stage, first, 0, rows);
#pragma unroll kIsSplit < T> ? 1 : kTileKeys / 16
    for (int key = 0; key < kTileKeys; key += 16) {
      Rows next;
      if (key + 16 < kTileKeys) load_rows(stage, first, key + 16, next);
      float sums[kPairs][2][4] = {};
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
        const uint4 near = load_two(stage, 8 * h + quad_, key + 2 * group_);
        const uint4 far = load_two(stage, 8 * h + quad_ + 4, key + 2 * group_);
        const std::uint32_t high[4] = {near.x, near.z, far.x, far.z};
        const std::uint32_t low[4] = {near.y, near.w, far.y, far.w};
#pragma unroll
        for (int p = 0; p < kPairs; ++p) {
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            if constexpr (kIsSplit<T>) {
              multiply(sums[p][j], high, low_weights_[p][h][j][0], low_weights_[p][h][j][1]);
            }
            multiply(sums[p][j], low, weights_[p][h][j][0], weights_[p][h][j][1]);
            multiply(sums[p][j], high, weights_[p][h][j][0], weights_[p][h][j][1]);
          }
        }
      }
#pragma unroll
      for (int p = 0; p < kPairs; ++p) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          store(
              rows, i, p,
              {sums[p][0][2 * i], sums[p][0][2 * i + 1], sums[p][1][2 * i], sums[p][1][2 * i + 1]});
        }
      }
      rows = next;
    }
  }

  /// Stores four elements of a row of dvalues.
  __device__ void store(const Rows& rows, int i, int p, float4 x) const {
    if (!rows.is_stored[i] || !is_inside_[p]) return;
    if (!rows.is_used[i]) x = make_float4(0, 0, 0, 0);
    if (call_.other.data != nullptr) {
      const uint4 raw = rows.other[i][p];
      float2 low = {__uint_as_float(raw.x), __uint_as_float(raw.y)};
      float2 high = {__uint_as_float(raw.z), __uint_as_float(raw.w)};
      if constexpr (!kIsSplit<T>) {
        if (call_.other.dtype != DType::float32) {
          low = widen_pair<T>(raw.x);
          high = widen_pair<T>(raw.y);
        }
      }
      x = make_float4(x.x + low.x, x.y + low.y, x.z + high.x, x.w + high.y);
    }
    const std::int64_t at = rows.to[i] + to_[p];
    if (kIsSplit<T> || call_.dvalues.dtype == DType::float32) {
      __stcs(reinterpret_cast<float4*>(static_cast<float*>(call_.dvalues.data) + at), x);
    } else if constexpr (!kIsSplit<T>) {
      const float eight[8] = {x.x, x.y, x.z, x.w};
      const uint4 raw = Chunk<T>::narrow(eight);
      __stcs(reinterpret_cast<uint2*>(static_cast<T*>(call_.dvalues.data) + at),
             make_uint2(raw.x, raw.y));
    }
  }

  __device__ void store_sums() const {
    float* const to = arrays_.weight_parts + std::int64_t{blockIdx.y} * forward_.num_heads * width_;
#pragma unroll
    for (int p = 0; p < kPairs; ++p) {
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int head = 8 * h + 2 * quad_ + i % 2;
          const int column = first_column_ + warp_column_ + 16 * p + 2 * group_ + i / 2;
          if (head < forward_.num_heads && column < width_) {
            to[std::int64_t{head} * width_ + column] = sums_[p][h][i];
          }
        }
      }
    }
  }

  const BackwardCall& call_;
  const DeviceScoresCall& forward_;
  const Arrays& arrays_;
  Shared<T>& shared_;
  int thread_, group_, quad_, first_column_, warp_column_, width_;
  std::int64_t end_;
  const T* values_;  ///< address of this thread's 16 bytes of a row
  bool reads_values_ = false;
  bool is_inside_[kPairs];                        ///< the four elements of a row that a lane stores
  std::int64_t to_[kPairs], other_from_[kPairs];  ///< their offsets in a row
  std::uint32_t weights_[kPairs][kHeadTiles][2][2];
  std::uint32_t low_weights_[kIsSplit<T> ? kPairs : 1][kHeadTiles][2][2];  ///< of float32
  float sums_[kPairs][kHeadTiles][4] = {};
};

template <class T, int kHeadTiles>
__global__ void __launch_bounds__(kThreads, 2)
    backward_wide(const __grid_constant__ BackwardCall call,
                  const __grid_constant__ Arrays arrays) {
  extern __shared__ __align__(128) unsigned char memory[];
  Block<T, kHeadTiles>(call, arrays, *reinterpret_cast<Shared<T>*>(memory)).run();
}

template <class T, int kHeadTiles>
Result<void> launch(const BackwardCall& call, const Arrays& arrays, Stream stream) {
  constexpr int kBytes = sizeof(Shared<T>);
  FDMA_TRY_VOID(
      gpu::check_cuda(cudaFuncSetAttribute(backward_wide<T, kHeadTiles>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
                      "cudaFuncSetAttribute"));
  const std::int64_t width = std::int64_t{call.forward.num_heads} * call.forward.head_dim;
  const dim3 grid(static_cast<unsigned>(ceil_div(width, kTileColumns)),
                  static_cast<unsigned>(arrays.num_parts));
  backward_wide<T, kHeadTiles><<<grid, kThreads, kBytes, stream>>>(call, arrays);
  return {};
}

template <class T>
Result<void> launch_of(const BackwardCall& call, const Arrays& arrays, Stream stream) {
  if (call.forward.num_heads <= 8) return launch<T, 1>(call, arrays, stream);
  if (call.forward.num_heads <= 16) return launch<T, 2>(call, arrays, stream);
  return launch<T, 4>(call, arrays, stream);
}

}  // namespace

bool is_backward_wide(const BackwardCall& call) {
  const DeviceScoresCall& forward = call.forward;
  return !forward.is_per_head && forward.weights.dtype == forward.values.dtype &&
         forward.num_heads <= kMostHeads &&
         std::int64_t{forward.num_batches} * forward.kv_len < std::int64_t{1} << 31 &&
         has_wide_rows(forward) && has_aligned_rows(call.dvalues) && has_aligned_rows(call.other);
}

Result<void> launch_backward_wide(const BackwardCall& call, const Arrays& arrays, Stream stream) {
  if (call.forward.values.dtype == DType::bfloat16) {
    return launch_of<__nv_bfloat16>(call, arrays, stream);
  }
  if (call.forward.values.dtype == DType::float32) return launch_of<float>(call, arrays, stream);
  return launch_of<__half>(call, arrays, stream);
}

}  // namespace fdma::zoh
