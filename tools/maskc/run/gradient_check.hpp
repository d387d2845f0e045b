// Are the gradients that attention_backward computed right? Compared with their formulas in
// float64.
//
// Method. With P = exp(logits - lse) and D = rowsum(P * dP), dP = dout v^T,
//
//   dv = P^T dout    dS = P * (dP - D)    dq = scale dS k    dk = scale dS^T q    dkey_bias = sum
//   dS
//
// lse and D of every query by definition where that, for all queries and keys, costs at most about
// 2^31 multiplications. Otherwise rows of dq, and keys of dk, dv and dkey_bias, are spread as
// attention_check spreads rows, and lse and out of the forward call, which has a check of its own,
// stand for theirs (D = rowsum(dout * out)): a key has as many lse and D as queries see it, and
// each would be a whole row. The yardstick is the explicit computation in the tensors' own types:
// out rounded to its type, P and dS to that of v and q where they enter a product, sums in float32.
// Keys that a query sees come from the rows of the mask, queries that see a key from those of the
// transposed mask, neither from a plan. Rows without keys and keys that nobody sees are exactly 0.
#pragma once

#include <cstdint>
#include <string>

#include "cli/json_output.hpp"
#include "cli/outcome.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/attention_backward.hpp"
#include "run/tensor_error.hpp"

namespace fdma::maskc {

class Progress;

struct GradientCheck {
  std::int64_t num_rows = 0;    ///< of dq, compared
  std::int64_t total_rows = 0;  ///< over batch elements and heads
  std::int64_t num_keys = 0;    ///< of dk, dv and dkey_bias
  std::int64_t total_keys = 0;
  bool has_key_bias = false;  ///< dkey_bias is compared
  TensorError dq, dk, dv, dkey_bias;

  bool is_right() const {
    return dq.is_right() && dk.is_right() && dv.is_right() && dkey_bias.is_right();
  }
};

/// `plan`: of the backward call. `max_rows` bounds the rows and the keys compared; 0: as described
/// above. dkey_bias is compared with a D by definition only, or in float32: out rounded to 16 bits
/// is too far from it. Failure: unsupported (memory).
Outcome<GradientCheck> check_gradients(const BlockMask& mask, const AttentionPlan& plan,
                                       const BackwardTensors& tensors, float softmax_scale,
                                       std::int64_t max_rows, int num_threads, Progress& progress);

/// "all 548 queries and 274 keys against float64: max abs error dq 1.2e-07 (bound ..), dk .."
std::string to_text(const GradientCheck& check);
/// Why it is not right, one sentence for each tensor.
std::string complaint(const GradientCheck& check);
Json to_json(const GradientCheck& check);

}  // namespace fdma::maskc
