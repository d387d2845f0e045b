// A call of zoh_scores as all its kernels see it, and how they turn a sum into a score.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "fdma/kernels/zoh_device.hpp"

namespace fdma::zoh {

/// Multiprocessors of an H100 or H200, the number over which work is spread
inline constexpr std::int64_t kMultiprocessors = 132;

/// A tensor of any of the three dtypes, element by element.
struct AnyFloats {
  const void* data;
  DType dtype;

  __device__ float operator[](std::int64_t at) const {
    if (dtype == DType::float32) return static_cast<const float*>(data)[at];
    if (dtype == DType::float16) return __half2float(static_cast<const __half*>(data)[at]);
    return __bfloat162float(static_cast<const __nv_bfloat16*>(data)[at]);
  }
};

/// The function of dt that is stored. `dt` itself is for the gradients.
enum class Scored : std::uint8_t { exp, log, dt };

struct DeviceScoresCall {
  AnyFloats values, weights, a_coef;
  float* scores;
  int num_batches, num_heads, head_dim;
  std::int64_t kv_len;
  std::int64_t batch_stride, key_stride, head_stride;                    ///< of values
  std::int64_t weight_row_stride, weight_stride, a_stride;               ///< of dt_proj, a_coef
  std::int64_t score_batch_stride, score_head_stride, score_key_stride;  ///< of scores
  bool is_per_head;
  Scored result;
};

__device__ inline float score_of(const DeviceScoresCall& call, float dt, float a) {
  if (call.result == Scored::dt) return dt;
  const float softplus = fmaxf(dt, 0.0F) + log1pf(expf(-fabsf(dt)));
  const float log = softplus * a;
  return call.result == Scored::log ? log : expf(log);
}

__device__ inline void store_score(const DeviceScoresCall& call, int batch, int head,
                                   std::int64_t key, float dt) {
  call.scores[batch * call.score_batch_stride + head * call.score_head_stride +
              key * call.score_key_stride] = score_of(call, dt, call.a_coef[head * call.a_stride]);
}

/// The call without scores and result.
DeviceScoresCall make_call(const ZohShape& shape, const TensorView& values,
                           const TensorView& dt_proj, const TensorView& a_coef);
/// Launches the fastest kernel for a complete call.
Result<void> launch_scores(const DeviceScoresCall& call, Stream stream);

/// Launch the product of a wide dt_proj on tensor cores. Rows of values and of weights have one
/// dtype, are contiguous over all heads and can be read 16 bytes at a time.
/// zoh_wide.cu, for many keys
Result<void> launch_wide(const DeviceScoresCall& call, Stream stream);
/// zoh_tiles.cu, for few keys of 16 bits
void launch_tiles(const DeviceScoresCall& call, Stream stream);

}  // namespace fdma::zoh
