// The cells that a backward plan with a kv worklist computes, by the documented meaning of its
// lists.
#pragma once

#include <string>

#include "backend/mask_cases.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma::testing {

/// Checks `plan`, which has a kv worklist, as a plan of `expected`. Says the first thing that is
/// wrong; empty if nothing is.
///
/// The work tiles must hold every true cell of every KV head once and no other cell, the same for
/// all of its query heads. They must be ordered by KV head, then by segment, and the longest first
/// in a segment. A key that several work tiles have must have a row of fp32 accumulators.
std::string check_worklist_plan(const AttentionPlan& plan, const MaskCase& expected);

}  // namespace fdma::testing
