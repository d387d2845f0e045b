// Defines ZOH scores and their gradients in float64.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/select/zoh_scores.hpp"

namespace fdma::select_test {

/// One call: values [batch, kv_len, heads, dim], dt_proj [heads, heads * dim] (or [heads, dim]),
/// a_coef [heads], dscores [batch, heads, kv_len], row-major.
struct ZohProblem {
  ZohShape shape;
  ZohMode mode = ZohMode::exp;
  std::vector<double> values, dt_proj, a_coef, dscores;

  /// Terms of a dt.
  std::int64_t num_terms() const {
    return shape.is_per_head ? shape.head_dim : shape.num_heads_kv * shape.head_dim;
  }
  /// Where the terms of (b, k, h) begin in `values`.
  std::int64_t first_term(std::int64_t b, std::int64_t k, std::int64_t h) const {
    return ((b * shape.kv_len + k) * shape.num_heads_kv + (shape.is_per_head ? h : 0)) *
           shape.head_dim;
  }
};

/// Returns the sum of dscore * score, whose gradients zoh_gradients returns.
double zoh_loss(const ZohProblem& problem);

/// A gradient, and the largest error of it in float32 (zoh_backward.hpp).
struct Bounded {
  std::vector<double> exact, error;
};
struct ZohGradients {
  Bounded dvalues, ddt_proj, da_coef;
};
ZohGradients zoh_gradients(const ZohProblem& problem);

/// Returns what rounding `exact` to a dtype may add to its error; infinite if it overflows.
double rounding_error(double exact, DType dtype);

}  // namespace fdma::select_test
