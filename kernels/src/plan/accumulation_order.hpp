// The order in which deterministic backward calls take their tile groups and accumulate dQ.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// A tile group is what one block computes without a break: the work tiles of a group of query
/// heads for one key tile, or a work tile of a kv worklist. A visit is one of the tile group's
/// tiles. It belongs to a query head and a query tile; over kv worklists to a KV head and a query
/// tile, for all its query heads alike.
///
/// Shapes      tile_groups [num_work_tiles / group_size], tile group u is work tiles
///             [u * group_size, ..), or [work tiles of the kv worklist]; first_positions: of each
///             entry of tile_groups, its first entry of positions; positions [visits]: how many
///             entries of tile_groups before this one visit the same query tile of the same head
/// Invariants  a tile group waits only for tile groups before it in `tile_groups`, so blocks that
///             take tile groups in this
///             order never wait for each other in a cycle, however few they are
struct AccumulationOrder {
  std::vector<std::int32_t> tile_groups;
  std::vector<std::int32_t> first_positions;
  std::vector<std::int32_t> positions;
  bool walks_down = false;  ///< work tiles are walked from the last query tile to the first
};

/// The order for a backward plan of segments or a kv worklist, run by `num_workers` blocks.
/// Tile groups of a few KV heads are interleaved. Among these the last key tiles come first, or the
/// first key tiles if work tiles are walked down. For kv worklists it goes segment by segment, with
/// the first tile group of each head first.
///
/// Errors  unsupported: 2^31 visits or more
/// Cost    O(tile groups log tile groups + visits); 4 bytes a visit
Result<AccumulationOrder> accumulation_order(const PlanHeader& header, const SegmentPlan& plan,
                                             int num_workers);
Result<AccumulationOrder> accumulation_order(const PlanHeader& header, const KvWorklist& lists,
                                             int num_workers);

}  // namespace fdma
