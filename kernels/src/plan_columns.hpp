// Column intervals in a plan: which tile rows get a gather list, and the lists.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/formats/segment_mask.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// What make_plan does with the column segments of one tile row.
struct ColumnRow {
  std::int64_t num_entries = 0;   ///< live keys of its column tiles, once per row interval
  std::int32_t gather_list = -1;  ///< index into plan.gather_lists, or -1: tiles are scanned
};

/// Decides for each tile row of `mask` (which has a column table) and appends its gather lists to
/// `plan`.
///
/// Cost: O(keys + intervals + tiles / 64), and for rows with a list the (interval, tile row) pairs
/// of the mask.
Result<std::vector<ColumnRow>> plan_columns(const SegmentMask& mask, ColumnMode mode,
                                            AttentionPlan& plan);

}  // namespace fdma
