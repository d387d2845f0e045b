// A window of a segment mask in blocks of any shape.
#pragma once

#include "fdma/formats/segment_mask.hpp"

namespace fdma {

/// Cells [q_begin, q_end) x [kv_begin, kv_end) of a mask, inside its lengths.
struct CellWindow {
  std::int64_t q_begin;
  std::int64_t q_end;
  std::int64_t kv_begin;
  std::int64_t kv_end;
};

/// The cells of a window as a canonical mask of its own.
///
/// Cost        time: for a mask that is bands of rows, that of lowering the bands (row_bands.hpp);
///             for a whole mask that keeps its blocks, that of combine_layers (tile_layers.hpp);
///             for a mask with a column table O(keys + intervals); otherwise O(segments of all tile
///             rows in the window + partial cells / 64)
///             memory: the result and one tile row
SegmentMask reblock(const SegmentMask& mask, const CellWindow& window, BlockShape block);

}  // namespace fdma
