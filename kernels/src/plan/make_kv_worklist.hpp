// Backward plans for sm90 as lists of keys by lifetime (plan/kv_worklist.hpp), in place of the tiles of
// the transposed mask.
#pragma once

#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// Sets plan.key_lists and the counts, if that is asked for (options.columns = reorder) or, where
/// it is left to the planner, predicted to pay; says whether it did. `mask` is the mask itself, not
/// transposed. Never where query heads of a KV head have different masks.
///
/// Errors  unsupported: more than 2^31 - 1 listed keys, items or sums
Result<bool> plan_key_lists(const BlockMask& mask, const PlanOptions& options, AttentionPlan& plan);

/// What the items of plan.key_lists visit, for all heads.
PlanCounts count_key_lists(const AttentionPlan& plan);

/// Tiles of the segments of queries that plan.key_lists are cut at.
std::int32_t listed_segment(const AttentionPlan& plan);

/// internal, naming the first entry of plan.key_lists that breaks an invariant.
Result<void> validate_key_lists(const AttentionPlan& plan);

}  // namespace fdma
