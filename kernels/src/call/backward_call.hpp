// A backward call whose tensors are checked: what every backend starts from.
#pragma once

#include <cstdint>

#include "call/attention_call.hpp"
#include "fdma/kernels/attention_backward.hpp"

namespace fdma {

/// The inputs as in a forward call, `out` and `lse` being read, and what is there beside them.
struct BackwardCall : AttentionCall {
  Strided dout;
  Strided dq, dk, dv;           ///< data is written
  const float* dlse = nullptr;  ///< or null
  std::int64_t dlse_batch_stride = 0, dlse_head_stride = 0, dlse_row_stride = 0;
  float* dkey_bias = nullptr;  ///< or null
  std::int64_t dbias_batch_stride = 0, dbias_head_stride = 0;
  float scale = 0;         ///< of the softmax
  bool sums_keys = false;  ///< RowSums::keys
};

/// The call, or what is wrong with its tensors, as checked_call; `direction` is the plan's.
Result<BackwardCall> checked_backward_call(Direction direction, const AttentionShape& shape,
                                           const ScoreSpec& score, const BackwardTensors& tensors,
                                           const BackwardOptions& options, Device device,
                                           bool is_parametric = false);

}  // namespace fdma
