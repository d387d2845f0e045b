// Keys in the order of their lifetimes: those that are visible together lie together.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/formats/segment_mask.hpp"

namespace fdma {

/// A mask over keys in another order.
struct OrderedMask {
  std::vector<std::int32_t> keys;  ///< the keys that are ever seen, in their new order
  SegmentMask mask;                ///< its key i is keys[i]
};

/// The mask with keys sorted by the last query that sees them, and, inside blocks of some tiles, by
/// the first; keys that nobody sees are left out. In tiles of mask.block.
///
/// Example     eviction: at 8,192 tokens half of the keys live on average; every tile has some of
///             them, but in the new order half of the tiles are full or nearly so, the others empty
/// Cost        O(keys log keys + intervals + tiles); the mask must have a column table
OrderedMask order_by_lifetime(const SegmentMask& mask);

}  // namespace fdma
