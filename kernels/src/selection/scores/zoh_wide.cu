// ZOH scores of a wide dt_proj [heads_kv, heads_kv * head_dim] on tensor cores: a matrix product
// with few columns, bound by reading `values`.
//
// A block has a range of keys and handles 256 at a time, 16 or 32 per warp. Values and weights of
// 256 bytes of a row, a slice, come to shared memory by cp.async. Slices and tiles follow each
// other without a gap, with two slices in flight. The weights are therefore read once per 256 keys
// instead of once per warp, and the amount in flight does not depend on registers. Sums do not
// depend on the order of their terms, so a lane's 16 bytes are the fragments of two mma
// instructions without rearrangement, in values and weights alike.
//
// A slice is summed by itself and then added in float32, rounded. Tensor cores round their sums
// towards zero, which would show in long sums.
//
// float32     x = high + low, both TF32: high is x rounded to 11 bits, low the rest. The products
// high * high, high * low and low * high leave out 2^-22 of each term. A sum that becomes infinite
// or NaN is computed again without tensor cores, because infinity has no low part
// Determined  a score depends neither on kv_len nor on the place of its key
#include "cuda/cuda_error.hpp"
#include "ptx/addresses.cuh"
#include "ptx/async_copy.cuh"
#include "ptx/mma.cuh"
#include "selection/scores/call.cuh"

namespace fdma::zoh {
namespace {

constexpr int kTileKeys = 256;

template <class T>
constexpr bool kIsSplit = sizeof(T) == 4;

// float32 has long chains of dependent instructions, so it uses more warps with fewer keys.
template <class T, int kColumnTiles>
struct Layout {
  static constexpr int kRowTiles = kIsSplit<T> ? 1 : 2;  // of 16 keys, per warp
  static constexpr int kThreads = kTileKeys / (16 * kRowTiles) * 32;
  static constexpr int kSliceBytes = 256;
  static constexpr int kChunks = kSliceBytes / 16;
  static constexpr int kValueBytes = kTileKeys * kSliceBytes;
  static constexpr int kWeightBytes = 8 * kColumnTiles * kSliceBytes;
  static constexpr int kStageBytes = kValueBytes + kWeightBytes;
  static constexpr int kStages = 3;
  static constexpr int kBytes = kStages * kStageBytes;
  static_assert(kBytes <= 227 * 1024);

  // Where a chunk of 16 bytes lies: four chunks of two rows are in different banks.
  static __device__ __forceinline__ int place(int row, int chunk) {
    return (row * kChunks + (chunk ^ (row & 1) << 2)) * 16;
  }
};

// Splits x into the nearest number of 11 bits and the rest, of which the tensor core reads 11 bits.
__device__ __forceinline__ void split(std::uint32_t x, std::uint32_t& high, std::uint32_t& low) {
  high = (x + 0x1000u) & 0xFFFFE000u;
  low = __float_as_uint(__uint_as_float(x) - __uint_as_float(high));
}
__device__ __forceinline__ void split(const uint4& x, uint4& high, uint4& low) {
  split(x.x, high.x, low.x);
  split(x.y, high.y, low.y);
  split(x.z, high.z, low.z);
  split(x.w, high.w, low.w);
}

template <class T, int kColumnTiles>
class Block {
 public:
  using Sizes = Layout<T, kColumnTiles>;
  static constexpr int kStages = Sizes::kStages;
  static constexpr int kRowTiles = Sizes::kRowTiles;
  static constexpr int kThreads = Sizes::kThreads;
  static constexpr int kChunks = Sizes::kChunks;
  static constexpr int kElements = Sizes::kSliceBytes / static_cast<int>(sizeof(T));  // of a row

  __device__ Block(const DeviceScoresCall& call, std::uint32_t memory, std::int64_t keys_per_block,
                   int num_column_blocks)
      : call_(call),
        memory_(memory),
        thread_(static_cast<int>(threadIdx.x)),
        group_(thread_ % 32 / 4),
        quad_(thread_ % 4),
        first_row_(thread_ / 32 * 16 * kRowTiles),
        batch_(static_cast<int>(blockIdx.y)),
        first_head_(static_cast<int>(blockIdx.x) % num_column_blocks * 8 * kColumnTiles),
        width_(call.num_heads * call.head_dim),
        first_key_(static_cast<int>(blockIdx.x) / num_column_blocks * keys_per_block),
        end_key_(min(first_key_ + keys_per_block, call.kv_len)),
        values_(static_cast<const T*>(call.values.data) + batch_ * call.batch_stride),
        weights_(static_cast<const T*>(call.weights.data)) {}

  __device__ void run() {
    std::int64_t load_key = first_key_;
    int load_at = 0, load_stage = 0, stage = 0;
    const auto load_next = [&] {
      if (load_key < end_key_) load(load_stage, load_key, load_at);
      ptx::copies_commit();
      load_at += kElements;
      if (load_at >= width_) {
        load_at = 0;
        load_key += kTileKeys;
      }
      load_stage = load_stage + 1 == kStages ? 0 : load_stage + 1;
    };
    for (int i = 0; i < kStages - 1; ++i) load_next();
    for (std::int64_t key = first_key_; key < end_key_; key += kTileKeys) {
      float sums[kRowTiles][kColumnTiles][4] = {};
      const bool has_keys = key + first_row_ < end_key_;
      for (int at = 0; at < width_; at += kElements) {
        ptx::copies_wait<kStages - 2>();
        __syncthreads();
        load_next();
        if (has_keys) add(sums, stage);
        stage = stage + 1 == kStages ? 0 : stage + 1;
      }
      if (has_keys) store(key, sums);
    }
    ptx::copies_wait<0>();
  }

 private:
  __device__ std::uint32_t values_at(int stage) const {
    return memory_ + stage * Sizes::kStageBytes;
  }
  __device__ std::uint32_t weights_at(int stage) const {
    return values_at(stage) + Sizes::kValueBytes;
  }
  // Chunks past the row or the range of keys become zero and are not read.
  __device__ __forceinline__ void load(int stage, std::int64_t key, int at) const {
    constexpr int kRows = kThreads / kChunks;
    const int chunk = thread_ % kChunks, first = thread_ / kChunks;
    const int column = at + chunk * (16 / static_cast<int>(sizeof(T)));
    const bool is_inside = column < width_;
#pragma unroll
    for (int i = 0; i < kTileKeys / kRows; ++i) {
      const int row = first + i * kRows;
      const bool is_read = is_inside && key + row < end_key_;
      ptx::copy_16_async(values_at(stage) + Sizes::place(row, chunk),
                         is_read ? values_ + (key + row) * call_.key_stride + column : values_,
                         is_read ? 16 : 0);
    }
#pragma unroll
    for (int i = 0; i < (8 * kColumnTiles + kRows - 1) / kRows; ++i) {
      const int row = first + i * kRows;
      if (row >= 8 * kColumnTiles) break;
      const int head = first_head_ + row;
      const bool is_read = is_inside && head < call_.num_heads;
      ptx::copy_16_async(weights_at(stage) + Sizes::place(row, chunk),
                         is_read ? weights_ + head * call_.weight_row_stride + column : weights_,
                         is_read ? 16 : 0);
    }
  }

  __device__ void add(float (&sums)[kRowTiles][kColumnTiles][4], int stage) const {
    float parts[kRowTiles][kColumnTiles][4] = {};
#pragma unroll kIsSplit < T> ? 2 : kChunks / 4
    for (int first_chunk = 0; first_chunk < kChunks; first_chunk += 4) {
      const int chunk = first_chunk + quad_;
      uint4 a[kRowTiles][2];
#pragma unroll
      for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const int row = first_row_ + 16 * r + 8 * half + group_;
          a[r][half] = ptx::load_words(values_at(stage) + Sizes::place(row, chunk));
        }
      }
      if constexpr (kIsSplit<T>) {
        uint4 low[kRowTiles][2];
#pragma unroll
        for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const uint4 x = a[r][half];
            split(x, a[r][half], low[r][half]);
          }
        }
#pragma unroll
        for (int c = 0; c < kColumnTiles; ++c) {
          uint4 b, b_low;
          split(ptx::load_words(weights_at(stage) + Sizes::place(8 * c + group_, chunk)), b, b_low);
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r) {
            multiply_both(parts[r][c], low[r], b);
            multiply_both(parts[r][c], a[r], b_low);
            multiply_both(parts[r][c], a[r], b);
          }
        }
      } else {
#pragma unroll
        for (int c = 0; c < kColumnTiles; ++c) {
          const uint4 b = ptx::load_words(weights_at(stage) + Sizes::place(8 * c + group_, chunk));
#pragma unroll
          for (int r = 0; r < kRowTiles; ++r) multiply_both(parts[r][c], a[r], b);
        }
      }
    }
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) sums[r][c][i] += parts[r][c][i];
      }
    }
  }

  // Multiplies 64 bytes of 16 rows and 8 heads. In an mma, lane 4 g + t holds four columns of rows
  // g and g + 8; here these are adjacent.
  __device__ static void multiply_both(float (&sum)[4], const uint4 (&a)[2], const uint4& b) {
    ptx::mma<T>(sum, a[0].x, a[1].x, a[0].y, a[1].y, b.x, b.y);
    ptx::mma<T>(sum, a[0].z, a[1].z, a[0].w, a[1].w, b.z, b.w);
  }

  __device__ void store(std::int64_t first, const float (&sums)[kRowTiles][kColumnTiles][4]) const {
    std::uint32_t again = 0;
#pragma unroll
    for (int r = 0; r < kRowTiles; ++r) {
#pragma unroll
      for (int c = 0; c < kColumnTiles; ++c) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const std::int64_t key = first + first_row_ + 16 * r + 8 * (i / 2) + group_;
          const int head = first_head_ + 8 * c + 2 * quad_ + i % 2;
          if (key >= end_key_ || head >= call_.num_heads) continue;
          if (kIsSplit<T> && !(fabsf(sums[r][c][i]) <= kLargestFloat)) {
            again |= 1u << ((r * kColumnTiles + c) * 4 + i);
          } else {
            store_score(call_, batch_, head, key, sums[r][c][i]);
          }
        }
      }
    }
    if constexpr (kIsSplit<T>) {
      for (std::uint32_t lanes = __ballot_sync(0xFFFFFFFFu, again != 0); lanes != 0;
           lanes &= lanes - 1) {
        const int lane = __ffs(static_cast<int>(lanes)) - 1;
        for (std::uint32_t left = __shfl_sync(0xFFFFFFFFu, again, lane); left != 0;
             left &= left - 1) {
          const int bit = __ffs(static_cast<int>(left)) - 1, i = bit % 4;
          const int c = bit / 4 % kColumnTiles, r = bit / 4 / kColumnTiles;
          sum_again(first + first_row_ + 16 * r + 8 * (i / 2) + lane / 4,
                    first_head_ + 8 * c + 2 * (lane % 4) + i % 2);
        }
      }
    }
  }

  // Computes one score by the lanes of a warp, without tensor cores.
  __device__ void sum_again(std::int64_t key, int head) const {
    const int lane = thread_ % 32;
    const T* const row = values_ + key * call_.key_stride;
    const T* const weights = weights_ + head * call_.weight_row_stride;
    float sum = 0;
    for (int i = lane; i < width_; i += 32) {
      sum = fmaf(static_cast<float>(row[i]), static_cast<float>(weights[i]), sum);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xFFFFFFFFu, sum, step);
    if (lane == 0) store_score(call_, batch_, head, key, sum);
  }

  static constexpr float kLargestFloat = 0x1.FFFFFEp127F;
  const DeviceScoresCall& call_;
  std::uint32_t memory_;
  int thread_, group_, quad_;
  int first_row_;  ///< of the warp, in a tile
  int batch_, first_head_, width_;
  std::int64_t first_key_, end_key_;
  const T* values_;  ///< of the batch element
  const T* weights_;
};

template <class T, int kColumnTiles>
__global__ void __launch_bounds__(Layout<T, kColumnTiles>::kThreads, 1)
    score_wide(const __grid_constant__ DeviceScoresCall call, std::int64_t keys_per_block,
               int num_column_blocks) {
  extern __shared__ __align__(128) unsigned char memory[];
  Block<T, kColumnTiles>(call, static_cast<std::uint32_t>(__cvta_generic_to_shared(memory)),
                         keys_per_block, num_column_blocks)
      .run();
}

// Divides keys into one range per multiprocessor, or a few where there are many batch elements.
template <class T, int kColumnTiles>
Result<void> launch(const DeviceScoresCall& call, Stream stream) {
  constexpr int kBytes = Layout<T, kColumnTiles>::kBytes;
  FDMA_TRY_VOID(
      gpu::check_cuda(cudaFuncSetAttribute(score_wide<T, kColumnTiles>,
                                           cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
                      "cudaFuncSetAttribute"));
  const std::int64_t column_blocks = ceil_div(call.num_heads, 8 * kColumnTiles);
  const std::int64_t others = column_blocks * call.num_batches;
  const std::int64_t ranges =
      others <= 16 ? kMultiprocessors / others : ceil_div(4 * kMultiprocessors, others);
  const std::int64_t keys = ceil_div(ceil_div(call.kv_len, ranges), 8) * 8;
  const dim3 grid(static_cast<unsigned>(ceil_div(call.kv_len, keys) * column_blocks),
                  static_cast<unsigned>(call.num_batches));
  score_wide<T, kColumnTiles><<<grid, Layout<T, kColumnTiles>::kThreads, kBytes, stream>>>(
      call, keys, static_cast<int>(column_blocks));
  return {};
}

template <class T>
Result<void> launch_of(const DeviceScoresCall& call, Stream stream) {
  if (call.num_heads <= 8) return launch<T, 1>(call, stream);
  if (call.num_heads <= 16) return launch<T, 2>(call, stream);
  return launch<T, 4>(call, stream);
}

}  // namespace

Result<void> launch_wide(const DeviceScoresCall& call, Stream stream) {
  if (call.values.dtype == DType::float32) return launch_of<float>(call, stream);
  if (call.values.dtype == DType::bfloat16) return launch_of<__nv_bfloat16>(call, stream);
  return launch_of<__half>(call, stream);
}

}  // namespace fdma::zoh
