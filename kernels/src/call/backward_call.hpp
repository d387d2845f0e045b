// A backward call whose tensors are checked. Every backend starts from it.
#pragma once

#include <cstdint>

#include "call/attention_call.hpp"
#include "fdma/kernels/attention_backward.hpp"

namespace fdma {

/// The inputs of a forward call, with `out` and `lse` as inputs, and the tensors of the backward
/// pass.
struct BackwardCall : AttentionCall {
  Strided dout;
  Strided dq, dk, dv;           ///< data is written
  const float* dlse = nullptr;  ///< or null
  std::int64_t dlse_batch_stride = 0, dlse_head_stride = 0, dlse_row_stride = 0;
  float* dkey_bias = nullptr;  ///< or null
  std::int64_t dbias_batch_stride = 0, dbias_head_stride = 0;
  float scale = 0;              ///< softmax scale
  bool corrects_delta = false;  ///< DeltaSource::corrected
};

/// Returns the call, or what is wrong with its tensors, as checked_call does; `direction` is the
/// plan's.
Result<BackwardCall> checked_backward_call(Direction direction, const AttentionShape& shape,
                                           const ScoreSpec& score, const BackwardTensors& tensors,
                                           const BackwardOptions& options, Device device,
                                           bool is_closed_form = false);

}  // namespace fdma
