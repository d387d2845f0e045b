// Tiles that the ranges of a program decide, many at once.
//
// Idea. The ranges of the nodes over a box of tiles (ir/range.hpp) often make the root constant,
// since they are exact for remainders and quotients of boxes that one turn holds. Boxes that are
// not decided are halved at powers of two, where turns begin.
//
// Example     Of the 88,936 classes of tiles of natten on a canvas of 1024 x 1024 stored in tiles of
//             8 x 8, all but 2044 are empty by ranges.
#pragma once

#include <span>
#include <vector>

#include "fdma/masks/mask_ir.hpp"
#include "ir/range.hpp"
#include "lower/work_meter.hpp"
#include "periodic/plan.hpp"
#include "periodic/tiles.hpp"

namespace fdma::periodic {

/// kEmptyTile, kFullTile or kUndecidedTile for each of the slots, which are row-major. The program
/// has no loops. Where the meter stops the work, the rest is undecided.
///
/// Cost        O(nodes) a box; boxes: a few a tile row, and the undecided tiles times the logarithm
///             of the length of the row
std::vector<Contents> bound_slots(const IrProgram& program, const TableRanges& tables,
                                  BlockShape block, std::span<const Slot> slots, WorkMeter& meter);

}  // namespace fdma::periodic
