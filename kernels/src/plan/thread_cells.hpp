// Which cells of a tile a thread of an sm_90a warpgroup holds. Plans for sm90 store bitmaps in this
// order (bitmap_order.hpp).
// Pure functions, the same on host and device.
#pragma once

#include "fdma/kernels/host_device.hpp"

namespace fdma::gpu {

struct FragmentCell {
  int row;
  int col;
};

/// The cell of a 64 x N float32 accumulator that thread `thread` of its warpgroup holds in register
/// `reg` of N / 2. Two neighbouring 8-column groups of registers are the A fragment of one k16
/// step.
FDMA_HOST_DEVICE constexpr FragmentCell accumulator_cell(int thread, int reg) {
  return {thread / 32 * 16 + thread % 32 / 4 + reg / 2 % 2 * 8,
          reg / 4 * 8 + thread % 4 * 2 + reg % 2};
}

/// A thread's mask fragment of a 64 x 128 half tile is two words, for its rows r and r + 8. Returns
/// the cell of bit `bit` of word `word`. Bit 2 * (col / 8) + col % 2 belongs to the thread's column
/// col.
FDMA_HOST_DEVICE constexpr FragmentCell mask_cell(int thread, int word, int bit) {
  return accumulator_cell(thread, bit / 2 * 4 + word * 2 + bit % 2);
}

}  // namespace fdma::gpu
