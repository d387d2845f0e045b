// ZOH scores on the GPU. Three kernels compute one formula (zoh_scores.hpp):
//   score_rows   dt_proj [heads_kv, head_dim]. A few lanes share a row of values, 16 bytes each, and
//                keep their part of the head's weights in registers for many keys. A lane sums eight
//                keys while it loads the next eight. Each step of the reduction passes half of the
//                sums to the opposite lane, so 8 sums take 7 shuffles and a few, not 8 x 4
//   score_wide   dt_proj [heads_kv, heads_kv * head_dim] of the dtype of values, on tensor cores
//                (zoh_wide.cu; few keys of 16 bits zoh_tiles.cu)
//   score_any    everything else: any alignment and any mixture of dtypes, tiles in shared memory
// The first two are bound by reading `values`.
#include <algorithm>
#include <cstdint>

#include "cuda/cuda_error.hpp"
#include "cuda/gpu_library.hpp"
#include "cuda/lane_sums.cuh"
#include "selection/scores/call.cuh"
#include "selection/scores/gpu_scores.hpp"
#include "selection/scores/zoh_vector.cuh"

namespace fdma {
namespace zoh {
namespace {

constexpr int kThreads = 256;

constexpr int kKeys = 8;  // keys that a lane of score_rows sums at a time

/// Blocks of score_rows per multiprocessor, limited by the registers that two times eight keys
/// take.
template <int kChunks>
constexpr int kRowBlocks = kChunks == 1 ? 2 : 1;

// Eight keys of a batch element, from 8 * group on.
struct Keys {
  int batch, group;
};

// A unit is kLanes lanes with a head. It goes from eight keys of that head to the next eight that
// no other unit has, and loads those while it sums these, through all batch elements. Heads vary
// fastest among units, so that a block reads whole rows of all heads. A lane has every kLanes-th
// chunk of a row, kChunks of them.
template <class T, int kLanes, int kChunks>
__global__ void __launch_bounds__(kThreads, kRowBlocks<kChunks>) score_rows(DeviceScoresCall call) {
  constexpr int kSize = Chunk<T>::kSize;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int unit =
      (static_cast<int>(blockIdx.x) * kThreads + static_cast<int>(threadIdx.x)) / kLanes;
  const int units_per_head = static_cast<int>(gridDim.x) * (kThreads / kLanes) / call.num_heads;
  const int head = unit % call.num_heads;
  const int num_groups = static_cast<int>((call.kv_len + kKeys - 1) / kKeys);
  // All lanes of a warp take part in each round. Keys past the end, and surplus units, read
  // nothing.
  const int num_batches = unit < units_per_head * call.num_heads ? call.num_batches : 0;
  float weights[kChunks][kSize];
  bool is_inside[kChunks];
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int at = (c * kLanes + lane) * kSize;
    is_inside[c] = at < call.head_dim;
#pragma unroll
    for (int i = 0; i < kSize; ++i) {
      weights[c][i] =
          is_inside[c] ? call.weights[head * call.weight_row_stride + (at + i) * call.weight_stride]
                       : 0.0F;
    }
  }
  const T* const rows =
      static_cast<const T*>(call.values.data) + head * call.head_stride + lane * kSize;
  const auto end_of = [&](const Keys& keys) { return keys.batch < num_batches ? call.kv_len : 0; };
  const auto load = [&](const Keys& keys, uint4(&raw)[kKeys][kChunks]) {
    const std::int64_t first = std::int64_t{keys.group} * kKeys, end = end_of(keys);
    const T* const row = rows + keys.batch * call.batch_stride + first * call.key_stride;
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        raw[i][c] = make_uint4(0, 0, 0, 0);
        if (first + i < end && is_inside[c]) {
          raw[i][c] = __ldcs(
              reinterpret_cast<const uint4*>(row + i * call.key_stride + c * kLanes * kSize));
        }
      }
    }
  };
  const auto score = [&](const Keys& keys, const uint4(&raw)[kKeys][kChunks]) {
    float sums[kKeys];
#pragma unroll
    for (int i = 0; i < kKeys; ++i) {
      sums[i] = 0;
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        float x[kSize];
        Chunk<T>::widen(raw[i][c], x);
#pragma unroll
        for (int j = 0; j < kSize; ++j) sums[i] = fmaf(x[j], weights[c][j], sums[i]);
      }
    }
    const float dt = gpu::sum_each<kLanes>(sums, lane);
    const std::int64_t mine = std::int64_t{keys.group} * kKeys + lane / (kLanes / kKeys);
    if (lane % (kLanes / kKeys) == 0 && mine < end_of(keys)) {
      store_score(call, keys.batch, head, mine, dt);
    }
  };
  const Keys step{units_per_head / num_groups, units_per_head % num_groups};
  const auto next = [&](Keys keys) {
    keys.batch += step.batch;
    keys.group += step.group;
    if (keys.group >= num_groups) {
      keys.group -= num_groups;
      ++keys.batch;
    }
    return keys;
  };
  uint4 even[kKeys][kChunks], odd[kKeys][kChunks];
  const int first = unit / call.num_heads;
  Keys keys{first / num_groups, first % num_groups};
  load(keys, even);
  const std::int64_t end = std::int64_t{num_groups} * call.num_batches;
  for (std::int64_t begin = 0; begin < end; begin += 2 * units_per_head) {
    const Keys odd_keys = next(keys);
    load(odd_keys, odd);
    score(keys, even);
    keys = next(odd_keys);
    load(keys, even);
    score(odd_keys, odd);
  }
}

constexpr int kTileKeys = 64, kTileHeads = 32, kTileDepth = 32;

// A block handles 64 keys and 32 heads from blockIdx.z on; a thread handles 4 keys and 2 heads, 16
// apart.
__global__ void __launch_bounds__(kThreads) score_any(DeviceScoresCall call) {
  __shared__ float values[kTileDepth][kTileKeys + 1];
  __shared__ float weights[kTileDepth][kTileHeads + 1];
  const int thread = static_cast<int>(threadIdx.x);
  const std::int64_t first_key = std::int64_t{blockIdx.x} * kTileKeys;
  const auto batch = static_cast<int>(blockIdx.y);
  // With weights per head a block has one head and its column is the first one.
  const int first_head = static_cast<int>(blockIdx.z) * (call.is_per_head ? 1 : kTileHeads);
  const int end_head = call.is_per_head ? first_head + 1 : call.num_heads;
  const int width = call.is_per_head ? call.head_dim : call.num_heads * call.head_dim;
  float sums[4][2] = {};
  for (int at = 0; at < width; at += kTileDepth) {
    for (int i = thread; i < kTileKeys * kTileDepth; i += kThreads) {
      const int depth = i % kTileDepth, key = i / kTileDepth, column = at + depth;
      float x = 0;
      if (column < width && first_key + key < call.kv_len) {
        const int head = call.is_per_head ? first_head : column / call.head_dim;
        const int element = call.is_per_head ? column : column % call.head_dim;
        x = call.values[batch * call.batch_stride + (first_key + key) * call.key_stride +
                        head * call.head_stride + element];
      }
      values[depth][key] = x;
    }
    for (int i = thread; i < kTileHeads * kTileDepth; i += kThreads) {
      const int depth = i % kTileDepth, head = first_head + i / kTileDepth;
      weights[depth][i / kTileDepth] =
          at + depth < width && head < end_head
              ? call.weights[head * call.weight_row_stride + (at + depth) * call.weight_stride]
              : 0.0F;
    }
    __syncthreads();
    const int depth_end = min(kTileDepth, width - at);
    for (int depth = 0; depth < depth_end; ++depth) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          sums[i][j] = fmaf(values[depth][thread % 16 + 16 * i],
                            weights[depth][thread / 16 + 16 * j], sums[i][j]);
        }
      }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) {
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const std::int64_t key = first_key + thread % 16 + 16 * i;
      const int head = first_head + thread / 16 + 16 * j;
      if (key < call.kv_len && head < end_head) store_score(call, batch, head, key, sums[i][j]);
    }
  }
}

template <class T, int kLanes, int kChunks>
void launch_rows(const DeviceScoresCall& call, Stream stream) {
  constexpr std::int64_t kUnits = kThreads / kLanes;
  const std::int64_t needed =
      ceil_div(ceil_div(call.kv_len, kKeys) * call.num_batches * call.num_heads, kUnits);
  const std::int64_t resident = kMultiprocessors * kRowBlocks<kChunks>;
  const auto blocks =
      static_cast<unsigned>(std::min(needed, std::max(resident, ceil_div(call.num_heads, kUnits))));
  score_rows<T, kLanes, kChunks><<<blocks, kThreads, 0, stream>>>(call);
}

template <class T>
void launch_rows_of(const DeviceScoresCall& call, std::int64_t row_bytes, Stream stream) {
  if (row_bytes <= 128) {
    launch_rows<T, 8, 1>(call, stream);
  } else if (row_bytes <= 256) {
    launch_rows<T, 16, 1>(call, stream);
  } else if (row_bytes <= 512) {
    launch_rows<T, 32, 1>(call, stream);
  } else {
    launch_rows<T, 32, 2>(call, stream);
  }
}

/// From this number of keys on a block of zoh_wide.cu has enough of them (between 4K and 16K on an
/// H200).
constexpr std::int64_t kManyKeys = 8192;

}  // namespace

Result<void> launch_scores(const DeviceScoresCall& call, Stream stream) {
  const DType dtype = call.values.dtype;
  const std::int64_t row_bytes = std::int64_t{call.head_dim} * size_bytes(dtype);
  if (call.is_per_head && has_wide_rows(call) && row_bytes <= 1024) {
    if (dtype == DType::float32) {
      launch_rows_of<float>(call, row_bytes, stream);
    } else if (dtype == DType::bfloat16) {
      launch_rows_of<__nv_bfloat16>(call, row_bytes, stream);
    } else {
      launch_rows_of<__half>(call, row_bytes, stream);
    }
    return {};
  }
  const bool has_flat_rows = call.head_stride == call.head_dim && call.weight_stride == 1 &&
                             is_multiple_of_16(call.weights.data) &&
                             call.weight_row_stride * size_bytes(dtype) % 16 == 0;
  if (!call.is_per_head && call.weights.dtype == dtype && has_wide_rows(call) && has_flat_rows) {
    if (dtype == DType::float32 || call.kv_len * call.num_batches >= kManyKeys) {
      return launch_wide(call, stream);
    }
    launch_tiles(call, stream);
    return {};
  }
  const dim3 grid(static_cast<unsigned>(ceil_div(call.kv_len, kTileKeys)),
                  static_cast<unsigned>(call.num_batches),
                  static_cast<unsigned>(call.is_per_head ? call.num_heads
                                                         : ceil_div(call.num_heads, kTileHeads)));
  score_any<<<grid, kThreads, 0, stream>>>(call);
  return {};
}

DeviceScoresCall make_call(const ZohShape& shape, const TensorView& values,
                           const TensorView& dt_proj, const TensorView& a_coef) {
  DeviceScoresCall call{};
  call.values = {values.data, values.dtype};
  call.weights = {dt_proj.data, dt_proj.dtype};
  call.a_coef = {a_coef.data, a_coef.dtype};
  call.num_batches = static_cast<int>(shape.num_batches);
  call.num_heads = static_cast<int>(shape.num_heads_kv);
  call.head_dim = static_cast<int>(shape.head_dim);
  call.kv_len = shape.kv_len;
  call.batch_stride = shape.num_batches > 1 ? values.strides[0] : 0;
  call.key_stride = shape.kv_len > 1 ? values.strides[1] : 0;
  call.head_stride = shape.num_heads_kv > 1 ? values.strides[2] : shape.head_dim;
  call.weight_row_stride = dt_proj.strides[0];
  call.weight_stride = dt_proj.strides[1];
  call.a_stride = a_coef.strides[0];
  call.is_per_head = shape.is_per_head;
  return call;
}

namespace {

class CudaScores final : public GpuScores {
 public:
  Result<void> launch(const ZohShape& shape, const TensorView& values, const TensorView& dt_proj,
                      const TensorView& a_coef, const MutableTensorView& scores, ZohMode mode,
                      Stream stream) const override {
    DeviceScoresCall call = make_call(shape, values, dt_proj, a_coef);
    call.scores = static_cast<float*>(scores.data);
    call.score_batch_stride = scores.strides[0];
    call.score_head_stride = scores.strides[1];
    call.score_key_stride = scores.strides[2];
    call.result = mode == ZohMode::log ? Scored::log : Scored::exp;
    FDMA_TRY_VOID(launch_scores(call, stream));
    return gpu::check_cuda(cudaGetLastError(), "zoh_scores: launch");
  }
};

}  // namespace
}  // namespace zoh

const zoh::GpuScores& with_cuda::scores() {
  static const zoh::CudaScores scores;
  return scores;
}

}  // namespace fdma
