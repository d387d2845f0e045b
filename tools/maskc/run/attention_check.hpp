// Is what attention_forward computed right? Compared with dense attention in float64.
//
// Method. A row's visible keys come from the mask's own row intervals, not from the plan. Its
// result is computed twice by definition: in float64 (the reference), and as an explicit matmul,
// softmax, matmul in the tensors' own types with float32 sums, that is with logits rounded to the
// type of q and probabilities to that of v (the yardstick). The result passes if its largest error
// against the reference is at most twice the yardstick's, plus 1e-5 of the largest reference value,
// for out and lse each. Rows without keys must be exactly 0 and -inf; NaN must be where the
// reference has NaN and nowhere else.
//
// All rows are compared if that costs at most about 2^31 multiplications; otherwise rows spread
// over batch elements, heads and tiles are: half of them first or last rows of tiles.
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

/// `max_rows` bounds the rows compared; 0: as described above. `softmax_scale` as in
/// AttentionOptions. Failure: unsupported (memory).
Outcome<AttentionCheck> check_attention(const BlockMask& mask, const AttentionPlan& plan,
                                        const AttentionTensors& tensors, float softmax_scale,
                                        std::int64_t max_rows, int num_threads, Progress& progress);

/// "  check  4,096 of 65,536 rows: max abs error out 1.2e-07 (bound ..), lse .."
std::string to_text(const AttentionCheck& check);
/// Why it is not right, one sentence for each tensor.
std::string complaint(const AttentionCheck& check);
Json to_json(const AttentionCheck& check);

}  // namespace fdma::maskc
