// Backward plans for sm90 as kv worklists, in which keys are sorted by live range (plan/kv_worklist.hpp),
// in place of the tiles of the transposed mask.
#pragma once

#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// Sets plan.kv_worklist and the counts if options.columns = reorder asks for it or, where the
/// planner decides, if it is predicted to pay; returns whether it did. `mask` is the mask itself,
/// not the transposed one. It never does where query heads of a KV head have different masks.
///
/// Errors  unsupported: more than 2^31 - 1 worklist entries, work tiles or sums
Result<bool> plan_kv_worklist(const BlockMask& mask, const PlanOptions& options,
                              AttentionPlan& plan);

/// The tiles that the work tiles of plan.kv_worklist visit, for all heads.
PlanCounts count_kv_worklist(const AttentionPlan& plan);

/// Length in tiles of the segments of queries at which plan.kv_worklist are cut.
std::int32_t worklist_segment(const AttentionPlan& plan);

/// Returns an internal error that names the first entry of plan.kv_worklist that breaks an
/// invariant.
Result<void> validate_kv_worklist(const AttentionPlan& plan);

}  // namespace fdma
