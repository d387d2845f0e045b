// Lists keys that have a dscore, in two launches: marks and counts of 256 keys each, then each 256
// keys behind those that come before. Dense dscores cost what reading them does.
#include "zoh/zoh_used_keys.cuh"

namespace fdma::zoh {
namespace {

constexpr int kThreads = kKeysPerCount, kWarps = kThreads / 32;
constexpr int kColumns = 512;  // of dvalues that a block of list_and_fill has
constexpr std::uint32_t kAll = 0xFFFFFFFFu;

__global__ void __launch_bounds__(kThreads)
    mark_keys(const __grid_constant__ BackwardCall call, const __grid_constant__ UsedKeys keys) {
  const std::int64_t flat = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  bool is_used = false;
  if (flat < keys.num_keys) {
    const auto batch = static_cast<int>(flat / call.forward.kv_len);
    const std::int64_t key = flat - batch * call.forward.kv_len;
#pragma unroll 8
    for (int head = 0; head < call.forward.num_heads; ++head) {
      is_used |= call.dscore(batch, head, key) != 0;
    }
    keys.used[flat] = is_used ? 1 : 0;
  }
  const int count = __syncthreads_count(is_used);
  if (threadIdx.x == 0) keys.counts[blockIdx.x] = count;
}

/// The sum over the block's threads, for all of them.
__device__ int sum_of_block(int x) {
  __shared__ int sums[kWarps];
  const int sum = __reduce_add_sync(kAll, x);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = sum;
  __syncthreads();
  int all = 0;
  for (const int part : sums) all += part;
  return all;
}

/// Eight elements of a row of a gradient.
template <class T>
__device__ void load_eight(const ValueGradient& gradient, std::int64_t at, float (&x)[8]) {
  constexpr int kSize = Chunk<T>::kSize;
  const auto* const from =
      reinterpret_cast<const uint4*>(static_cast<const T*>(gradient.data) + at);
#pragma unroll
  for (int i = 0; i < 8; i += kSize) {
    float part[kSize];
    Chunk<T>::widen(__ldcs(from + i / kSize), part);
#pragma unroll
    for (int j = 0; j < kSize; ++j) x[i + j] = part[j];
  }
}
template <class T>
__device__ void store_eight(const ValueGradient& gradient, std::int64_t at, const float (&x)[8]) {
  constexpr int kSize = Chunk<T>::kSize;
  auto* const to = reinterpret_cast<uint4*>(static_cast<T*>(gradient.data) + at);
#pragma unroll
  for (int i = 0; i < 8; i += kSize) {
    float part[kSize];
#pragma unroll
    for (int j = 0; j < kSize; ++j) part[j] = x[i + j];
    __stcs(to + i / kSize, Chunk<T>::narrow(part));
  }
}

/// A warp writes rows of its 32 keys that are not used.
__device__ void fill_rows(const BackwardCall& call, std::int64_t first, std::uint32_t keys) {
  const Call& forward = call.forward;
  const int width = forward.num_heads * forward.head_dim;
  const int begin = static_cast<int>(blockIdx.y) * kColumns;
  for (; keys != 0; keys &= keys - 1) {
    const std::int64_t flat = first + __ffs(static_cast<int>(keys)) - 1;
    const auto batch = static_cast<int>(flat / forward.kv_len);
    const std::int64_t key = flat - batch * forward.kv_len;
    for (int column = begin + static_cast<int>(threadIdx.x) % 32 * 8;
         column < min(begin + kColumns, width); column += 32 * 8) {
      const int head = column / forward.head_dim, element = column % forward.head_dim;
      float x[8] = {};
      if (call.other.data != nullptr) {
        const std::int64_t from = call.other.row(batch, key, head) + element;
        if (call.other.dtype == DType::float32) {
          load_eight<float>(call.other, from, x);
        } else {
          load_eight<__nv_bfloat16>(call.other, from, x);
        }
      }
      const std::int64_t to = call.dvalues.row(batch, key, head) + element;
      if (call.dvalues.dtype == DType::float32) {
        store_eight<float>(call.dvalues, to, x);
      } else {
        store_eight<__nv_bfloat16>(call.dvalues, to, x);
      }
    }
  }
}

__global__ void __launch_bounds__(kThreads) list_and_fill(const __grid_constant__ BackwardCall call,
                                                          const __grid_constant__ UsedKeys keys) {
  __shared__ int counts[kWarps];
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const std::int64_t first = std::int64_t{blockIdx.x} * kThreads + warp * 32;
  const std::int64_t flat = first + lane;
  const bool is_inside = flat < keys.num_keys;
  const bool is_used = is_inside && keys.used[flat] != 0;
  const std::uint32_t used = __ballot_sync(kAll, is_used);
  if (blockIdx.y == 0) {
    int before = 0;
    for (int i = thread; i < static_cast<int>(blockIdx.x); i += kThreads) before += keys.counts[i];
    before = sum_of_block(before);
    if (lane == 0) counts[warp] = __popc(used);
    __syncthreads();
    for (int other = 0; other < warp; ++other) before += counts[other];
    if (is_used) keys.list[before + __popc(used & ((1u << lane) - 1))] = static_cast<int>(flat);
    if (blockIdx.x == gridDim.x - 1 && thread == kThreads - 1)
      *keys.num_used = before + __popc(used);
  }
  if (call.dvalues.data == nullptr || call.is_in_place) return;
  fill_rows(call, first, ~used & __ballot_sync(kAll, is_inside));
}

}  // namespace

void list_used_keys(const BackwardCall& call, const UsedKeys& keys, Stream stream) {
  const auto blocks = static_cast<unsigned>(ceil_div(keys.num_keys, kKeysPerCount));
  const std::int64_t width = std::int64_t{call.forward.num_heads} * call.forward.head_dim;
  const bool fills = call.dvalues.data != nullptr && !call.is_in_place;
  mark_keys<<<blocks, kThreads, 0, stream>>>(call, keys);
  list_and_fill<<<dim3(blocks, fills ? static_cast<unsigned>(ceil_div(width, kColumns)) : 1),
                  kThreads, 0, stream>>>(call, keys);
}

}  // namespace fdma::zoh
