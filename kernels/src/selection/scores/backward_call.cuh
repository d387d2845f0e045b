// A call of zoh_scores_backward as its kernels see it, and how they differentiate a dt.
#pragma once

#include <cstdint>

#include "selection/scores/call.cuh"
#include "selection/scores/zoh_vector.cuh"

namespace fdma::zoh {

/// A gradient of values, of one of the three dtypes. data = nullptr: it is not wanted.
template <class Data>
struct BasicValueGradient {
  Data* data;
  DType dtype;
  std::int64_t batch_stride, key_stride, head_stride;  ///< in elements; the last stride is 1

  __device__ std::int64_t row(int batch, std::int64_t key, int head) const {
    return batch * batch_stride + key * key_stride + head * head_stride;
  }
  __device__ float load(std::int64_t at) const { return AnyFloats{data, dtype}[at]; }
  __device__ void store(std::int64_t at, float x) const {
    if (dtype == DType::float32) {
      static_cast<float*>(data)[at] = x;
    } else if (dtype == DType::float16) {
      static_cast<__half*>(data)[at] = __float2half_rn(x);
    } else {
      static_cast<__nv_bfloat16*>(data)[at] = __float2bfloat16_rn(x);
    }
  }
};

using ValueGradient = BasicValueGradient<void>;
using ReadGradient = BasicValueGradient<const void>;

struct BackwardCall {
  DeviceScoresCall forward;  ///< without scores
  const float* dscores;
  std::int64_t dscore_batch_stride, dscore_head_stride, dscore_key_stride;
  ValueGradient dvalues;
  ReadGradient other;      ///< other_dvalues
  ValueGradient ddt_proj;  ///< rows are heads, key_stride that of the elements of a row
  ValueGradient da_coef;   ///< head_stride
  bool is_in_place;        ///< `other` is dvalues
  bool is_log;
  void* workspace;

  __device__ float dscore(int batch, int head, std::int64_t key) const {
    return dscores[batch * dscore_batch_stride + head * dscore_head_stride +
                   key * dscore_key_stride];
  }
  __host__ __device__ bool wants_sums() const {
    return ddt_proj.data != nullptr || da_coef.data != nullptr;
  }
};

/// The gradient of dt, and the term of A's gradient.
struct Slopes {
  float ddt, da;
};
__device__ inline Slopes slopes_of(bool is_log, float dt, float a, float dscore) {
  const float decay = expf(-fabsf(dt));
  const float softplus = fmaxf(dt, 0.0F) + log1pf(decay);
  const float sigmoid = (dt < 0 ? decay : 1.0F) / (1 + decay);
  const float score = is_log ? 1.0F : expf(softplus * a);
  if (dscore == 0 || score == 0) return {0, 0};
  const float slope = dscore * score;
  return {slope * (a * sigmoid), slope * softplus};
}

/// True if rows can be read or written 16 bytes at a time, or if there are none.
template <class Data>
bool has_aligned_rows(const BasicValueGradient<Data>& gradient) {
  const std::int64_t size = size_bytes(gradient.dtype);
  return gradient.data == nullptr ||
         (is_multiple_of_16(gradient.data) && gradient.batch_stride * size % 16 == 0 &&
          gradient.key_stride * size % 16 == 0 && gradient.head_stride * size % 16 == 0);
}

/// One pass over values and their gradient, then the sum over blocks. It needs values that one head
/// each sees, all tensors readable 16 bytes at a time, and rows of at most 1,024 bytes.
void launch_backward_rows(const BackwardCall& call, Stream stream);
/// Serves any other call.
Result<void> launch_backward_any(const BackwardCall& call, Stream stream);

std::int64_t backward_rows_workspace_bytes(const ZohShape& shape);
std::int64_t backward_any_workspace_bytes(const ZohShape& shape);

}  // namespace fdma::zoh
