// Masks whose patterns lie in long runs, for tests of what does not visit every tile row.
#pragma once

#include <random>

#include "fdma/formats/segment_mask.hpp"

namespace fdma::testing {

/// Returns a random one: up to 200 x 200 tiles, one pattern of up to 5 x 400 tiles whose segments
/// have borders that move or stand, and full tiles that reach past the last row and key.
SegmentMask long_pattern_mask(std::mt19937& rng);

}  // namespace fdma::testing
