// Masks whose tiles repeat, with patterns and without, for tests of plans and attention.
#pragma once

#include <cstdint>
#include <random>

#include "backend/mask_cases.hpp"

namespace fdma::testing {

/// The mask `causal & k % period < live` of num_tiles * block tokens: in each tile row a pattern
/// that grows by one tile a row, and a pattern of the tiles of the diagonal.
SegmentMask causal_periodic(std::int64_t num_tiles, std::int32_t block, std::int64_t period,
                            std::int64_t live);
MaskCase causal_periodic_case(std::int64_t num_tiles, std::int32_t block, std::int64_t period,
                              std::int64_t live);

/// The mask `q - window < k & k <= q & (q - k) % period < live` of num_tiles * block tokens. Its
/// pattern is skewed, and both ends of it move. The window is a multiple of the block.
MaskCase window_periodic_case(std::int64_t num_tiles, std::int32_t block, std::int64_t window,
                              std::int64_t period, std::int64_t live);

/// One random mask with patterns (random_pattern_case).
MaskCase random_pattern_mask(std::mt19937& rng);

/// The same cells in the canonical form, without patterns.
MaskCase written_out(const MaskCase& each);

}  // namespace fdma::testing
