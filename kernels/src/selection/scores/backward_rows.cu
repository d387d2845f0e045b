// Gradients of ZOH scores where each head sees its own values, dt_proj [heads_kv, head_dim]: one
// pass over values and dvalues, bound by memory as zoh_scores.cu is.
//
//   backward_rows  A unit is a warp with a head. It goes from 32 keys of that head (or fewer, where
//                  there are few in all) to the next ones that no other unit has. A lane looks at the
//                  dscore of a key. Keys that have one go into a queue, and from there as many at a
//                  time as the warp has in flight are processed. A row stays in registers until its
//                  dt is known. It then ends in dvalues and in the sums of the lane, a part of
//                  ddt_proj for each of its elements.
//   add_tile_groups      Units of a block with the same head are added in the block, blocks are
//   added here,
//                  both in an order that depends on the shape alone.
#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "cuda/lane_sums.cuh"
#include "ptx/warpgroup.cuh"
#include "selection/scores/backward_call.cuh"
#include "selection/scores/zoh_vector.cuh"

namespace fdma::zoh {
namespace {

constexpr int kThreads = 128;
constexpr int kWarpThreads = 32;
constexpr int kUnits = kThreads / kWarpThreads;

/// The other gradient, which is added to dvalues.
enum class Other : std::uint8_t { none, same, wide };  ///< of the dtype of values; float32

/// Rows that a lane has in flight. There are fewer where each also has another gradient.
template <Other kOther>
constexpr int kRows = kOther == Other::none   ? 8
                      : kOther == Other::same ? 4
                                              : 2;
template <int kChunks>
constexpr int kRowBlocks = kChunks == 1 ? 5 : 3;  // per multiprocessor, limited by registers

/// Floats of a head's sums in the workspace: ddt_proj, da_coef, and padding.
__host__ __device__ constexpr int sum_stride(int head_dim) { return (head_dim + 4) / 4 * 4; }

/// Keys [round * round_keys, (round + 1) * round_keys) of a batch element. Batches after the last
/// have no keys.
struct Keys {
  int batch;
  int round;
};

/// A key whose dscore is not 0.
struct alignas(16) QueuedKey {
  std::int32_t batch;
  float dscore;
  std::int64_t key;
};
constexpr int kQueueKeys = 64;  // per warp: less than a batch are left when 32 more come

template <class T, int kLanes, int kChunks, Other kOther>
class Unit {
 public:
  static constexpr int kSize = Chunk<T>::kSize;
  static constexpr int kCount = kRows<kOther>;
  static constexpr int kShare = kLanes / kCount;         ///< lanes that hold the dt of a key
  static constexpr int kGroups = kWarpThreads / kLanes;  ///< groups of lanes that share a row
  static constexpr int kBatch = kGroups * kCount;        ///< keys in flight
  static constexpr int kOtherSize = kOther == Other::wide ? kSize / 4 : 1;  ///< 16 bytes each
  static_assert(kBatch <= kWarpThreads && kShare > 0);

  __device__ Unit(const BackwardCall& call, int round_keys, QueuedKey* queue)
      : call_(call),
        queue_(queue),
        lane_(static_cast<int>(threadIdx.x) % kLanes),
        warp_lane_(static_cast<int>(threadIdx.x) % kWarpThreads),
        round_keys_(round_keys) {
    const DeviceScoresCall& forward = call.forward;
    const std::int64_t unit = std::int64_t{blockIdx.x} * kUnits + threadIdx.x / kWarpThreads;
    head_ = static_cast<int>(unit % forward.num_heads);
    step_ = static_cast<int>(std::int64_t{gridDim.x} * kUnits / forward.num_heads);
    rounds_per_batch_ = static_cast<int>((forward.kv_len + round_keys - 1) / round_keys);
    first_ = unit < std::int64_t{step_} * forward.num_heads
                 ? moved({0, 0}, static_cast<int>(unit / forward.num_heads))
                 : Keys{forward.num_batches, 0};  // surplus units have no keys
    a_ = forward.a_coef[head_ * forward.a_stride];
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const int at = element(c);
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
        sums_[c][i] = 0;
        weights_[c][i] =
            at < forward.head_dim
                ? forward
                      .weights[head_ * forward.weight_row_stride + (at + i) * forward.weight_stride]
                : 0.0F;
      }
    }
  }

  __device__ void run() {
    // Keys whose dscore is 0 are not read, and only zeros or a copy are written for them. They do
    // not pass through the queue, so the order of sums is the same whatever outputs are wanted.
    const bool has_all = call_.dvalues.data != nullptr && !call_.is_in_place;
    Keys keys = first_;
    float next_dscore = load_dscore(keys);
    int num_queued = 0;
    while (keys.batch < call_.forward.num_batches) {
      const float dscore = next_dscore;
      const std::int64_t key = mine(keys);
      const int batch = keys.batch;
      const bool is_taken = dscore != 0;
      if (has_all) {
        const std::uint32_t passed = __ballot_sync(~0u, exists(keys) && !is_taken);
        if (passed != 0) pass_over(keys, passed);
      }
      keys = moved(keys, step_);
      next_dscore = load_dscore(keys);
      const std::uint32_t taken = __ballot_sync(~0u, is_taken);
      const int before = __popc(taken & ((1u << warp_lane_) - 1));
      __syncwarp();
      if (is_taken) queue_[num_queued + before] = {batch, dscore, key};
      __syncwarp();
      num_queued += __popc(taken);
      int first = 0;
      for (; num_queued - first >= kBatch; first += kBatch) work(first, kBatch);
      if (first == 0) continue;
      // Moves the rest, less than a batch, to the front.
      num_queued -= first;
      QueuedKey left{};
      if (warp_lane_ < num_queued) left = queue_[first + warp_lane_];
      __syncwarp();
      if (warp_lane_ < num_queued) queue_[warp_lane_] = left;
      __syncwarp();
    }
    if (num_queued > 0) work(0, num_queued);
  }

  /// Writes the sums of the block's units, with each head's units added in their order, into the
  /// workspace: [blocks][min(heads, kUnits)][sum_stride]. Slot s is that of the block's s-th unit.
  __device__ void store_sums() {
    constexpr int kRow = kLanes * kChunks * kSize;
    __shared__ float all[kUnits * kRow];
    __shared__ float all_da[kUnits];
    const int unit = static_cast<int>(threadIdx.x) / kWarpThreads;
#pragma unroll
    for (int step = kWarpThreads / 2; step > 0; step /= 2) {
      da_ += __shfl_xor_sync(~0u, da_, step);
    }
    if (warp_lane_ == 0) all_da[unit] = da_;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) {
#pragma unroll
        for (int step = kWarpThreads / 2; step >= kLanes; step /= 2) {
          sums_[c][i] += __shfl_xor_sync(~0u, sums_[c][i], step);
        }
        if (warp_lane_ < kLanes) all[unit * kRow + element(c) + i] = sums_[c][i];
      }
    }
    __syncthreads();
    const int num_heads = call_.forward.num_heads, dim = call_.forward.head_dim;
    const int slots = min(num_heads, kUnits), stride = sum_stride(dim);
    float* to = static_cast<float*>(call_.workspace) + std::int64_t{blockIdx.x} * slots * stride;
    for (int i = static_cast<int>(threadIdx.x); i < slots * (dim + 1); i += kThreads) {
      const int slot = i / (dim + 1), at = i % (dim + 1);
      float sum = 0;
      for (int u = slot; u < kUnits; u += num_heads) {
        sum += at < dim ? all[u * kRow + at] : all_da[u];
      }
      to[slot * stride + at] = sum;
    }
  }

 private:
  __device__ int element(int chunk) const { return (chunk * kLanes + lane_) * kSize; }

  __device__ Keys moved(Keys keys, int rounds) const {
    keys.round += rounds;
    if (keys.round >= rounds_per_batch_) {
      const int batches = keys.round / rounds_per_batch_;
      keys.round -= batches * rounds_per_batch_;
      keys.batch = min(keys.batch + batches, call_.forward.num_batches);
    }
    return keys;
  }

  /// The key whose dscore this lane looks at.
  __device__ std::int64_t mine(const Keys& keys) const {
    return std::int64_t{keys.round} * round_keys_ + warp_lane_;
  }
  __device__ bool exists(const Keys& keys) const {
    return keys.batch < call_.forward.num_batches && warp_lane_ < round_keys_ &&
           mine(keys) < call_.forward.kv_len;
  }
  __device__ float load_dscore(const Keys& keys) const {
    return exists(keys) ? call_.dscore(keys.batch, head_, mine(keys)) : 0.0F;
  }

  /// Writes dvalues of the marked keys of a round: zeros, or the other gradient. All lanes call it.
  __device__ void pass_over(const Keys& keys, std::uint32_t marked) const {
    while (marked != 0) {
      std::int64_t passed[kCount];  // or -1
      uint4 other[kOther == Other::none ? 1 : kCount][kChunks][kOtherSize];
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        passed[i] = -1;
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          if (marked != 0 && warp_lane_ / kLanes == group) {
            passed[i] = std::int64_t{keys.round} * round_keys_ + __ffs(marked) - 1;
          }
          marked &= marked - 1;
        }
        load_other(keys.batch, passed[i], passed[i] >= 0, other[kOther == Other::none ? 0 : i]);
      }
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        if (passed[i] < 0) continue;
        store({keys.batch, 0.0F, passed[i]}, 0.0F, other[kOther == Other::none ? 0 : i]);
      }
    }
  }

  __device__ void load_other(int batch, std::int64_t key, bool is_read,
                             uint4 (&other)[kChunks][kOtherSize]) const {
    if constexpr (kOther != Other::none) {
      using From = std::conditional_t<kOther == Other::wide, float, T>;
      const From* const row =
          static_cast<const From*>(call_.other.data) + call_.other.row(batch, key, head_);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
#pragma unroll
        for (int j = 0; j < kOtherSize; ++j) {
          other[c][j] = make_uint4(0, 0, 0, 0);
          if (is_read && element(c) < call_.forward.head_dim) {
            other[c][j] = __ldcs(reinterpret_cast<const uint4*>(row + element(c)) + j);
          }
        }
      }
    }
  }

  /// Processes the first `num_keys` keys of the queue from `first` on. All lanes call it.
  __device__ void work(int first, int num_keys) {
    const DeviceScoresCall& forward = call_.forward;
    const int group = warp_lane_ / kLanes;
    uint4 raw[kCount][kChunks];
    uint4 other[kOther == Other::none ? 1 : kCount][kChunks][kOtherSize];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int at = i * kGroups + group;
      const QueuedKey key = queue_[first + min(at, num_keys - 1)];
      const bool is_queued = at < num_keys;
      const T* const row = static_cast<const T*>(forward.values.data) +
                           key.batch * forward.batch_stride + key.key * forward.key_stride +
                           head_ * forward.head_stride;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const bool is_inside = element(c) < forward.head_dim;
        raw[i][c] = make_uint4(0, 0, 0, 0);
        if (is_queued && is_inside) {
          raw[i][c] = __ldcs(reinterpret_cast<const uint4*>(row + element(c)));
        }
      }
      load_other(key.batch, key.key, is_queued, other[kOther == Other::none ? 0 : i]);
    }
    float dts[kCount];
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      dts[i] = 0;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        float x[kSize];
        Chunk<T>::widen(raw[i][c], x);
#pragma unroll
        for (int j = 0; j < kSize; ++j) dts[i] = fmaf(x[j], weights_[c][j], dts[i]);
      }
    }
    const int at = lane_ / kShare * kGroups + group;  // the key whose dt this lane gets
    const float dscore = at < num_keys ? queue_[first + at].dscore : 0.0F;
    const Slopes slopes = slopes_of(call_.is_log, gpu::sum_each<kLanes>(dts, lane_), a_, dscore);
    if (lane_ % kShare == 0) da_ += slopes.da;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float ddt = __shfl_sync(~0u, slopes.ddt, i * kShare, kLanes);
      const int from = i * kGroups + group;
      if (ddt != 0) {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          float x[kSize];
          // Converted again, not kept as floats since the first time
          Chunk<T>::widen(opaque(raw[i][c]), x);
#pragma unroll
          for (int j = 0; j < kSize; ++j) sums_[c][j] = fmaf(ddt, x[j], sums_[c][j]);
        }
      }
      if (from < num_keys) store(queue_[first + from], ddt, other[kOther == Other::none ? 0 : i]);
    }
  }

  __device__ void store(const QueuedKey& key, float ddt,
                        const uint4 (&other)[kChunks][kOtherSize]) const {
    if (call_.dvalues.data == nullptr || (ddt == 0 && call_.is_in_place)) return;
    const std::int64_t row = call_.dvalues.row(key.batch, key.key, head_);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (element(c) >= call_.forward.head_dim) continue;
      float x[kSize];
#pragma unroll
      for (int j = 0; j < kSize; ++j) x[j] = ddt != 0 ? ddt * weights_[c][j] : 0.0F;
      if constexpr (kOther != Other::none) {
        float added[kSize];
        widen_other(other[c], added);
#pragma unroll
        for (int j = 0; j < kSize; ++j) x[j] += added[j];
      }
      if (call_.dvalues.dtype == call_.forward.values.dtype) {
        T* const to = static_cast<T*>(call_.dvalues.data) + row + element(c);
        __stcs(reinterpret_cast<uint4*>(to), Chunk<T>::narrow(x));
      } else {
        float* const to = static_cast<float*>(call_.dvalues.data) + row + element(c);
#pragma unroll
        for (int j = 0; j < kSize; j += 4) {
          __stcs(reinterpret_cast<float4*>(to + j),
                 make_float4(x[j], x[j + 1], x[j + 2], x[j + 3]));
        }
      }
    }
  }

  static __device__ void widen_other(const uint4 (&other)[kOtherSize], float (&x)[kSize]) {
    if constexpr (kOther == Other::wide) {
#pragma unroll
      for (int j = 0; j < kOtherSize; ++j) {
        float four[4];
        Chunk<float>::widen(other[j], four);
#pragma unroll
        for (int k = 0; k < 4; ++k) x[4 * j + k] = four[k];
      }
    } else {
      Chunk<T>::widen(other[0], x);
    }
  }

  static __device__ uint4 opaque(uint4 x) {
    x.x = ptx::opaque(x.x);
    x.y = ptx::opaque(x.y);
    x.z = ptx::opaque(x.z);
    x.w = ptx::opaque(x.w);
    return x;
  }

  const BackwardCall& call_;
  QueuedKey* queue_;
  int lane_, warp_lane_, head_;  ///< lane_: index among those that share a row
  int round_keys_, step_, rounds_per_batch_;
  Keys first_;
  float a_, da_ = 0;
  float weights_[kChunks][kSize], sums_[kChunks][kSize];
};

template <class T, int kLanes, int kChunks, Other kOther>
__global__ void __launch_bounds__(kThreads, kRowBlocks<kChunks>)
    backward_rows(const __grid_constant__ BackwardCall call, int round_keys) {
  __shared__ QueuedKey queues[kUnits][kQueueKeys];
  Unit<T, kLanes, kChunks, kOther> unit(call, round_keys, queues[threadIdx.x / kWarpThreads]);
  unit.run();
  if (call.wants_sums()) unit.store_sums();
}

constexpr int kColumns =
    32;  // columns of ddt_proj per block of add_tile_groups; the last is da_coef's
constexpr int kAddThreads = 1024;

// Adds the blocks whose units have the head. Slot s of block b has head (b kUnits + s) % heads.
__global__ void __launch_bounds__(kAddThreads)
    add_tile_groups(const __grid_constant__ BackwardCall call, int num_blocks,
                    int units_per_block) {
  __shared__ float parts[kAddThreads / kColumns][kColumns];
  const int column = static_cast<int>(threadIdx.x) % kColumns;
  const int part = static_cast<int>(threadIdx.x) / kColumns;
  const int at = static_cast<int>(blockIdx.x) * kColumns + column;
  const int head = static_cast<int>(blockIdx.y);
  const int num_heads = call.forward.num_heads, dim = call.forward.head_dim;
  const int slots = min(num_heads, units_per_block), stride = sum_stride(dim);
  const auto* from = static_cast<const float*>(call.workspace);
  float sum = 0;
#pragma unroll 4
  for (int block = part; block < num_blocks; block += kAddThreads / kColumns) {
    const int first = static_cast<int>(std::int64_t{block} * units_per_block % num_heads);
    const int slot = head >= first ? head - first : head - first + num_heads;
    if (slot < slots && at <= dim) {
      sum += from[(std::int64_t{block} * slots + slot) * stride + at];
    }
  }
  parts[part][column] = sum;
  __syncthreads();
  if (part != 0 || at > dim) return;
  for (int other = 1; other < kAddThreads / kColumns; ++other) sum += parts[other][column];
  if (at == dim) {
    if (call.da_coef.data != nullptr) call.da_coef.store(head * call.da_coef.head_stride, sum);
  } else if (call.ddt_proj.data != nullptr) {
    call.ddt_proj.store(call.ddt_proj.row(0, at, head), sum);
  }
}

template <class T, int kLanes, int kChunks, Other kOther>
void launch(const BackwardCall& call, Stream stream) {
  constexpr std::int64_t kMostBlocks = kMultiprocessors * kRowBlocks<kChunks>;
  constexpr int kLeastKeys = 8;
  const DeviceScoresCall& forward = call.forward;
  const auto num_rounds = [&](int round_keys) {
    return ceil_div(forward.kv_len, std::int64_t{round_keys}) * forward.num_batches *
           forward.num_heads;
  };
  int round_keys = kWarpThreads;
  while (round_keys > kLeastKeys && num_rounds(round_keys) < kMostBlocks * kUnits) round_keys /= 2;
  const std::int64_t blocks = std::min(
      ceil_div(num_rounds(round_keys), std::int64_t{kUnits}),
      std::max(kMostBlocks, ceil_div(std::int64_t{forward.num_heads}, std::int64_t{kUnits})));
  backward_rows<T, kLanes, kChunks, kOther>
      <<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(call, round_keys);
  if (!call.wants_sums()) return;
  const dim3 grid(static_cast<unsigned>(ceil_div(forward.head_dim + 1, kColumns)),
                  static_cast<unsigned>(forward.num_heads));
  add_tile_groups<<<grid, kAddThreads, 0, stream>>>(call, static_cast<int>(blocks), kUnits);
}

template <class T, int kLanes, int kChunks>
void launch_with(const BackwardCall& call, Stream stream) {
  if (call.other.data == nullptr) {
    launch<T, kLanes, kChunks, Other::none>(call, stream);
  } else if (call.other.dtype == call.forward.values.dtype) {
    launch<T, kLanes, kChunks, Other::same>(call, stream);
  } else if constexpr (!std::is_same_v<T, float>) {
    launch<T, kLanes, kChunks, Other::wide>(call, stream);
  }
}

template <class T>
void launch_of(const BackwardCall& call, Stream stream) {
  const std::int64_t row_bytes = call.forward.head_dim * std::int64_t{sizeof(T)};
  if (row_bytes <= 128) {
    launch_with<T, 8, 1>(call, stream);
  } else if (row_bytes <= 256) {
    launch_with<T, 16, 1>(call, stream);
  } else if (row_bytes <= 512) {
    launch_with<T, 32, 1>(call, stream);
  } else {
    launch_with<T, 32, 2>(call, stream);
  }
}

}  // namespace

std::int64_t backward_rows_workspace_bytes(const ZohShape& shape) {
  const std::int64_t most_blocks = std::max<std::int64_t>(
      kMultiprocessors * kRowBlocks<1>, ceil_div(shape.num_heads_kv, std::int64_t{kUnits}));
  const std::int64_t slots = std::min<std::int64_t>(shape.num_heads_kv, kUnits);
  const std::int64_t row =
      sum_stride(static_cast<int>(std::min<std::int64_t>(shape.head_dim, 512)));
  return most_blocks * slots * row * std::int64_t{sizeof(float)};
}

void launch_backward_rows(const BackwardCall& call, Stream stream) {
  if (call.forward.values.dtype == DType::float32) {
    launch_of<float>(call, stream);
  } else if (call.forward.values.dtype == DType::bfloat16) {
    launch_of<__nv_bfloat16>(call, stream);
  } else {
    launch_of<__half>(call, stream);
  }
}

}  // namespace fdma::zoh
