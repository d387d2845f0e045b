// Appends one group of a mask to a plan: its tile rows as segments with their bitmaps, panels and
// tables.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/formats/segment_mask.hpp"
#include "fdma/kernels/plan.hpp"
#include "plan/kv_permutation.hpp"
#include "plan/regions.hpp"

namespace fdma {

/// The segments of one tile row of one group.
struct PlannedRow {
  std::int32_t first_segment = 0;
  std::int32_t num_segments = 0;
  std::int32_t step = 0;
  std::int32_t num_tiles = 0;
  std::int32_t num_entries = 0;
  PlanCounts counts;
};

/// A group and the choice of how its tile rows are computed.
struct GroupChoice {
  SegmentMask mask;
  Regions regions;  ///< of `mask`
  // Where keys are permuted:
  PermutedMask ordered;
  Regions permuted_regions;       ///< of ordered.mask
  std::vector<bool> is_permuted;  ///< tile rows that are computed in the new order; otherwise empty
  double scan_us = 0, list_us = 0;  ///< of all tile rows once: no lists, and lists where cheaper
  bool was_weighed = true;          ///< false: lists could not pay, and were not looked at
  double gain_us = 0;  ///< what the order saves a worker, with every tile row counted once

  bool has_permutation() const { return !is_permuted.empty(); }
  /// Makes all tile rows computed in the order of the tensors again.
  void drop_permutation() { is_permuted.clear(); }
};

/// The rows of a group in a plan.
struct PlannedGroup {
  std::vector<PlannedRow> rows;
  std::int32_t order = -1;  ///< index into plan.kv_permutations
};

/// Appends the segments, bitmaps, panels, tables, lists and the kv permutation of a group to
/// `plan`. Tile rows that differ by a constant step share their segments, and only used bitmaps,
/// panels and tables are appended.
///
/// Errors  unsupported for more than 2^31 - 1 segments
Result<PlannedGroup> append_group(const GroupChoice& group, const PlanHeader& header,
                                  SegmentPlan& plan);

}  // namespace fdma
