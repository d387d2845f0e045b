// The groups of a mask in a plan: what is gathered, what is reordered, what stays.
#pragma once

#include <vector>

#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/plan.hpp"
#include "plan/group.hpp"

namespace fdma {

/// The group of the mask of (b, h), counted as the plan's shape does.
std::int32_t group_of(const BlockMask& mask, std::int64_t b, std::int64_t h);

/// Appends the groups of `mask`, whose rows are those of `plan`, by options.columns, and sets the
/// key orders of its KV heads.
///
/// Errors  as append_group
Result<std::vector<PlannedGroup>> plan_groups(const BlockMask& mask, const PlanOptions& options,
                                              AttentionPlan& plan);

}  // namespace fdma
