// Compares the gradients of attention_backward with their formulas in float64.
//
// Method. With the weights P = exp(logits - lse) of keys and P_s of the sink, which add up to 1,
// dropout's factors K, dP = K * dout v^T and D = rowsum(P * dP):
//
//   dv = (P * K)^T dout    dS = P * (dP - D)    dq = scale dS k    dk = scale dS^T q
//   dkey_bias, dbias, drelative: sums of dS over the pairs that an element is added to
//   dsinks = sum of -P_s D
//
// With a softcap, dS in dq and dk is multiplied by the slope of the logit.
//
// If everything costs at most about 2^31 multiplications, lse and D of every query are computed by
// definition, and all queries and keys are compared. Otherwise rows of dq, and keys of dk, dv and
// dkey_bias, are selected as attention_check selects rows. The check then takes lse and out from the
// forward call, which has a check of its own, and D = rowsum(dout * out). A key needs lse and D of
// every query that sees it, and each of them would cost a whole row. dbias, drelative and dsinks are
// compared only where everything is, since most of their elements are sums over many rows.
//
// The yardstick is the explicit computation in the tensors' own types. It rounds out to its type, and
// P and dS to the types of v and q where they enter a product; it has fp32 accumulators. The keys that
// a query sees come from the rows of the mask. The queries that see a key come from the rows of the
// transposed mask. Neither comes from a plan. The gradients of rows without keys, and of keys that no
// query sees, must be exactly 0.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "cli/json_output.hpp"
#include "cli/outcome.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/attention_backward.hpp"
#include "run/score_input.hpp"
#include "run/tensor_error.hpp"

namespace fdma::maskc {

class Progress;

struct GradientCheck {
  std::int64_t num_rows = 0;    ///< rows of dq that are compared
  std::int64_t total_rows = 0;  ///< over batch elements and heads
  std::int64_t num_keys = 0;    ///< keys of dk, dv and dkey_bias that are compared
  std::int64_t total_keys = 0;
  TensorError dq, dk, dv;
  OfScoreTensors<bool> compares{};  ///< whose gradients are compared
  OfScoreTensors<TensorError> score;

  bool is_right() const {
    return dq.is_right() && dk.is_right() && dv.is_right() &&
           std::ranges::all_of(score, &TensorError::is_right);
  }
};

/// `plan` is that of the backward call and `options` those of the forward call. `max_rows` bounds the rows and the keys compared; 0 means
/// the limit described above. dkey_bias is compared only if D is computed by definition or out is
/// float32: an out rounded to 16 bits gives a D that is too far off. Failure: unsupported
/// (memory).
Outcome<GradientCheck> check_gradients(const BlockMask& mask, const AttentionPlan& plan,
                                       const BackwardTensors& tensors,
                                       const AttentionOptions& options, std::int64_t max_rows,
                                       Progress& progress);

/// "all 548 queries and 274 keys against float64: max abs error dq 1.2e-07 (bound ..), dk .."
std::string to_text(const GradientCheck& check);
/// The reason why the gradients are wrong, one sentence for each tensor.
std::string complaint(const GradientCheck& check);
Json to_json(const GradientCheck& check);

}  // namespace fdma::maskc
