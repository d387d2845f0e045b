// A kv permutation that sorts keys by live range, so that keys visible to the same queries are
// adjacent.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/formats/segment_mask.hpp"

namespace fdma {

/// A mask over permuted keys.
struct PermutedMask {
  std::vector<std::int32_t> keys;  ///< the keys that some query sees, in their new order
  SegmentMask mask;                ///< its key i is keys[i]
};

/// The mask with keys sorted by the last query that sees them and, inside blocks of some tiles, by
/// the first. Keys that no query sees are left out. In tiles of mask.block.
///
/// Example     eviction: at 8,192 tokens half of the keys are live on average. Every tile has some
///             of them, but in the new order half of the tiles are full or nearly so and the others
///             are empty
/// Cost        O(keys log keys + intervals + tiles); the mask must have a column table
PermutedMask permute_by_live_range(const SegmentMask& mask);

}  // namespace fdma
