// A window of a segment mask in blocks of any shape.
#pragma once

#include <optional>

#include "fdma/formats/segment_mask.hpp"

namespace fdma {

/// Cells [q_begin, q_end) x [kv_begin, kv_end) of a mask, inside its lengths.
struct CellWindow {
  std::int64_t q_begin;
  std::int64_t q_end;
  std::int64_t kv_begin;
  std::int64_t kv_end;
};

/// The cells of a window as a mask of its own, canonical unless it has patterns.
///
/// Cost        time: for a mask that is bands of rows, that of lowering the bands (row_bands.hpp);
///             for a whole mask that keeps its blocks, that of combine_layers (tile_layers.hpp);
///             for a mask with a column table O(keys + intervals); for a mask with patterns in its
///             own blocks that of a shift, in other blocks that of its parts (reblock_patterns);
///             otherwise O(segments of all tile
///             rows in the window + partial cells / 64)
///             memory: the result and one tile row
SegmentMask reblock(const SegmentMask& mask, const CellWindow& window, BlockShape block);

/// The same for a mask with patterns, whose patterns are kept. Nothing if one of them has a period
/// of more tiles in these blocks than the window has, or if a part needs a column table. Cost: for each pattern, that of reblock for
/// the mask of its segments, and two set operations.
std::optional<SegmentMask> reblock_patterns(const SegmentMask& mask, const CellWindow& window,
                                            BlockShape block);

}  // namespace fdma
