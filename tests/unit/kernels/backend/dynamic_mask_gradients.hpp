// Gradients of Dynamic Mask Attention on a backend fixture, against float64.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend_dynamic_mask_case.hpp"

namespace fdma::testing {

/// A forward call that has been made and checked, with its inputs.
struct GradientCall {
  const BackendDynamicMaskCase& test_case;
  const DynamicMaskAttention& object;  ///< with has_gradients
  const MaskCase& mask;                ///< the selected cells
  CaseHeads heads;
  CaseChoice choice;
  const std::vector<float>& scores;   ///< [batch, heads_kv, kv_len]
  const std::vector<Interval>& kept;  ///< [batch, heads_kv, kv_len]
  std::int64_t kv_len = 0;
  std::function<void(BackendAttentionCase&)> set_bias = {};  ///< sets the bias to the scores
  std::int64_t columns = 0;                                  ///< the columns of dt_proj
  std::vector<float> dt_proj = {}, a_coef = {};
};

/// Checks backward calls; says what is wrong, and is empty if nothing is.
///
/// Calls that are given the scores: all gradients must be within the bounds of TensorError against
/// float64, and those of keys that no query keeps must be exactly 0. The same holds for
/// deterministic calls, which must also give the same bits whatever the memory held before. On the
/// host it also holds for calls that select by themselves.
///
/// If the case computes its scores, another call computes them. It must add the result of
/// zoh_scores_backward for the same gradients of scores.
std::string check_dynamic_mask_gradients(BackendFixture& fixture, const GradientCall& call);

}  // namespace fdma::testing
