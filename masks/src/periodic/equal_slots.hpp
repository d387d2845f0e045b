// Slots whose tiles certainly hold the same cells, without an evaluation of cells.
//
// Idea. A lattice of translations is coarser than it could be where a mask wraps around: the rows of
// an image have two ends, so that tiles repeat by whole rows, though most of them equal their
// neighbours. Box form numbers tiles by the values that the parts of the program have on their rows
// and keys (boxes/tile_numbers.hpp). Slots lie in few tile rows and columns, which are numbered as
// if they were the whole mask: its query i is that of row i % block_q of the row i / block_q of the
// list, by a table.
//
// Example     natten on a canvas of 1024 x 1024 stored in tiles of 8 x 8: 2044 undecided slots of 52
//             numbers
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fdma/masks/mask_ir.hpp"
#include "lower/work_meter.hpp"
#include "periodic/plan.hpp"

namespace fdma::periodic {

/// For each of the slots, which are row-major, the index of the first one known to be equal.
///
/// Cost        O(nodes * (block_q + block_kv)) for each distinct tile row and column, and some 10 ns
///             a slot and node
std::vector<std::int32_t> first_equal_slots(const IrProgram& program, BlockShape block,
                                            std::span<const Slot> slots, WorkMeter& meter);

}  // namespace fdma::periodic
