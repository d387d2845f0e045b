// Backward plans for sm90 as kv worklists, in which keys are sorted by live range (key_lists.hpp),
// in place of the tiles of the transposed mask.
#pragma once

#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// Sets plan.key_lists and the counts if options.columns = reorder asks for it or, where the
/// planner decides, if it is predicted to pay; returns whether it did. `mask` is the mask itself,
/// not the transposed one. It never does where query heads of a KV head have different masks.
///
/// Errors  unsupported: more than 2^31 - 1 listed keys, items or sums
Result<bool> plan_key_lists(const BlockMask& mask, const PlanOptions& options, AttentionPlan& plan);

/// The tiles that the items of plan.key_lists visit, for all heads.
PlanCounts count_key_lists(const AttentionPlan& plan);

/// Length in tiles of the segments of queries at which plan.key_lists are cut.
std::int32_t listed_segment(const AttentionPlan& plan);

/// Returns an internal error that names the first entry of plan.key_lists that breaks an invariant.
Result<void> validate_key_lists(const AttentionPlan& plan);

}  // namespace fdma
