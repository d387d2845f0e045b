// Small masks on the terminal, a character for each cell.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "fdma/formats/block_mask.hpp"
#include "fdma/formats/draw.hpp"

namespace fdma::maskc {

/// The masks that are drawn cell by cell.
inline constexpr std::int64_t kMaxCellRows = 32;
inline constexpr std::int64_t kMaxCellKeys = 64;

/// The drawing of a group of a mask: its cells if it has at most kMaxCellRows x kMaxCellKeys of them
/// and they fit, else its tiles as draw() has them.
///
/// Example     causal, 3 x 3, ascii: "#..\n##.\n###\n# attends, . masked; 3 x 3 cells, 6 allowed pairs"
std::string draw_on_terminal(const BlockMask& mask, std::int32_t group, const DrawOptions& options);

}  // namespace fdma::maskc
