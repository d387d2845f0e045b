// Gradients of ZOH scores where each head sees its own values, dt_proj [heads_kv, head_dim]: one
// pass over values and dvalues, bound by memory as zoh_scores.cu is.
//
//   backward_rows  a unit is kLanes lanes with a head; it goes from kKeys keys of that head to the
//                  next that no other unit has. Their dscores come two steps ahead and say which
//                  rows are read, one step ahead: those whose dscore is 0 are not. A row stays in
//                  registers until its dt is known and then ends in dvalues and in the sums of the
//                  lane, a part of ddt_proj for each of its elements
//   add_units      units with one head in a block are added there, blocks here, both in an order
//                  that depends on the shape alone
#include <algorithm>
#include <cstdint>

#include "zoh/zoh_backward_call.cuh"
#include "zoh/zoh_chunk.cuh"

namespace fdma::zoh {
namespace {

constexpr int kThreads = 256;
constexpr int kMostFloats = kThreads * 2 * 8;  // of ddt_proj in a block

/// With another gradient to be read there are half as many keys in flight, twice the bytes each.
template <bool kAdds>
constexpr int kKeys = kAdds ? 4 : 8;
template <int kChunks>
constexpr int kRowBlocks = kChunks == 1 ? 2 : 1;  // on a multiprocessor, by registers

/// Floats of a head's sums in the workspace: ddt_proj, da_coef, and nothing.
__host__ __device__ constexpr int sum_stride(int head_dim) { return (head_dim + 4) / 4 * 4; }

/// Keys [key, key + kKeys) of a batch element; batches after the last have none.
struct Keys {
  int batch;
  int round;  ///< key / kKeys
};

template <class T, int kLanes, int kChunks, bool kAdds>
class Unit {
 public:
  static constexpr int kSize = Chunk<T>::kSize;
  static constexpr int kCount = kKeys<kAdds>;
  static constexpr int kShare = kLanes / kCount;  ///< lanes that hold the dt of a key
  static constexpr int kUnits = kThreads / kLanes;
  using Raw = uint4[kCount][kChunks];

  __device__ explicit Unit(const BackwardCall& call)
      : call_(call),
        lane_(static_cast<int>(threadIdx.x) % kLanes),
        first_lane_(static_cast<int>(threadIdx.x) % 32 / kLanes * kLanes) {
    const Call& forward = call.forward;
    const std::int64_t unit = std::int64_t{blockIdx.x} * kUnits + threadIdx.x / kLanes;
    head_ = static_cast<int>(unit % forward.num_heads);
    step_ = static_cast<int>(std::int64_t{gridDim.x} * kUnits / forward.num_heads);
    rounds_per_batch_ = static_cast<int>((forward.kv_len + kCount - 1) / kCount);
    // All lanes of a warp take part in each step: units too many have nothing.
    first_ = unit < std::int64_t{step_} * forward.num_heads
                 ? moved({0, 0}, static_cast<int>(unit / forward.num_heads))
                 : Keys{forward.num_batches, 0};
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
    const std::int64_t rounds = std::int64_t{rounds_per_batch_} * call_.forward.num_batches;
    Keys keys = first_;
    float dscore = load_dscore(keys), next_dscore = load_dscore(moved(keys, step_));
    Raw even, odd;
    std::uint32_t live = __ballot_sync(0xFFFFFFFFu, dscore != 0), next_live;
    load(keys, live, even);
    const auto advance = [&](Raw& now, Raw& later) {
      const Keys next = moved(keys, step_);
      const float after_dscore = load_dscore(moved(next, step_));
      next_live = __ballot_sync(0xFFFFFFFFu, next_dscore != 0);
      load(next, next_live, later);
      work(keys, dscore, live, now);
      keys = next;
      dscore = next_dscore;
      live = next_live;
      next_dscore = after_dscore;
    };
    for (std::int64_t begin = 0; begin < rounds; begin += 2 * std::int64_t{step_}) {
      advance(even, odd);
      advance(odd, even);
    }
  }

  /// The sums of the block's units, each head's units added in their order, into the workspace:
  /// [blocks][min(heads, kUnits)][sum_stride]. Slot s is that of the block's s-th unit.
  __device__ void store_sums() {
    __shared__ float all[kThreads * kChunks * kSize];
    __shared__ float all_da[kUnits];
    const int unit = static_cast<int>(threadIdx.x) / kLanes;
    constexpr int kRow = kLanes * kChunks * kSize;
#pragma unroll
    for (int step = kLanes / 2; step > 0; step /= 2) {
      da_ += __shfl_xor_sync(0xFFFFFFFFu, da_, step);
    }
    if (lane_ == 0) all_da[unit] = da_;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int i = 0; i < kSize; ++i) all[unit * kRow + element(c) + i] = sums_[c][i];
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
  __device__ std::int64_t first_key(const Keys& keys) const {
    return std::int64_t{keys.round} * kCount;
  }

  /// The key whose dt this lane holds.
  __device__ std::int64_t mine(const Keys& keys) const { return first_key(keys) + lane_ / kShare; }
  __device__ float load_dscore(const Keys& keys) const {
    const bool is_inside =
        keys.batch < call_.forward.num_batches && mine(keys) < call_.forward.kv_len;
    return is_inside ? call_.dscore(keys.batch, head_, mine(keys)) : 0.0F;
  }
  __device__ bool is_live(std::uint32_t live, int i) const {
    return (live >> (first_lane_ + i * kShare) & 1u) != 0;
  }

  __device__ void load(const Keys& keys, std::uint32_t live, Raw& raw) const {
    const Call& forward = call_.forward;
    const T* const row = static_cast<const T*>(forward.values.data) +
                         keys.batch * forward.batch_stride + first_key(keys) * forward.key_stride +
                         head_ * forward.head_stride;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        raw[i][c] = make_uint4(0, 0, 0, 0);
        if (is_live(live, i) && element(c) < forward.head_dim) {
          raw[i][c] =
              __ldcs(reinterpret_cast<const uint4*>(row + i * forward.key_stride + element(c)));
        }
      }
    }
  }

  __device__ void work(const Keys& keys, float dscore, std::uint32_t live, const Raw& raw) {
    // Nothing is read of keys whose dscore is 0, and they are written only with zeros or a copy.
    if (live == 0 && (call_.dvalues.data == nullptr || call_.is_in_place)) return;
    float other[kAdds ? kCount : 1][kChunks][kSize];
    if constexpr (kAdds) load_other(keys, live, other);
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
    const Slopes slopes = slopes_of(call_.is_log, sum_each<kLanes>(dts, lane_), a_, dscore);
    if (lane_ % kShare == 0) da_ += slopes.da;
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const float ddt = __shfl_sync(0xFFFFFFFFu, slopes.ddt, i * kShare, kLanes);
      if (ddt != 0) {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          float x[kSize];
          Chunk<T>::widen(raw[i][c], x);
#pragma unroll
          for (int j = 0; j < kSize; ++j) sums_[c][j] = fmaf(ddt, x[j], sums_[c][j]);
        }
      }
      store(keys, i, ddt, other[kAdds ? i : 0]);
    }
  }

  __device__ bool is_stored(const Keys& keys, int i) const {
    return keys.batch < call_.forward.num_batches && first_key(keys) + i < call_.forward.kv_len;
  }

  __device__ void load_other(const Keys& keys, std::uint32_t live,
                             float (&other)[kCount][kChunks][kSize]) const {
    const std::int64_t row = call_.other.row(keys.batch, first_key(keys), head_);
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
#pragma unroll
        for (int j = 0; j < kSize; ++j) other[i][c][j] = 0;
        const bool is_read = call_.is_in_place ? is_live(live, i) : is_stored(keys, i);
        if (!is_read || element(c) >= call_.forward.head_dim) continue;
        const std::int64_t at = row + i * call_.other.key_stride + element(c);
        if (call_.other.dtype == call_.forward.values.dtype) {
          const T* const from = static_cast<const T*>(call_.other.data) + at;
          Chunk<T>::widen(__ldcs(reinterpret_cast<const uint4*>(from)), other[i][c]);
        } else {
#pragma unroll
          for (int j = 0; j < kSize; j += 4) {
            const float* const from = static_cast<const float*>(call_.other.data) + at + j;
            const float4 four = __ldcs(reinterpret_cast<const float4*>(from));
            other[i][c][j] = four.x;
            other[i][c][j + 1] = four.y;
            other[i][c][j + 2] = four.z;
            other[i][c][j + 3] = four.w;
          }
        }
      }
    }
  }

  __device__ void store(const Keys& keys, int i, float ddt,
                        const float (&other)[kChunks][kSize]) const {
    const bool is_wanted = call_.dvalues.data != nullptr && is_stored(keys, i);
    if (!is_wanted || (ddt == 0 && call_.is_in_place)) return;
    const std::int64_t row = call_.dvalues.row(keys.batch, first_key(keys) + i, head_);
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      if (element(c) >= call_.forward.head_dim) continue;
      float x[kSize];
#pragma unroll
      for (int j = 0; j < kSize; ++j) {
        x[j] = ddt != 0 ? ddt * weights_[c][j] : 0.0F;
        if constexpr (kAdds) x[j] += other[c][j];
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

  const BackwardCall& call_;
  int lane_, first_lane_, head_;
  int step_, rounds_per_batch_;
  Keys first_;
  float a_, da_ = 0;
  float weights_[kChunks][kSize], sums_[kChunks][kSize];
};

template <class T, int kLanes, int kChunks, bool kAdds>
__global__ void __launch_bounds__(kThreads, kRowBlocks<kChunks>)
    backward_rows(const __grid_constant__ BackwardCall call) {
  Unit<T, kLanes, kChunks, kAdds> unit(call);
  unit.run();
  if (call.wants_sums()) unit.store_sums();
}

constexpr int kColumns = 32;  // of ddt_proj that a block of add_units has; the last is da_coef's
constexpr int kAddThreads = 1024;

// Blocks whose units have the head: that of slot s in block b is (b kUnits + s) % heads.
__global__ void __launch_bounds__(kAddThreads)
    add_units(const __grid_constant__ BackwardCall call, int num_blocks, int units_per_block) {
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

template <class T, int kLanes, int kChunks, bool kAdds>
void launch(const BackwardCall& call, Stream stream) {
  constexpr std::int64_t kUnits = kThreads / kLanes;
  const Call& forward = call.forward;
  const std::int64_t rounds = ceil_div(forward.kv_len, kKeys<kAdds>) * forward.num_batches;
  const std::int64_t needed = ceil_div(rounds * forward.num_heads, kUnits);
  const std::int64_t blocks =
      std::min(needed, std::max<std::int64_t>(kMultiprocessors * kRowBlocks<kChunks>,
                                              ceil_div(forward.num_heads, kUnits)));
  backward_rows<T, kLanes, kChunks, kAdds>
      <<<static_cast<unsigned>(blocks), kThreads, 0, stream>>>(call);
  if (!call.wants_sums()) return;
  const dim3 grid(static_cast<unsigned>(ceil_div(forward.head_dim + 1, kColumns)),
                  static_cast<unsigned>(forward.num_heads));
  add_units<<<grid, kAddThreads, 0, stream>>>(call, static_cast<int>(blocks),
                                              static_cast<int>(kUnits));
}

template <class T, int kLanes, int kChunks>
void launch_with(const BackwardCall& call, Stream stream) {
  if (call.other.data != nullptr) {
    launch<T, kLanes, kChunks, true>(call, stream);
  } else {
    launch<T, kLanes, kChunks, false>(call, stream);
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
  // Slots of a block are at most its units, which hold kMostFloats elements, or as many as heads.
  const std::int64_t most_blocks =
      std::max<std::int64_t>(2 * kMultiprocessors, ceil_div(shape.num_heads_kv, 8));
  const std::int64_t slots = std::min<std::int64_t>(shape.num_heads_kv, kThreads / 8);
  const std::int64_t row =
      sum_stride(static_cast<int>(std::min<std::int64_t>(shape.head_dim, 512)));
  const std::int64_t floats = std::min(slots * row, std::int64_t{kMostFloats} + 4 * kThreads / 8);
  return most_blocks * floats * std::int64_t{sizeof(float)};
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
