// What a backward plan over worklist keys computes, by the documented meaning of its lists.
#pragma once

#include <string>

#include "backend/mask_cases.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma::testing {

/// The first thing wrong with `plan`, one of kv worklists, as a plan of `expected`; empty if
/// nothing is: its work tiles hold every cell of every KV head once and no other, the same for all
/// of its query heads; cells of full tiles are true; work tiles come by KV head and segment, in it
/// longest first; sums are those of keys that several work tiles have, or entries.
std::string check_worklist_plan(const AttentionPlan& plan, const MaskCase& expected);

}  // namespace fdma::testing
