// --dump segments: a compiled mask as stable text.
#pragma once

#include <string>

#include "fdma/formats/block_mask.hpp"

namespace fdma::maskc {

/// One line per run and segment of each group, a summary of the arrays below.
///
/// Example     segments 256 x 256, blocks 128 x 128, 1 group
///             group 0: (0,0)
///               run rows 0: bitmap 0 tiles [0, 1)
///               run rows 1: full tiles [0, 1); bitmap 0 tiles [1, 2)
///               1 bitmap
/// `mask` is of format segment.
std::string dump_segments(const BlockMask& mask);

}  // namespace fdma::maskc
