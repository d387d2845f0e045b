// The order in which deterministic backward calls take their units and accumulate dQ.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// A unit is what one block computes without a break: the items of a group of query heads for one
/// key tile, or an item of a kv worklist. A visit is one of the unit's tiles. It belongs to a query
/// head and a query tile; over kv worklists to a KV head and a query tile, for all its query heads
/// alike.
///
/// Shapes      units [num_items / group_size], unit u is items [u * group_size, ..), or
///             [kv_worklist.items]; first_positions: of each entry of units, its first entry of
///             positions; positions [visits]: how many entries of units before this one visit the
///             same query tile of the same head
/// Invariants  a unit waits only for units before it in `units`, so blocks that take units in this
///             order never wait for each other in a cycle, however few they are
struct AccumulationOrder {
  std::vector<std::int32_t> units;
  std::vector<std::int32_t> first_positions;
  std::vector<std::int32_t> positions;
  bool walks_down = false;  ///< items are walked from the last query tile to the first
};

/// The order for a backward plan with items or a kv worklist, run by `num_workers` blocks. Units of
/// a few KV heads are interleaved. Among these the last key tiles come first, or the first key
/// tiles if items are walked down. For kv worklists it goes segment by segment, with the first unit
/// of each head first.
///
/// Errors  unsupported: 2^31 visits or more
/// Cost    O(units log units + visits); 4 bytes a visit
Result<AccumulationOrder> accumulation_order(const AttentionPlan& plan, int num_workers);

}  // namespace fdma
