// Gradients of ZOH scores with a wide dt_proj of bfloat16 in one pass over values: a cluster of
// blocks has the rows of 32 keys in slices of 512 elements, which stay in shared memory from their
// dt to their part of ddt_proj. Weights and sums of ddt_proj of a slice stay in registers.
//
//   add        dt [keys, heads] = values weights^T: warps and blocks have the terms of their
//              elements; a block's sums go to the blocks that own the keys, 32 / blocks of them
//              each
//   derive     the owner adds them up in the order of the blocks and sends ddt to all of them
//   gather     ddt_proj [heads, elements] += ddt^T values
//   spread     dvalues [keys, elements] = ddt weights
//
// A step has the first of tile i + 2, the second of tile i + 1 and the others of tile i, so that
// what goes from block to block has a step to arrive in: stores that count their bytes on a barrier
// of the receiver. Each has three buffers: who sends for tile i + 3 has seen of all others what
// they could not send before they were done with tile i. Rows come two steps ahead, of keys with a
// dscore alone (zoh_used_keys.cu lists them).
//
// One kernel and its launch, whose steps share the registers of one class: hence the length.
//
// Products are bfloat16: ddt = high + low of 8 bits each, so that 2^-18 of a term is left out. High
// and low lie side by side as if they were more heads.
#include <algorithm>
#include <cstdint>

#include "ptx/cluster.cuh"
#include "ptx/grid.cuh"
#include "ptx/mbarrier.cuh"
#include "ptx/tma.cuh"
#include "ptx/warp_mma.cuh"
#include "ptx/warpgroup.cuh"
#include "sm90/cuda_error.hpp"
#include "zoh/zoh_backward_arrays.cuh"
#include "zoh/zoh_chunk.cuh"
#include "zoh/zoh_used_keys.cuh"

namespace fdma::zoh {
namespace {

using ptx::shared_address;

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kTileKeys = 32;
constexpr int kSlice = 512, kWarpColumns = kSlice / kWarps;
constexpr int kMostBlocks = 8;  // of a cluster
constexpr int kMostHeads = 32;
constexpr int kStages = 5;
constexpr int kRowBytes = kSlice * 2 + 16;  // eight rows of a fragment are in different banks
constexpr int kOwned = 36;                  // at least blocks x keys that each owns

/// What the blocks read and leave in the workspace: keys with a dscore, da_parts [heads, blocks],
/// weight_parts [clusters, heads, width].
struct SliceArrays {
  const std::int32_t *list, *num_used;
  float *da_parts, *weight_parts;
  int num_clusters, blocks_per_cluster;
};

/// Where things lie in the workspace.
struct Layout {
  std::int64_t num_clusters, blocks_per_cluster;
  std::int64_t list, num_used, counts, used, da_parts, weight_parts, size;  ///< offsets in bytes
};
Layout layout_of(std::int64_t num_keys, std::int64_t heads, std::int64_t head_dim) {
  constexpr std::int64_t kAlignment = 256;
  Layout layout{};
  const auto take = [&](std::int64_t bytes) {
    const std::int64_t at = layout.size;
    layout.size += ceil_div(bytes, kAlignment) * kAlignment;
    return at;
  };
  const std::int64_t width = heads * head_dim;
  layout.blocks_per_cluster = std::max<std::int64_t>(ceil_div(width, kSlice), 1);
  layout.num_clusters =
      std::min(std::max<std::int64_t>(kMultiprocessors / layout.blocks_per_cluster, 1),
               std::max<std::int64_t>(ceil_div(num_keys, kTileKeys), 1));
  layout.list = take(num_keys * 4);
  layout.num_used = take(4);
  layout.counts = take(ceil_div(num_keys, kKeysPerCount) * 4);
  layout.used = take(num_keys);
  layout.da_parts = take(layout.num_clusters * layout.blocks_per_cluster * heads * 4);
  layout.weight_parts = take(layout.num_clusters * heads * width * 4);
  return layout;
}

/// A key of a tile, counted through all batch elements (-1: none), and where its rows begin.
struct Row {
  std::int64_t to, other;
  int flat;
};

template <int kHeads>
struct Shared {
  unsigned char values[kStages][kTileKeys][kRowBytes];
  float sums[kWarps][kTileKeys * kHeads];           ///< of dt, by warp
  float received[3][kOwned * kHeads];               ///< of dt, by block and owned key
  __nv_bfloat16 ddt[3][kTileKeys][2 * kHeads + 8];  ///< high, low
  Row rows[kStages][kTileKeys];
  std::uint64_t full[kStages], received_full[3], ddt_full[3];
  std::uint64_t sums_read;

  /// Bytes that come for a tile.
  static constexpr std::uint32_t kDdtBytes = kTileKeys * 4 * kHeads;

  /// Where a warp's sum lies: rows that are stored together are in different banks.
  static __device__ __forceinline__ int place(int key, int head) {
    const int moved = kHeads == 32 ? (key & 3) << 3 : kHeads == 16 ? (key & 2) << 2 : 0;
    return key * kHeads + (head ^ moved);
  }
};

/// The two numbers of 8 bits nearest to x; what is not finite is all in the first.
struct Parts {
  std::uint32_t high, low;
};
__device__ __forceinline__ Parts split(float x) {
  constexpr float kLargest = 0x1.FEp127F;  // of bfloat16
  const std::uint32_t bits = __float_as_uint(x);
  const bool is_finite = (bits & 0x7F800000u) != 0x7F800000u;
  const std::uint32_t high = is_finite && fabsf(x) > kLargest
                                 ? bits >> 16
                                 : std::uint32_t{__bfloat16_as_ushort(__float2bfloat16_rn(x))};
  const float rest = x - __uint_as_float(high << 16);
  return {high, is_finite ? __bfloat16_as_ushort(__float2bfloat16_rn(rest)) : 0u};
}

template <int kHeads, bool kAdds>
class Block {
 public:
  static constexpr int kHeadTiles = kHeads / 8;
  static constexpr int kGroups = kHeads / 8;  // of 16 rows of high and low
  static constexpr int kSums = kHeads == 8 ? 1 : kHeads / 16;

  __device__ Block(const BackwardCall& call, const SliceArrays& arrays, Shared<kHeads>& shared)
      : call_(call),
        forward_(call.forward),
        arrays_(arrays),
        shared_(shared),
        thread_(static_cast<int>(threadIdx.x)),
        lane_(thread_ % 32),
        warp_(thread_ / 32),
        num_blocks_(arrays.blocks_per_cluster),
        rank_(ptx::cluster_rank()),
        cluster_(static_cast<int>(blockIdx.x) / num_blocks_),
        owned_((kTileKeys + num_blocks_ - 1) / num_blocks_),
        first_owned_(rank_ * owned_),
        end_owned_(min(first_owned_ + owned_, kTileKeys)),
        width_(forward_.num_heads * forward_.head_dim),
        first_column_(rank_ * kSlice) {
    const int num_used = *arrays.num_used;
    const int tiles = (num_used + kTileKeys - 1) / kTileKeys;
    num_tiles_ = tiles > cluster_ ? (tiles - cluster_ - 1) / arrays.num_clusters + 1 : 0;
    num_used_ = num_used;
    const int head = thread_ % kHeads;
    a_ = head < forward_.num_heads ? forward_.a_coef[head * forward_.a_stride] : 0.0F;
    load_weights();
    // Where half of the threads or fewer own a ddt, others make it too, for other receivers.
    const int items = owned_ * kHeads;
    num_copies_ = items % 32 == 0 ? kThreads / items : 1;
    copy_ = num_copies_ == 1 ? 0 : thread_ / items;
    const int item = thread_ - copy_ * items;
    is_deriving_ = item - lane_ < items && copy_ < min(num_copies_, num_blocks_);
    const int key = first_owned_ + item / kHeads;
    owned_key_ = is_deriving_ && key < end_owned_ ? key : -1;
    is_whole_ = forward_.head_stride == forward_.head_dim;
    const int owner = thread_ / (kHeads / 4) / owned_;
    const int local = thread_ / (kHeads / 4) - owner * owned_;
    if (thread_ < kTileKeys * kHeads / 4) {
      sums_to_ = ptx::address_of_rank(
          shared_address(
              &shared.received[0][(rank_ * owned_ + local) * kHeads + thread_ % (kHeads / 4) * 4]),
          owner);
      sums_barrier_ = ptx::address_of_rank(shared_address(&shared.received_full[0]), owner);
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int column = first_column_ + warp_ * kWarpColumns + 32 * half + 8 * (lane_ % 4);
      const int source = column / forward_.head_dim, element = column % forward_.head_dim;
      is_inside_[half] = column < width_;
      to_[half] = source * call.dvalues.head_stride + element;
      other_from_[half] = source * call.other.head_stride + element;
    }
  }

  __device__ void run() {
    prepare();
    for (int i = 0; i < min(kStages, num_tiles_); ++i) load(i, key_to_load(i));
    ptx::cluster_arrive();
    ptx::cluster_wait();
    float dscore = 0;
    int key_to_come = key_to_load(kStages);
    for (int i = -2; i < num_tiles_; ++i) {
      float next_dscore = 0;
      if (i + 2 < num_tiles_) {
        next_dscore = load_dscore(i + 2);
        ptx::mbarrier_wait(shared_address(&shared_.full[(i + 2) % kStages]),
                           static_cast<std::uint32_t>((i + 2) / kStages) & 1, "values");
        if (i > -2) {
          ptx::mbarrier_wait(shared_address(&shared_.sums_read),
                             static_cast<std::uint32_t>(i + 1) & 1, "sums");
        }
        multiply((i + 2) % kStages);
        __syncthreads();
        if (i > 0 && i - 1 + kStages < num_tiles_) {
          load(i - 1 + kStages, key_to_come);
          key_to_come = key_to_load(i + kStages);
        }
        if constexpr (kAdds) prefetch_other((i + 2) % kStages);
        send_sums((i + 2) % 3);
      }
      if (i + 1 >= 0 && i + 1 < num_tiles_) derive(i + 1, dscore);
      dscore = next_dscore;
      if (i >= 0) finish(i);
    }
    store_sums();
  }

 private:
  // Of add: rows are elements, columns heads. Of spread: rows are heads, twice over where there are
  // 8, columns elements so that a lane's are neighbours.
  __device__ void load_weights() {
    const auto* const from = static_cast<const __nv_bfloat16*>(forward_.weights.data);
    const auto pair = [&](int head0, int column0, int head1, int column1) {
      const auto bits = [&](int head, int column) -> std::uint32_t {
        if (head >= forward_.num_heads || column >= width_) return 0;
        return __bfloat16_as_ushort(
            from[head * forward_.weight_row_stride + column * forward_.weight_stride]);
      };
      return bits(head0, column0) | bits(head1, column1) << 16;
    };
    const int group = lane_ / 4, quad = lane_ % 4;
    const int first = first_column_ + warp_ * kWarpColumns;
#pragma unroll
    for (int s = 0; s < kWarpColumns / 16; ++s) {
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int head = 8 * h + group, column = first + 16 * s + 8 * i + 2 * quad;
          by_head_[s][h][i] = pair(head, column, head, column + 1);
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kWarpColumns / 8; ++j) {
      const int column = first + 32 * (j / 4) + 8 * (group / 2) + 2 * (j % 4) + group % 2;
#pragma unroll
      for (int r = 0; r < kSums; ++r) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int head = (16 * r + 8 * i + 2 * quad) % kHeads;
          by_column_[r][j][i] = pair(head, column, head + 1, column);
        }
      }
    }
  }

  __device__ void prepare() {
    // Columns behind the last stay zero: rows are copied without them.
    if (first_column_ + kSlice > width_) {
      auto* const all = reinterpret_cast<uint4*>(shared_.values);
      for (int i = thread_; i < static_cast<int>(sizeof(shared_.values) / 16); i += kThreads) {
        all[i] = make_uint4(0, 0, 0, 0);
      }
      ptx::fence_async_shared();
    }
    if (thread_ == 0) {
      for (std::uint64_t& full : shared_.full) ptx::mbarrier_init(shared_address(&full), 1);
      for (int i = 0; i < 3; ++i) {
        ptx::mbarrier_init(shared_address(&shared_.received_full[i]), 1);
        ptx::mbarrier_init(shared_address(&shared_.ddt_full[i]), 1);
      }
      ptx::mbarrier_init(shared_address(&shared_.sums_read), kWarps * ptx::kWarpArrivals);
      ptx::mbarrier_init_fence();
      for (int i = 0; i < 3; ++i) {
        ptx::mbarrier_arrive_expect(shared_address(&shared_.received_full[i]), received_bytes());
        ptx::mbarrier_arrive_expect(shared_address(&shared_.ddt_full[i]),
                                    Shared<kHeads>::kDdtBytes);
      }
    }
    __syncthreads();
  }

  /// Of dt, for a tile.
  __device__ std::uint32_t received_bytes() const {
    return static_cast<std::uint32_t>(num_blocks_ * (end_owned_ - first_owned_) * kHeads * 4);
  }
  /// Until what comes for tile i is there; then the barrier is for tile i + 3.
  __device__ void wait_for_tile(std::uint64_t (&barriers)[3], int i, std::uint32_t bytes) const {
    const std::uint32_t barrier = shared_address(&barriers[i % 3]);
    ptx::mbarrier_wait(barrier, static_cast<std::uint32_t>(i / 3) & 1, "tile");
    if (thread_ == 0) ptx::mbarrier_arrive_expect(barrier, bytes);
  }

  __device__ int batch_of(int flat) const {
    return forward_.num_batches == 1
               ? 0
               : static_cast<int>(static_cast<std::uint32_t>(flat) /
                                  static_cast<std::uint32_t>(forward_.kv_len));
  }

  static constexpr int kWarpKeys = kTileKeys / kWarps;  // whose rows a warp loads
  __device__ int key_to_load(int i) const {
    const int at = (cluster_ + i * arrays_.num_clusters) * kTileKeys + warp_ * kWarpKeys + lane_;
    return lane_ < kWarpKeys && i < num_tiles_ && at < num_used_ ? arrays_.list[at] : -1;
  }
  /// Rows of this block's tile i, one a lane.
  __device__ void load(int i, int flat) const {
    const int stage = i % kStages;
    const int columns = min(kSlice, width_ - first_column_);
    const std::uint32_t full = shared_address(&shared_.full[stage]);
    if (thread_ == 0) {
      const int num_keys =
          min(kTileKeys, num_used_ - (cluster_ + i * arrays_.num_clusters) * kTileKeys);
      ptx::mbarrier_arrive_expect(full, static_cast<std::uint32_t>(num_keys * columns * 2));
    }
    if (lane_ >= kWarpKeys) return;
    const int at = warp_ * kWarpKeys + lane_, batch = batch_of(flat);
    const std::int64_t key = flat - batch * forward_.kv_len;
    const std::int64_t other = call_.other.row(batch, key, 0);
    shared_.rows[stage][at] = {call_.dvalues.row(batch, key, 0), other, flat};
    if (flat < 0) return;
    const auto* const row = static_cast<const __nv_bfloat16*>(forward_.values.data) +
                            batch * forward_.batch_stride + key * forward_.key_stride;
    const std::uint32_t to = shared_address(&shared_.values[stage][at][0]);
    if (is_whole_) {
      ptx::bulk_load(to, row + first_column_, static_cast<std::uint32_t>(2 * columns), full);
      return;
    }
    for (int begin = first_column_; begin < first_column_ + columns;) {
      const int head = begin / forward_.head_dim, element = begin % forward_.head_dim;
      const int end = min((head + 1) * forward_.head_dim, first_column_ + columns);
      ptx::bulk_load(to + 2 * (begin - first_column_), row + head * forward_.head_stride + element,
                     static_cast<std::uint32_t>(2 * (end - begin)), full);
      begin = end;
    }
  }

  /// Brings rows that are added into L2, two steps before they are needed: 64 elements a thread.
  __device__ void prefetch_other(int stage) const {
    const Row& row = shared_.rows[stage][thread_ / 8];
    const int column = first_column_ + thread_ % 8 * 64;
    if (row.flat < 0 || column >= width_) return;
    const int head = column / forward_.head_dim, element = column - head * forward_.head_dim;
    const std::int64_t at = row.other + head * call_.other.head_stride + element;
    if (call_.other.dtype == DType::float32) {
      const float* const from = static_cast<const float*>(call_.other.data) + at;
      ptx::prefetch_l2(from);
      if (element + 32 < forward_.head_dim) ptx::prefetch_l2(from + 32);
    } else {
      ptx::prefetch_l2(static_cast<const __nv_bfloat16*>(call_.other.data) + at);
    }
  }

  /// Of this thread's key and head.
  __device__ float load_dscore(int i) const {
    const int head = thread_ % kHeads;
    const int flat = owned_key_ < 0 ? -1 : shared_.rows[i % kStages][owned_key_].flat;
    if (flat < 0 || head >= forward_.num_heads) return 0;
    const int batch = batch_of(flat);
    return call_.dscore(batch, head, flat - batch * forward_.kv_len);
  }

  /// The terms of dt that this warp's elements have.
  __device__ void multiply(int stage) const {
    float sums[2][kHeadTiles][4] = {};
    const std::uint32_t from =
        shared_address(&shared_.values[stage][lane_ % 16][2 * warp_ * kWarpColumns]) +
        lane_ / 16 * 16;
#pragma unroll
    for (int s = 0; s < kWarpColumns / 16; ++s) {
      std::uint32_t a[2][4];
#pragma unroll
      for (int m = 0; m < 2; ++m) ptx::load_tiles(a[m], from + 16 * m * kRowBytes + 32 * s);
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
        for (int m = 0; m < 2; ++m) {
          ptx::multiply_bf16(sums[m][h], a[m], by_head_[s][h][0], by_head_[s][h][1]);
        }
      }
    }
#pragma unroll
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int h = 0; h < kHeadTiles; ++h) {
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const int key = 16 * m + 8 * i + lane_ / 4, head = 8 * h + 2 * (lane_ % 4);
          *reinterpret_cast<float2*>(&shared_.sums[warp_][shared_.place(key, head)]) =
              make_float2(sums[m][h][2 * i], sums[m][h][2 * i + 1]);
        }
      }
    }
  }

  __device__ void send_sums(int buffer) const {
    if (thread_ < kTileKeys * kHeads / 4) {
      const int key = thread_ / (kHeads / 4), head = thread_ % (kHeads / 4) * 4;
      float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        const float4 x =
            *reinterpret_cast<const float4*>(&shared_.sums[w][shared_.place(key, head)]);
        sum = make_float4(sum.x + x.x, sum.y + x.y, sum.z + x.z, sum.w + x.w);
      }
      ptx::store_there(sums_to_ + buffer * static_cast<int>(sizeof(shared_.received[0])), sum,
                       sums_barrier_ + buffer * 8);
    }
    __syncwarp();
    ptx::mbarrier_arrive_warp(shared_address(&shared_.sums_read), lane_);
  }

  __device__ void derive(int i, float dscore) {
    if (!is_deriving_) return;
    const int buffer = i % 3, head = thread_ % kHeads;
    wait_for_tile(shared_.received_full, i, received_bytes());
    Slopes slopes{0, 0};
    if (owned_key_ >= 0) {
      const float* const from =
          &shared_.received[buffer][(owned_key_ - first_owned_) * kHeads + head];
      float dt = 0;
#pragma unroll
      for (int block = 0; block < kMostBlocks; ++block) {
        if (block < num_blocks_) dt += from[block * owned_ * kHeads];
      }
      slopes = slopes_of(call_.is_log, dt, a_, dscore);
    }
    if (copy_ == 0) da_ += slopes.da;
    const Parts parts = split(slopes.ddt);
    // The even lane has two high, the odd one two low.
    const bool is_odd = lane_ % 2 != 0;
    const std::uint32_t given = __shfl_xor_sync(0xFFFFFFFFu, is_odd ? parts.high : parts.low, 1);
    const std::uint32_t both = is_odd ? given | parts.low << 16 : parts.high | given << 16;
    if (owned_key_ < 0) return;
    const std::uint32_t to =
        shared_address(&shared_.ddt[buffer][owned_key_][is_odd ? kHeads + head - 1 : head]);
    const std::uint32_t full = shared_address(&shared_.ddt_full[buffer]);
    for (int block = copy_; block < num_blocks_; block += num_copies_) {
      ptx::store_there(ptx::address_of_rank(to, block), both, ptx::address_of_rank(full, block));
    }
  }

  /// Keys of a tile of which some ddt is not 0.
  __device__ std::uint32_t used_keys(int buffer) const {
    std::uint32_t bits = 0;
#pragma unroll
    for (int c = 0; c < kHeads / 8; ++c) {
      const uint4 x = *reinterpret_cast<const uint4*>(&shared_.ddt[buffer][lane_][8 * c]);
      bits |= x.x | x.y | x.z | x.w;
    }
    return __ballot_sync(0xFFFFFFFFu, (bits & 0x7FFF7FFFu) != 0);
  }

  __device__ void finish(int i) {
    const int stage = i % kStages, buffer = i % 3;
    wait_for_tile(shared_.ddt_full, i, Shared<kHeads>::kDdtBytes);
    const std::uint32_t used = used_keys(buffer);
    const bool is_spread = call_.dvalues.data != nullptr;
    if (call_.ddt_proj.data != nullptr) {
      if (used != 0xFFFFFFFFu) clear_rows(stage, ~used);
      gather(stage, buffer);
    }
    if (!is_spread) return;
    Chunks now, next;
    if constexpr (kAdds) load_other(stage, 0, 0, used, now);
#pragma unroll 1
    for (int m = 0; m < 2; ++m) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        if (kAdds && m + half < 2) load_other(stage, m + half, (half + 1) % 2, used, next);
        spread(stage, buffer, m, half, used, now);
        now = next;
      }
    }
  }

  /// This warp's elements of keys without a ddt, which may be anything, become 0.
  __device__ void clear_rows(int stage, std::uint32_t keys) const {
    for (; keys != 0; keys &= keys - 1) {
      unsigned char* const row = shared_.values[stage][__ffs(static_cast<int>(keys)) - 1];
      reinterpret_cast<std::uint32_t*>(row + 2 * warp_ * kWarpColumns)[lane_] = 0;
    }
    ptx::fence_async_shared();
    __syncwarp();
  }

  __device__ void gather(int stage, int buffer) {
    const int tile = lane_ / 8, row = lane_ % 8;
    // ddt^T: rows 16 r to 16 r + 15 of high and low, 16 keys.
    const std::uint32_t ddt_from =
        shared_address(&shared_.ddt[buffer][row + tile / 2 * 8][tile % 2 * 8]);
    // Values: 16 keys, 16 elements.
    const std::uint32_t from =
        shared_address(&shared_.values[stage][row + tile % 2 * 8][2 * warp_ * kWarpColumns]) +
        tile / 2 * 16;
#pragma unroll
    for (int k = 0; k < kTileKeys / 16; ++k) {
      std::uint32_t a[kGroups][4];
#pragma unroll
      for (int r = 0; r < kGroups; ++r) {
        ptx::load_transposed_tiles(
            a[r], ddt_from + 16 * k * static_cast<int>(sizeof(shared_.ddt[0][0])) + 32 * r);
      }
#pragma unroll
      for (int j = 0; j < kWarpColumns / 16; ++j) {
        std::uint32_t b[4];
        ptx::load_transposed_tiles(b, from + 16 * k * kRowBytes + 32 * j);
#pragma unroll
        for (int r = 0; r < kGroups; ++r) {
          ptx::multiply_bf16(sums_[r % kSums][2 * j], a[r], b[0], b[1]);
          ptx::multiply_bf16(sums_[r % kSums][2 * j + 1], a[r], b[2], b[3]);
        }
      }
    }
  }

  /// Two rows as a lane has them, 8 elements each: keys g and g + 8 of 16, a half of the warp's.
  struct Chunks {
    uint4 raw[kAdds ? 2 : 1][2];
  };
  __device__ bool is_stored(const Row& row, bool is_used) const {
    return row.flat >= 0 && (is_used || !call_.is_in_place);
  }
  __device__ void load_other(int stage, int m, int half, std::uint32_t used, Chunks& other) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = 16 * m + 8 * i + lane_ / 4;
      const Row& row = shared_.rows[stage][key];
      if (!is_stored(row, (used >> key & 1) != 0) || !is_inside_[half]) continue;
      const std::int64_t at = row.other + other_from_[half];
      if (call_.other.dtype == DType::float32) {
        const auto* const from =
            reinterpret_cast<const uint4*>(static_cast<const float*>(call_.other.data) + at);
        other.raw[i][0] = __ldcs(from);
        other.raw[i][1] = __ldcs(from + 1);
      } else {
        other.raw[i][0] = __ldcs(reinterpret_cast<const uint4*>(
            static_cast<const __nv_bfloat16*>(call_.other.data) + at));
      }
    }
  }

  __device__ void spread(int stage, int buffer, int m, int half, std::uint32_t used,
                         const Chunks& other) const {
    float sums[4][4] = {};
    const std::uint32_t from =
        shared_address(&shared_.ddt[buffer][16 * m + lane_ % 16][lane_ / 16 * 8]);
#pragma unroll
    for (int r = kGroups - 1; r >= 0; --r) {
      std::uint32_t ddt[4];
      ptx::load_tiles(ddt, from + 32 * r);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const std::uint32_t(&b)[2] = by_column_[r % kSums][4 * half + j];
        ptx::multiply_bf16(sums[j], ddt, b[0], b[1]);
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int key = 16 * m + 8 * i + lane_ / 4;
      const Row& row = shared_.rows[stage][key];
      const bool is_used = (used >> key & 1) != 0;
      if (!is_stored(row, is_used) || !is_inside_[half]) continue;
      float x[8];
#pragma unroll
      for (int c = 0; c < 8; ++c) x[c] = is_used ? sums[c / 2][2 * i + c % 2] : 0.0F;
      if constexpr (kAdds) add_chunk(other.raw[i], x);
      store(row.to + to_[half], x);
    }
  }

  __device__ void add_chunk(const uint4 (&raw)[2], float (&x)[8]) const {
    float other[8];
    if (call_.other.dtype == DType::float32) {
      const std::uint32_t words[8] = {raw[0].x, raw[0].y, raw[0].z, raw[0].w,
                                      raw[1].x, raw[1].y, raw[1].z, raw[1].w};
#pragma unroll
      for (int c = 0; c < 8; ++c) other[c] = __uint_as_float(words[c]);
    } else {
      Chunk<__nv_bfloat16>::widen(raw[0], other);
    }
#pragma unroll
    for (int c = 0; c < 8; ++c) x[c] += other[c];
  }
  __device__ void store(std::int64_t at, const float (&x)[8]) const {
    if (call_.dvalues.dtype == DType::float32) {
      auto* const to = reinterpret_cast<float4*>(static_cast<float*>(call_.dvalues.data) + at);
      __stcs(to, make_float4(x[0], x[1], x[2], x[3]));
      __stcs(to + 1, make_float4(x[4], x[5], x[6], x[7]));
    } else {
      __stcs(reinterpret_cast<uint4*>(static_cast<__nv_bfloat16*>(call_.dvalues.data) + at),
             Chunk<__nv_bfloat16>::narrow(x));
    }
  }

  __device__ void store_sums() {
    if (call_.ddt_proj.data != nullptr) {
      float* const to = arrays_.weight_parts + std::int64_t{cluster_} * forward_.num_heads * width_;
#pragma unroll
      for (int r = 0; r < kSums; ++r) {
#pragma unroll
        for (int j = 0; j < kWarpColumns / 8; ++j) {
          float(&sum)[4] = sums_[r][j];
          if constexpr (kHeads == 8) {
            sum[0] += sum[2];
            sum[1] += sum[3];
          }
#pragma unroll
          for (int i = 0; i < (kHeads == 8 ? 2 : 4); ++i) {
            const int head = 16 * r + i / 2 * 8 + lane_ / 4;
            const int column =
                first_column_ + warp_ * kWarpColumns + 8 * j + 2 * (lane_ % 4) + i % 2;
            if (head < forward_.num_heads && column < width_) {
              to[std::int64_t{head} * width_ + column] = sum[i];
            }
          }
        }
      }
    }
    __syncthreads();
    float* const all = shared_.sums[0];
    all[thread_] = da_;
    __syncthreads();
    if (thread_ >= forward_.num_heads) return;
    float sum = 0;
    for (int i = thread_; i < kThreads; i += kHeads) sum += all[i];
    arrays_.da_parts[thread_ * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)] = sum;
  }

  const BackwardCall& call_;
  const Call& forward_;
  const SliceArrays& arrays_;
  Shared<kHeads>& shared_;
  int thread_, lane_, warp_;
  int num_blocks_, rank_, cluster_;
  int owned_, first_owned_, end_owned_;   ///< keys of a tile whose ddt a block makes
  int owned_key_, copy_, num_copies_;     ///< the key whose ddt this thread makes; -1: none
  bool is_deriving_;                      ///< a thread of this warp has one
  bool is_whole_;                         ///< elements of all heads lie side by side
  std::uint32_t sums_to_, sums_barrier_;  ///< of the owner of what this thread adds up
  int width_, first_column_, num_tiles_, num_used_;
  float a_, da_ = 0;
  bool is_inside_[2];                   ///< the halves of the elements that a lane stores
  std::int64_t to_[2], other_from_[2];  ///< where they are in a row
  std::uint32_t by_head_[kWarpColumns / 16][kHeadTiles][2];
  std::uint32_t by_column_[kSums][kWarpColumns / 8][2];
  float sums_[kSums][kWarpColumns / 8][4] = {};
};

template <int kHeads, bool kAdds>
__global__ void __launch_bounds__(kThreads, 1)
    backward_slices(const __grid_constant__ BackwardCall call,
                    const __grid_constant__ SliceArrays arrays) {
  extern __shared__ __align__(128) unsigned char memory[];
  Block<kHeads, kAdds>(call, arrays, *reinterpret_cast<Shared<kHeads>*>(memory)).run();
}

template <int kHeads, bool kAdds>
Result<void> launch(const BackwardCall& call, SliceArrays& arrays, Stream stream) {
  constexpr int kBytes = sizeof(Shared<kHeads>);
  static_assert(kBytes <= 227 * 1024);
  FDMA_TRY_VOID(
      sm90::check_cuda(cudaFuncSetAttribute(backward_slices<kHeads, kAdds>,
                                            cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes),
                       "cudaFuncSetAttribute"));
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {static_cast<unsigned>(arrays.blocks_per_cluster), 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(static_cast<unsigned>(arrays.num_clusters * arrays.blocks_per_cluster));
  config.blockDim = dim3(kThreads);
  config.dynamicSmemBytes = kBytes;
  config.stream = stream;
  config.attrs = &cluster;
  config.numAttrs = 1;
  // No more than run at once: the rest would come behind them.
  int most = 0;
  FDMA_TRY_VOID(sm90::check_cuda(
      cudaOccupancyMaxActiveClusters(&most, backward_slices<kHeads, kAdds>, &config),
      "cudaOccupancyMaxActiveClusters"));
  arrays.num_clusters = std::clamp(most, 1, arrays.num_clusters);
  config.gridDim.x = static_cast<unsigned>(arrays.num_clusters * arrays.blocks_per_cluster);
  return sm90::check_cuda(cudaLaunchKernelEx(&config, backward_slices<kHeads, kAdds>, call, arrays),
                          "cudaLaunchKernelEx");
}

template <int kHeads>
Result<void> launch_with(const BackwardCall& call, SliceArrays& arrays, Stream stream) {
  return call.other.data != nullptr ? launch<kHeads, true>(call, arrays, stream)
                                    : launch<kHeads, false>(call, arrays, stream);
}

}  // namespace

bool is_backward_slices(const BackwardCall& call) {
  const Call& forward = call.forward;
  const std::int64_t num_keys = std::int64_t{forward.num_batches} * forward.kv_len;
  const std::int64_t width = std::int64_t{forward.num_heads} * forward.head_dim;
  const int padded_heads = forward.num_heads <= 8 ? 8 : forward.num_heads <= 16 ? 16 : 32;
  return !forward.is_per_head && forward.values.dtype == DType::bfloat16 &&
         forward.weights.dtype == DType::bfloat16 && forward.num_heads <= kMostHeads &&
         width <= kMostBlocks * kSlice && num_keys > 0 && num_keys < std::int64_t{1} << 31 &&
         ceil_div(kTileKeys, ceil_div(width, kSlice)) * padded_heads <= kThreads &&
         has_wide_rows(forward) && has_aligned_rows(call.dvalues) && has_aligned_rows(call.other);
}

std::int64_t backward_slices_workspace_bytes(const ZohShape& shape) {
  return layout_of(shape.num_batches * shape.kv_len, shape.num_heads_kv, shape.head_dim).size;
}

Result<void> launch_backward_slices(const BackwardCall& call, Stream stream) {
  const Call& forward = call.forward;
  const std::int64_t num_keys = forward.num_batches * forward.kv_len;
  const Layout layout = layout_of(num_keys, forward.num_heads, forward.head_dim);
  auto* const memory = static_cast<std::uint8_t*>(call.workspace);
  const UsedKeys used{reinterpret_cast<std::int32_t*>(memory + layout.list),
                      reinterpret_cast<std::int32_t*>(memory + layout.num_used),
                      reinterpret_cast<std::int32_t*>(memory + layout.counts), memory + layout.used,
                      num_keys};
  SliceArrays arrays{used.list,
                     used.num_used,
                     reinterpret_cast<float*>(memory + layout.da_parts),
                     reinterpret_cast<float*>(memory + layout.weight_parts),
                     static_cast<int>(layout.num_clusters),
                     static_cast<int>(layout.blocks_per_cluster)};
  list_used_keys(call, used, stream);
  if (forward.num_heads <= 8) {
    FDMA_TRY_VOID(launch_with<8>(call, arrays, stream));
  } else if (forward.num_heads <= 16) {
    FDMA_TRY_VOID(launch_with<16>(call, arrays, stream));
  } else {
    FDMA_TRY_VOID(launch_with<32>(call, arrays, stream));
  }
  if (call.wants_sums()) {
    launch_add_parts(call,
                     {arrays.da_parts, arrays.weight_parts,
                      arrays.num_clusters * layout.blocks_per_cluster, arrays.num_clusters},
                     stream);
  }
  return {};
}

}  // namespace fdma::zoh
