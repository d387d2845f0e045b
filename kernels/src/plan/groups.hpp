// Plans all groups of a mask: what goes to kv index lists, what is permuted, what stays as tiles.
#pragma once

#include <vector>

#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/cost_model.hpp"
#include "fdma/kernels/plan.hpp"
#include "plan/group.hpp"

namespace fdma {

/// The group of the mask of (b, h), where b and h count as in the plan's shape.
std::int32_t group_of(const BlockMask& mask, std::int64_t b, std::int64_t h);

/// Appends the groups of `mask`, whose rows are those of the header, according to options.columns,
/// and sets the kv permutations of its KV heads how many keys they move
/// (counts.moved_keys), and the decision of the report. `num_workers` wait while keys are moved.
///
/// Errors  as append_group
Result<std::vector<PlannedGroup>> plan_groups(const BlockMask& mask, const PlanOptions& options,
                                              const CostModel& costs, std::int32_t num_workers,
                                              PlanHeader& header, SegmentPlan& plan);

}  // namespace fdma
