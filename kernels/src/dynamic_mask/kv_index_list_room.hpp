// Capacities of the kv index lists of a learned selection, before any score is known.
// plan_selection uses it.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/formats/column_intervals.hpp"

namespace fdma::dynamic_mask {

/// The keys that a mask M shows to a tile row, and how many it may hold once w keys of each query
/// are selected.
struct TileRoom {
  std::int64_t most_visible = 0;  ///< keys that one of its queries sees
  std::int64_t num_entries = 0;   ///< most keys that the selection keeps for some query of the tile
  Interval keys{0, 0};            ///< from the first to past the last key that some query sees
};

/// The capacity of every tile row of `block_q` queries of M, which is of the one-interval class
/// (one_interval.hpp): a selected key was selected from the first query on that sees it. A tile
/// therefore holds the keys of its first query, at most w, and at most w of the keys that appear
/// with each later query.
///
/// Example     causal, w = 2048, tiles of 128: 128, 256, .., 2048 and then 2048 + 127 entries
/// Cost        O(keys + queries)
std::vector<TileRoom> tile_rooms(const ColumnIntervals& among, std::int64_t w,
                                 std::int64_t block_q);

}  // namespace fdma::dynamic_mask
