// Gradients of ZOH scores: from those of the scores to those of values, dt_proj and a_coef.
#pragma once

#include "fdma/base/mutable_tensor_view.hpp"
#include "fdma/base/result.hpp"
#include "fdma/select/zoh_scores.hpp"

namespace fdma {

/// The tensors of one call: those of zoh_scores, the gradient of its scores, and gradients, each
/// left out with data = nullptr.
///
/// Shapes      values, dt_proj, a_coef: of the forward call; dscores float32 [batch, heads_kv,
///             kv_len], any strides; dvalues, ddt_proj, da_coef: shapes of values, dt_proj and
///             a_coef, each of that input's dtype or float32, any strides but a last one of 1 for
///             dvalues. other_dvalues: the gradient of values that comes another way (through
///             attention), which dvalues then holds as well, added in float32 before it is rounded;
///             shape of values, their dtype or float32, last stride 1
/// Written     every element of the gradients that are wanted, whatever dscores are; 0 for keys
///             whose dscore is 0, or other_dvalues
/// Invariants  outputs overlap no other tensor, but that other_dvalues may be dvalues itself (the
///             same data, dtype and strides): keys whose dscores are 0 are then left as they are
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

/// The extents of one call, once its tensors are known to fit together, on any device.
///
/// Errors  those of zoh_shape; shape_mismatch: extents; invalid_argument: null data, addresses or
///         strides, other_dvalues without dvalues; unsupported: dtypes, tensors on another device
///         than values
Result<ZohShape> zoh_backward_shape(const ZohBackwardTensors& tensors);

/// The gradients of zoh_scores. With s = softplus(dt) and p the derivative of the loss with respect
/// to A s, which is dscore (log) or dscore * score (exp):
///   ddt = p A sigmoid(dt)                    da_coef = sum of p s over batch elements and keys
///   dvalues = ddt dt_proj                    ddt_proj = sum of ddt values over them
///
/// Example     values 0, A = -1, dt_proj 1, dscore 1: dt 0, sigmoid 1/2; dvalues -1/2 (log), -1/4
///             (exp); ddt_proj 0; da_coef 0.693147 (log), 0.346574 (exp)
/// Zeros       a score whose dscore is 0 adds nothing, whatever its values are: NaN in a key that
///             no query keeps stays where it is. So does an exp score that is 0 (dt A is -inf, or
///             too small for float32), which is the limit. Keys whose ddt are 0 (in all heads,
///             with a wide dt_proj) add nothing to dvalues and ddt_proj, so that dt = -inf has the
///             gradient 0 of its limit. Otherwise infinities and NaN go through, as products and
///             sums have them: 0 * inf is NaN
/// Accuracy    products and sums in float32, softplus and sigmoid without cancellation: ddt and p s
///             have the error of a score times |dscore|, and as much relative to themselves as
///             |A| times the error of dt (zoh_scores.hpp) and a few units in the last place. The
///             sum of n keys adds at most (n / 4 + 64) u times the sum of the magnitudes, u =
///             2^-24; rounding to 16 bits comes last
/// Errors      those of zoh_backward_shape; num_threads < 0 or a device that is not the host.
///             Checked before anything is written
/// Cost        reads `values` of keys with a dscore that is not 0 once, writes dvalues once; 6
///             head_dim FLOP a score (6 heads_kv head_dim for the wide dt_proj), three times those
///             of the scores. The same bits for any number of threads: memory for up to 64 sums of
///             ddt_proj in float32
Result<void> zoh_scores_backward(const ZohBackwardTensors& tensors, const ZohOptions& options = {});

}  // namespace fdma
