// Gradients of ZOH scores for any dtypes, shape and alignment, with one kernel per step:
//
//   dt            computes dt by the kernels of the scores, into the workspace
//   differentiate replaces dt by ddt, and sums da_coef's terms over parts of the keys
//   mark_used     marks keys with a ddt that is not 0, for the wide dt_proj
//   spread        dvalues = ddt^T dt_proj, a tile of keys and elements at a time
//   gather        ddt_proj = ddt values, summed over parts of the keys
//   add_parts     adds both sums over the parts, in their order
// backward_wide.cu combines spread and gather on tensor cores, for the calls that it serves.
// Keys of all batch elements are numbered consecutively: key `flat` is key flat % kv_len of element
// flat / kv_len.
#include <algorithm>
#include <cstdint>

#include "selection/scores/backward_arrays.cuh"

namespace fdma::zoh {
namespace {

constexpr int kThreads = 256;
constexpr int kTileKeys = 32, kTileHeads = 32, kTileColumns = 64;
constexpr std::int64_t kMostParts = 32;
constexpr int kPartStep = 64;  // parts are a multiple of this many keys

constexpr std::int64_t aligned(std::int64_t bytes) { return ceil_div(bytes, 256) * 256; }

/// Offsets in the workspace, and how keys are divided into parts.
struct Layout {
  std::int64_t num_keys;                                 ///< of all batch elements
  std::int64_t num_parts;                                ///< of the keys
  std::int64_t part_keys;                                ///< a multiple of kPartStep
  std::int64_t ddt, used, da_parts, weight_parts, size;  ///< offsets in bytes
};

Layout layout_of(const ZohShape& shape) {
  const std::int64_t heads = shape.num_heads_kv;
  const std::int64_t width = shape.is_per_head ? shape.head_dim : heads * shape.head_dim;
  Layout layout{};
  layout.num_keys = shape.num_batches * shape.kv_len;
  // Twice as many blocks as multiprocessors, each of 128 columns: the blocks of
  // backward_wide.cu.
  const std::int64_t tiles =
      ceil_div(width, 2 * kTileColumns) * (shape.is_per_head ? heads : ceil_div(heads, kTileHeads));
  const std::int64_t parts = std::clamp<std::int64_t>(2 * kMultiprocessors / tiles, 1, kMostParts);
  layout.part_keys = ceil_div(ceil_div(layout.num_keys, parts), kPartStep) * kPartStep;
  layout.num_parts = layout.part_keys == 0 ? 0 : ceil_div(layout.num_keys, layout.part_keys);
  constexpr std::int64_t kFloat = sizeof(float);
  layout.used = aligned(heads * layout.num_keys * kFloat);
  layout.da_parts = layout.used + aligned(shape.is_per_head ? 0 : layout.num_keys);
  layout.weight_parts = layout.da_parts + aligned(heads * layout.num_parts * kFloat);
  // Never zero, so that callers need not distinguish shapes without keys.
  layout.size =
      std::max(layout.weight_parts + layout.num_parts * heads * width * kFloat, aligned(1));
  return layout;
}

__device__ std::int64_t row_at(std::int64_t flat, std::int64_t kv_len, std::int64_t batch_stride,
                               std::int64_t key_stride) {
  const std::int64_t batch = flat / kv_len;
  return batch * batch_stride + (flat - batch * kv_len) * key_stride;
}

/// A block handles a part of the keys of a head.
__global__ void __launch_bounds__(kThreads) differentiate(const __grid_constant__ BackwardCall call,
                                                          const __grid_constant__ Arrays arrays) {
  __shared__ float sums[kThreads];
  const DeviceScoresCall& forward = call.forward;
  const int thread = static_cast<int>(threadIdx.x), head = static_cast<int>(blockIdx.y);
  const std::int64_t part = blockIdx.x;
  const float a = forward.a_coef[head * forward.a_stride];
  const std::int64_t end = min((part + 1) * arrays.part_keys, arrays.num_keys);
  float sum = 0;
  for (std::int64_t flat = part * arrays.part_keys + thread; flat < end; flat += kThreads) {
    const auto batch = static_cast<int>(flat / forward.kv_len);
    float& ddt = arrays.ddt[arrays.ddt_at(forward, flat, head)];
    const Slopes slopes =
        slopes_of(call.is_log, ddt, a, call.dscore(batch, head, flat - batch * forward.kv_len));
    ddt = slopes.ddt;
    sum += slopes.da;
  }
  sums[thread] = sum;
  for (int step = kThreads / 2; step > 0; step /= 2) {
    __syncthreads();
    if (thread < step) sums[thread] += sums[thread + step];
  }
  if (thread == 0) arrays.da_parts[head * arrays.num_parts + part] = sums[0];
}

__global__ void __launch_bounds__(kThreads)
    mark_used(const __grid_constant__ BackwardCall call, const __grid_constant__ Arrays arrays) {
  const std::int64_t flat = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (flat >= arrays.num_keys) return;
  bool is_used = false;
  for (int head = 0; head < call.forward.num_heads; ++head) {
    is_used = is_used || arrays.ddt[arrays.ddt_at(call.forward, flat, head)] != 0;
  }
  arrays.used[flat] = is_used ? 1 : 0;
}

/// Loads the input of a block of spread and gather: ddt of 32 keys and 32 heads, 0 outside.
__device__ void load_ddt(const BackwardCall& call, const Arrays& arrays, std::int64_t first_key,
                         int first_head, int end_head, float (&ddt)[kTileHeads][kTileKeys + 1]) {
  for (int i = static_cast<int>(threadIdx.x); i < kTileHeads * kTileKeys; i += kThreads) {
    const int head = first_head + i / kTileKeys;
    const std::int64_t flat = first_key + i % kTileKeys;
    const bool is_inside = head < end_head && flat < arrays.num_keys;
    ddt[i / kTileKeys][i % kTileKeys] =
        is_inside ? arrays.ddt[arrays.ddt_at(call.forward, flat, head)] : 0.0F;
  }
}

/// A block handles 32 keys and 64 elements of the rows of one head's values, and a thread eight
/// keys, four apart, of one element. All heads add to them, or this one alone.
__global__ void __launch_bounds__(kThreads)
    spread(const __grid_constant__ BackwardCall call, const __grid_constant__ Arrays arrays) {
  __shared__ float ddt[kTileHeads][kTileKeys + 1];
  const DeviceScoresCall& forward = call.forward;
  const int tiles = (forward.head_dim + kTileColumns - 1) / kTileColumns;
  const int source = static_cast<int>(blockIdx.y);
  const auto batch = static_cast<int>(blockIdx.z);
  const int column = static_cast<int>(threadIdx.x) % kTileColumns;
  const int element = static_cast<int>(blockIdx.x) % tiles * kTileColumns + column;
  const int first = static_cast<int>(threadIdx.x) / kTileColumns;
  const std::int64_t first_key = std::int64_t{static_cast<int>(blockIdx.x) / tiles} * kTileKeys;
  const std::int64_t first_flat = batch * forward.kv_len + first_key;
  const int begin_head = forward.is_per_head ? source : 0;
  const int end_head = forward.is_per_head ? source + 1 : forward.num_heads;
  const int weight = (forward.is_per_head ? 0 : source * forward.head_dim) + element;
  const bool is_inside = element < forward.head_dim;
  constexpr int kStep = kThreads / kTileColumns;
  float sums[kTileKeys / kStep] = {};
  for (int head = begin_head; head < end_head; head += kTileHeads) {
    __syncthreads();
    load_ddt(call, arrays, first_flat, head, end_head, ddt);
    __syncthreads();
    for (int h = 0; h < min(kTileHeads, end_head - head); ++h) {
      const float w = is_inside ? forward.weights[(head + h) * forward.weight_row_stride +
                                                  weight * forward.weight_stride]
                                : 0.0F;
#pragma unroll
      for (int i = 0; i < kTileKeys / kStep; ++i) {
        sums[i] = fmaf(ddt[h][first + i * kStep], w, sums[i]);
      }
    }
  }
  if (!is_inside) return;
#pragma unroll
  for (int i = 0; i < kTileKeys / kStep; ++i) {
    const std::int64_t key = first_key + first + i * kStep;
    if (key >= forward.kv_len) continue;
    const bool is_used = arrays.used == nullptr ? ddt[0][first + i * kStep] != 0
                                                : arrays.used[batch * forward.kv_len + key] != 0;
    if (!is_used && call.is_in_place) continue;
    float x = is_used ? sums[i] : 0.0F;
    if (call.other.data != nullptr) {
      x += call.other.load(call.other.row(batch, key, source) + element);
    }
    call.dvalues.store(call.dvalues.row(batch, key, source) + element, x);
  }
}

/// A block handles 64 columns of ddt_proj, 32 heads (or one) and a part of the keys; a thread
/// handles 4 columns and 2 heads, 16 apart.
__global__ void __launch_bounds__(kThreads)
    gather(const __grid_constant__ BackwardCall call, const __grid_constant__ Arrays arrays) {
  __shared__ float ddt[kTileHeads][kTileKeys + 1];
  __shared__ float values[kTileKeys][kTileColumns];
  const DeviceScoresCall& forward = call.forward;
  const int thread = static_cast<int>(threadIdx.x);
  const int first_column = static_cast<int>(blockIdx.x) * kTileColumns;
  const int first_head = static_cast<int>(blockIdx.y) * (forward.is_per_head ? 1 : kTileHeads);
  const int end_head = forward.is_per_head ? first_head + 1 : forward.num_heads;
  const int width = forward.is_per_head ? forward.head_dim : forward.num_heads * forward.head_dim;
  const std::int64_t part = blockIdx.z;
  const std::int64_t end = min((part + 1) * arrays.part_keys, arrays.num_keys);
  float sums[2][4] = {};
  for (std::int64_t key = part * arrays.part_keys; key < end; key += kTileKeys) {
    __syncthreads();
    load_ddt(call, arrays, key, first_head, end_head, ddt);
    if (forward.is_per_head) __syncthreads();
    for (int i = thread; i < kTileKeys * kTileColumns; i += kThreads) {
      const int column = first_column + i % kTileColumns;
      const std::int64_t flat = key + i / kTileColumns;
      float x = 0;
      if (column < width && flat < end &&
          (forward.is_per_head ? ddt[0][i / kTileColumns] != 0 : arrays.used[flat] != 0)) {
        const int head = forward.is_per_head ? first_head : column / forward.head_dim;
        const int element = forward.is_per_head ? column : column % forward.head_dim;
        x = forward.values[row_at(flat, forward.kv_len, forward.batch_stride, forward.key_stride) +
                           head * forward.head_stride + element];
      }
      values[i / kTileColumns][i % kTileColumns] = x;
    }
    __syncthreads();
    for (int k = 0; k < kTileKeys; ++k) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int c = 0; c < 4; ++c) {
          sums[h][c] =
              fmaf(ddt[thread / 16 + 16 * h][k], values[k][thread % 16 + 16 * c], sums[h][c]);
        }
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
#pragma unroll
    for (int c = 0; c < 4; ++c) {
      const int head = first_head + thread / 16 + 16 * h;
      const int column = first_column + thread % 16 + 16 * c;
      if (head < end_head && column < width) {
        arrays.weight_parts[(part * forward.num_heads + head) * width + column] = sums[h][c];
      }
    }
  }
}

/// A thread handles an element of ddt_proj. The threads after the last element handle da_coef.
__global__ void __launch_bounds__(kThreads)
    add_parts(const __grid_constant__ BackwardCall call, const __grid_constant__ Arrays arrays) {
  const DeviceScoresCall& forward = call.forward;
  const std::int64_t width =
      forward.is_per_head ? forward.head_dim : std::int64_t{forward.num_heads} * forward.head_dim;
  const std::int64_t count = width * forward.num_heads;
  const std::int64_t at = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  const bool is_weight = at < count;
  if (at >= count + forward.num_heads ||
      (is_weight ? call.ddt_proj.data : call.da_coef.data) == nullptr) {
    return;
  }
  const float* from =
      is_weight ? arrays.weight_parts + at : arrays.da_parts + (at - count) * arrays.num_parts;
  float sum = 0;
  for (std::int64_t part = 0; part < arrays.num_parts; ++part) {
    sum += from[is_weight ? part * count : part];
  }
  if (is_weight) {
    const auto head = static_cast<int>(at / width);
    call.ddt_proj.store(call.ddt_proj.row(0, at - head * width, head), sum);
  } else {
    call.da_coef.store((at - count) * call.da_coef.head_stride, sum);
  }
}

}  // namespace

std::int64_t backward_any_workspace_bytes(const ZohShape& shape) { return layout_of(shape).size; }

Result<void> launch_backward_any(const BackwardCall& call, Stream stream) {
  const DeviceScoresCall& forward = call.forward;
  const Layout layout = layout_of({forward.num_batches, forward.kv_len, forward.num_heads,
                                   forward.head_dim, forward.is_per_head});
  auto* const memory = static_cast<std::uint8_t*>(call.workspace);
  const Arrays arrays{reinterpret_cast<float*>(memory + layout.ddt),
                      forward.is_per_head ? nullptr : memory + layout.used,
                      reinterpret_cast<float*>(memory + layout.da_parts),
                      reinterpret_cast<float*>(memory + layout.weight_parts),
                      layout.num_keys,
                      layout.num_parts,
                      layout.part_keys};
  const auto blocks = [](std::int64_t count, std::int64_t size) {
    return static_cast<unsigned>(ceil_div(count, size));
  };
  const auto heads = static_cast<unsigned>(forward.num_heads);
  const auto parts = static_cast<unsigned>(layout.num_parts);
  const bool is_wide = is_backward_wide(call);
  if (layout.num_keys > 0) {
    DeviceScoresCall scores = forward;
    scores.result = Scored::dt;
    scores.scores = arrays.ddt;
    scores.score_batch_stride = heads * forward.kv_len;
    scores.score_head_stride = forward.kv_len;
    scores.score_key_stride = 1;
    FDMA_TRY_VOID(launch_scores(scores, stream));
    differentiate<<<dim3(parts, heads), kThreads, 0, stream>>>(call, arrays);
    if (!forward.is_per_head) {
      mark_used<<<blocks(layout.num_keys, kThreads), kThreads, 0, stream>>>(call, arrays);
    }
    if (is_wide) FDMA_TRY_VOID(launch_backward_wide(call, arrays, stream));
    if (call.dvalues.data != nullptr && !is_wide) {
      const dim3 grid(blocks(forward.kv_len, kTileKeys) * blocks(forward.head_dim, kTileColumns),
                      heads, static_cast<unsigned>(forward.num_batches));
      spread<<<grid, kThreads, 0, stream>>>(call, arrays);
    }
  }
  if (!call.wants_sums()) return {};
  const std::int64_t width =
      forward.is_per_head ? forward.head_dim : std::int64_t{forward.num_heads} * forward.head_dim;
  if (layout.num_keys > 0 && call.ddt_proj.data != nullptr && !is_wide) {
    const dim3 grid(blocks(width, kTileColumns),
                    forward.is_per_head ? heads : blocks(forward.num_heads, kTileHeads), parts);
    gather<<<grid, kThreads, 0, stream>>>(call, arrays);
  }
  add_parts<<<blocks((width + 1) * forward.num_heads, kThreads), kThreads, 0, stream>>>(call,
                                                                                        arrays);
  return {};
}

}  // namespace fdma::zoh
