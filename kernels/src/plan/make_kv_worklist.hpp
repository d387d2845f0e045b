// Backward plans for sm90 as kv worklists, in which keys are sorted by live range (plan/kv_worklist.hpp),
// in place of the tiles of the transposed mask.
#pragma once

#include <cstdint>
#include <optional>

#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/cost_model.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// The kv worklist of `mask` if options.columns = reorder asks for it or, where the planner
/// decides, if it is predicted to pay; otherwise nothing. `mask` is the mask itself, not the
/// transposed one. There is none where query heads of a KV head have different masks. The decision
/// goes into the report of the header, whose shape and number of workers are read.
///
/// Errors  unsupported: more than 2^31 - 1 worklist entries, work tiles or sums
Result<std::optional<KvWorklist>> make_kv_worklist(const BlockMask& mask,
                                                   const PlanOptions& options,
                                                   const CostModel& costs, PlanHeader& header);

/// The tiles that the work tiles of `lists` visit, for all heads.
PlanCounts count_kv_worklist(const AttentionShape& shape, const KvWorklist& lists);

/// Length in tiles of the segments of queries at which `lists` are cut.
std::int32_t worklist_segment(const AttentionShape& shape, const KvWorklist& lists);

}  // namespace fdma
