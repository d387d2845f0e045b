// A mask as text for a terminal.
#pragma once

#include <cstdint>
#include <string>

#include "fdma/formats/block_mask.hpp"

namespace fdma {

struct DrawOptions {
  int max_width = 80;   ///< columns of the drawing; larger masks are drawn in coarser cells
  int max_height = 40;  ///< lines
  bool unicode = true;  ///< shades (full block, medium shade, dot) instead of '#', '+', '.'
};

/// A picture of group `group` that tells full, partial and empty tiles apart, with a legend as its
/// last line. A character that stands for several tiles is full (empty) only if all of them are.
std::string draw(const BlockMask& mask, std::int64_t group, const DrawOptions& options = {});

}  // namespace fdma
