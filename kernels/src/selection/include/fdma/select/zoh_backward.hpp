// Gradients of ZOH scores with respect to values, dt_proj and a_coef.
#pragma once

#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"
#include "fdma/select/zoh_scores.hpp"

namespace fdma {

/// The tensors of one call: those of zoh_scores, the gradient of its scores, and the gradients to
/// compute. A gradient that is not wanted has data = nullptr.
///
/// Shapes      values, dt_proj, a_coef: those of the forward call
///             dscores        [batch, heads_kv, kv_len] float32, any strides
///             dvalues        shape of values, that dtype or float32, last stride 1
///             ddt_proj       shape of dt_proj, that dtype or float32, any strides
///             da_coef        shape of a_coef, that dtype or float32, any strides
///             other_dvalues  shape of values, that dtype or float32, last stride 1, or data =
///                            nullptr: the gradient of values through another path (attention),
///                            which is added to dvalues in float32 before rounding
/// Written     every element of the gradients that are wanted, whatever dscores are; where the
///             dscore of a key is 0, dvalues is 0 or other_dvalues
/// Invariants  outputs overlap no other tensor, except that other_dvalues may be dvalues itself
///             (the same data, dtype and strides); keys whose dscores are 0 are then left as they
///             are
struct ZohBackwardTensors {
  TensorView values;
  TensorView dt_proj;
  TensorView a_coef;
  TensorView dscores;
  MutableTensorView dvalues = {};
  MutableTensorView ddt_proj = {};
  MutableTensorView da_coef = {};
  TensorView other_dvalues = {};
};

/// Checks that the tensors of one call fit together, on any device, and returns its extents.
///
/// Errors      those of zoh_shape; shape_mismatch: extents; invalid_argument: null data, addresses
///             or strides, other_dvalues without dvalues; unsupported: dtypes, tensors on another
///             device than values
Result<ZohShape> zoh_backward_shape(const ZohBackwardTensors& tensors);

/// The gradients of zoh_scores. With s = softplus(dt) and p the derivative of the loss with respect
/// to A s, which is dscore (log) or dscore * score (exp):
///   ddt = p A sigmoid(dt)        da_coef = sum of p s over batch elements and keys
///   dvalues = ddt dt_proj        ddt_proj = sum of ddt values over batch elements and keys
///
/// Example     values 0, A = -1, dt_proj 1, dscore 1: dt 0, sigmoid 1/2; dvalues -1/2 (log), -1/4
///             (exp); ddt_proj 0; da_coef 0.693147 (log), 0.346574 (exp)
/// Zeros       a score whose dscore is 0 adds nothing, whatever its values are: NaN in a key that
///             no query keeps spreads nowhere
///             an exp score of 0 (dt A is -inf, or too small for float32) adds nothing, which is
///             the limit
///             keys whose ddt are 0 (in all heads, with a wide dt_proj) add nothing to dvalues and
///             ddt_proj, so that dt = -inf has the gradient 0 of its limit
///             all other infinities and NaN follow products and sums: 0 * inf is NaN
/// Accuracy    products and sums are float32; softplus and sigmoid have no cancellation
///             ddt and p s have the error of a score times |dscore|; relative to themselves it is
///             |A| times the error of dt (zoh_scores.hpp) and a few units in the last place
///             the sum of n keys adds at most (n / 4 + 64) u times the sum of the magnitudes,
///             u = 2^-24; rounding to 16 bits comes last
/// Errors      those of zoh_backward_shape; num_threads < 0 or a device that is not the host. All
///             are checked before anything is written
/// Cost        reads `values` of keys with a dscore other than 0 once, writes dvalues once
///             6 head_dim FLOP a score (6 heads_kv head_dim for the wide dt_proj), three times
///             those of the scores
///             memory for up to 64 sums of ddt_proj in float32
///             the same bits for any number of threads
Result<void> zoh_scores_backward(const ZohBackwardTensors& tensors, const ZohOptions& options = {});

}  // namespace fdma
