// Text and JSON of a mask_difference.hpp comparison.
#pragma once

#include <string>

#include "cli/json_output.hpp"
#include "commands/mask_difference.hpp"

namespace fdma::maskc {

/// One line that says by how much a and b differ; empty if they are equal.
std::string difference_summary(const MaskDifference& difference);
/// The first differing cells, one a line: "  batch 0, head 0: q 5, k 17: true in a, false in b".
std::string cell_lines(const MaskDifference& difference, const std::string& a,
                       const std::string& b);
/// The first differing tiles as a table.
std::string tile_table(const MaskDifference& difference);

Json cells_json(const MaskDifference& difference);
Json tiles_json(const MaskDifference& difference);

}  // namespace fdma::maskc
