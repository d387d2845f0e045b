// Compares the results of attention_forward with dense attention in float64.
//
// Method. The visible keys of a row come from the row intervals of the mask, not from the plan. The
// result of the row is computed twice by definition. The reference is computed in float64. The
// yardstick is an explicit matmul, softmax, matmul in the tensors' own types with fp32 accumulators:
// logits, with everything that the score adds, are rounded to the type of q, and weights, after the
// sink and dropout, to the type of v. For out and for lse, the
// largest error against the reference may be at most twice the largest error of the yardstick, plus
// 1e-5 of the largest reference value. Rows without keys must be exactly 0 and -inf. NaN must be where
// the reference has NaN and nowhere else.
//
// All rows are compared if that costs at most about 2^31 multiplications. Otherwise a selection of
// rows is compared, spread over batch elements, heads and tiles; half of them are first or last rows
// of tiles.
#pragma once

#include <cstdint>
#include <string>

#include "cli/json_output.hpp"
#include "cli/outcome.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/attention.hpp"
#include "run/tensor_error.hpp"

namespace fdma::maskc {

class Progress;

struct AttentionCheck {
  std::int64_t num_rows = 0;    ///< compared
  std::int64_t total_rows = 0;  ///< over batch elements and heads
  TensorError out;
  TensorError lse;

  bool is_right() const { return out.is_right() && lse.is_right(); }
};

/// `options` are those of the call. `max_rows` bounds the rows compared; 0 means the limit described
/// above. Failure: unsupported (memory).
Outcome<AttentionCheck> check_attention(const BlockMask& mask, const AttentionPlan& plan,
                                        const AttentionTensors& tensors,
                                        const AttentionOptions& options, std::int64_t max_rows,
                                        Progress& progress);

/// "  check  4,096 of 65,536 rows: max abs error out 1.2e-07 (bound ..), lse .."
std::string to_text(const AttentionCheck& check);
/// The reason why the result is wrong, one sentence for each tensor.
std::string complaint(const AttentionCheck& check);
Json to_json(const AttentionCheck& check);

}  // namespace fdma::maskc
