// One group of a mask in a plan: its tile rows as segments and payloads.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/formats/segment_mask.hpp"
#include "fdma/kernels/plan.hpp"
#include "plan/kv_permutation.hpp"
#include "plan/regions.hpp"

namespace fdma {

/// Where the segments of one tile row of one group are.
struct PlannedRow {
  std::int32_t first_segment = 0;
  std::int32_t num_segments = 0;
  std::int32_t step = 0;
  std::int32_t num_tiles = 0;
  std::int32_t num_entries = 0;
  PlanCounts counts;
};

/// A group and how its tile rows are computed.
struct GroupChoice {
  SegmentMask mask;
  Regions regions;  ///< of `mask`
  // Where keys are reordered:
  OrderedMask ordered;
  Regions ordered_regions;       ///< of ordered.mask
  std::vector<bool> is_ordered;  ///< tile rows that are computed in the new order; else empty
  double gain = 0;               ///< full tiles that the order saves, of all tile rows once

  bool has_order() const { return !is_ordered.empty(); }
  /// Tile rows are computed in the order of the tensors after all.
  void drop_order() { is_ordered.clear(); }
};

/// The rows of a group in a plan.
struct PlannedGroup {
  std::vector<PlannedRow> rows;
  std::int32_t order = -1;  ///< index into plan.key_orders
};

/// Appends the segments, payloads, lists and the key order of a group to `plan`. Tile rows that
/// move in step share their segments, payloads are those that are used.
///
/// Errors  unsupported for more than 2^31 - 1 segments
Result<PlannedGroup> append_group(const GroupChoice& group, AttentionPlan& plan);

}  // namespace fdma
