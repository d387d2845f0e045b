// Whole calls of Dynamic Mask Attention on a backend fixture, against float64.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "backend/backend_attention_case.hpp"
#include "backend/backend_fixture.hpp"
#include "fdma/kernels/dynamic_mask_attention.hpp"

namespace fdma::testing {

/// How scores change from key to key.
enum class ScoreOrder : std::uint8_t { random, rising, drifting, clustered, with_zeros };

struct BackendDynamicMaskCase {
  std::string name;
  std::vector<std::pair<std::int64_t, std::int64_t>> lengths;  ///< q_len, kv_len of each element
  std::int32_t heads_q = 1;
  std::int32_t heads_kv = 1;
  std::int64_t w = 1;
  ScoreBias bias = ScoreBias::exp;
  ScoreOrder order = ScoreOrder::random;
  bool are_scores_made = false;  ///< computed from v, dt_proj and a_coef; else given
  bool is_dt_proj_wide = false;
  bool drops_zero_scores = false;
  std::int64_t document = 0;  ///< not 0: M is documents of that many tokens, not causal; 0: causal
  SelectionReading reading = SelectionReading::automatic;
  CaseChoice choice = {};
};

/// Runs the case twice, which must give the same bits. kept must be what select_topk keeps of the
/// scores. out and lse must be within the bounds of TensorError against float64. Says what is
/// wrong; empty if nothing is.
std::string run_dynamic_mask(BackendFixture& fixture, const BackendDynamicMaskCase& test_case);

/// Calls of every kind, for any backend.
std::vector<BackendDynamicMaskCase> dynamic_mask_cases();

}  // namespace fdma::testing
