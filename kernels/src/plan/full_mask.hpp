// The mask that allows every pair.
#pragma once

#include "fdma/formats/attention_shape.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma {

/// A mask that allows every pair of `shape`, as segments in `tile`. It is stored once where lengths
/// are uniform.
BlockMask full_mask(const AttentionShape& shape, BlockShape tile);

}  // namespace fdma
