// Gradients of Dynamic Mask Attention on a backend fixture, against float64.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "backend/backend_dynamic_mask_case.hpp"

namespace fdma::testing {

/// A forward call that has been made and checked, and what it was made of.
struct GradientCall {
  const BackendDynamicMaskCase& test_case;
  const DynamicMaskAttention& object;  ///< with has_gradients
  const MaskCase& mask;                ///< what was selected
  CaseHeads heads;
  CaseChoice choice;
  const std::vector<float>& scores;   ///< [batch, heads_kv, kv_len]
  const std::vector<Interval>& kept;  ///< the same
  std::int64_t kv_len = 0;
  std::function<void(BackendAttentionCase&)> set_bias = {};  ///< to the scores
  std::int64_t columns = 0;                                  ///< of dt_proj
  std::vector<float> dt_proj = {}, a_coef = {};
};

/// With the scores given: all gradients are within the bounds of float64, those of keys that no
/// query keeps exactly 0; deterministic calls are so as well and give the same bits, whatever
/// memory held before; on the host also where the call selects by itself. Where the case makes its
/// scores, they are made in another call, which adds what zoh_scores_backward makes
/// of the same gradients of scores. Empty, or what is wrong.
std::string check_dynamic_mask_gradients(BackendFixture& fixture, const GradientCall& call);

}  // namespace fdma::testing
