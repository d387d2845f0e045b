// Plans all groups of a mask: what goes to kv index lists, what is permuted, what stays as tiles.
#pragma once

#include <vector>

#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/plan.hpp"
#include "plan/group.hpp"

namespace fdma {

/// The group of the mask of (b, h), where b and h count as in the plan's shape.
std::int32_t group_of(const BlockMask& mask, std::int64_t b, std::int64_t h);

/// Appends the groups of `mask`, whose rows are those of the header, according to options.columns,
/// and sets the kv permutations of its KV heads and how many keys they move (counts.moved_keys).
///
/// Errors  as append_group
Result<std::vector<PlannedGroup>> plan_groups(const BlockMask& mask, const PlanOptions& options,
                                              PlanHeader& header, SegmentPlan& plan);

}  // namespace fdma
