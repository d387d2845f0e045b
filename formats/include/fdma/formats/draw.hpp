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

/// A picture of group `group`: full, partial and empty tiles are told apart; where one character
/// stands for several tiles it is full or empty only if all of them are. Ends with a legend line.
std::string draw(const BlockMask& mask, std::int64_t group, const DrawOptions& options = {});

}  // namespace fdma
