// An attention call whose tensors are checked. Every backend starts from it.
#pragma once

#include <cmath>
#include <cstdint>

#include "fdma/kernels/attention.hpp"

namespace fdma {

/// A tensor [batch, row, head, column] in elements; column stride 1.
struct Strided {
  const void* data = nullptr;
  DType dtype = DType::float32;
  std::int64_t batch_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
};

struct AttentionCall {
  Strided q, k, v;
  Strided out;                      ///< data is written
  Strided out_low;                  ///< data is written, or null
  const float* key_bias = nullptr;  ///< or null
  std::int64_t bias_batch_stride = 0, bias_head_stride = 0;
  float* lse = nullptr;  ///< or null
  std::int64_t lse_batch_stride = 0, lse_head_stride = 0, lse_row_stride = 0;
  float scale_log2 = 0;  ///< softmax scale times log2(e), because exponents are powers of two
  // For closed-form plans; null: the plan's own.
  const std::int32_t* q_lens = nullptr;      ///< [batch]
  const std::int32_t* kv_lens = nullptr;     ///< [batch]
  const std::int32_t* cu_seqlens = nullptr;  ///< element b's at b * cu_seqlens_batch_stride
  std::int64_t cu_seqlens_batch_stride = 0;  ///< 0: all elements have the same documents
  /// Per batch element, where cu_seqlens is given; ClosedFormMask::first_border does not apply then
  std::int32_t num_borders = 0;
};

/// Success if the plan is for this pass; otherwise unsupported, with the pass that it is for.
Result<void> check_direction(Direction of_plan, Direction of_call);

inline float default_softmax_scale(std::int32_t head_dim) {
  return 1.0F / std::sqrt(static_cast<float>(head_dim));
}

/// Returns the call, or what is wrong with its tensors: shape_mismatch, invalid_argument,
/// unsupported. `is_closed_form`: the plan takes lengths and documents. Their values are not
/// checked.
Result<AttentionCall> checked_call(const AttentionShape& shape, const ScoreSpec& score,
                                   const AttentionTensors& tensors, const AttentionOptions& options,
                                   Device device, bool is_closed_form = false);

}  // namespace fdma
