// The order in which deterministic backward calls take their units and add up dQ.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/formats/result.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// A unit is the items of a group of query heads for one key tile: what one block computes without
/// a break. A visit is one of its tiles: of a query head and a query tile.
///
/// Shapes      units [num_items / group_size], unit u is items [u * group_size, ..); first_visits:
///             of each entry of units, its first entry of ranks; ranks [visits]: how many entries
///             of units before this one visit the same query tile of the same head
/// Invariants  a unit waits for units before it in `units` only, so that blocks that take units in
///             this order never wait for each other in a circle, however few they are
struct VisitOrder {
  std::vector<std::int32_t> units;
  std::vector<std::int32_t> first_visits;
  std::vector<std::int32_t> ranks;
};

/// The order for a backward plan of items, run by `num_workers` blocks: units of a few KV heads lie
/// side by side, of these the last key tiles first.
///
/// Errors  unsupported: 2^31 visits or more
/// Cost    O(units log units + visits); 4 bytes a visit
Result<VisitOrder> visit_order(const AttentionPlan& plan, int num_workers);

}  // namespace fdma
