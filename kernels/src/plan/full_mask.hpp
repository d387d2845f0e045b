// The mask that allows everything.
#pragma once

#include "fdma/formats/attention_shape.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma {

/// Every pair of `shape` allowed, as segments in `tile`; stored once where lengths are uniform.
BlockMask full_mask(const AttentionShape& shape, BlockShape tile);

}  // namespace fdma
