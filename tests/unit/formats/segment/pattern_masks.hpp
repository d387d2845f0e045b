// Random masks with patterns, for tests.
#pragma once

#include <random>

#include "../cell_oracle.hpp"
#include "fdma/formats/segment_mask.hpp"

namespace fdma::testing {

/// A mask with patterns, and its cells by the definition of TilePattern.
struct PatternCase {
  SegmentMask mask;
  Cells cells;
};

/// Returns a random one: up to three patterns of up to 5 x 6 tiles, in runs that move or not, beside
/// full and bitmap segments; lengths may be ragged. Sides of blocks are at most 64.
PatternCase random_pattern_case(std::mt19937& rng);

/// Returns one of these lengths, in these blocks.
PatternCase random_pattern_case(std::mt19937& rng, std::int64_t q_len, std::int64_t kv_len,
                                BlockShape block);

}  // namespace fdma::testing
