// The partial tiles of a segment mask as interned bitmaps, for the formats that keep one index per
// tile.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/formats/segment_builder.hpp"

namespace fdma {

/// Numbers the distinct bitmaps of partial tiles by first occurrence.
///
/// Tiles must be asked for in row-major order. Cost: one visit of each stored bitmap, of each tile
/// of a stored row panel, and of each tile of a columns segment.
class TileBitmaps {
 public:
  explicit TileBitmaps(const SegmentMask& mask);
  /// Appends the bitmap index of every tile of a partial segment of tile row `row` (steps applied).
  void append_indices(const TileSegment& segment, std::int32_t row, std::vector<std::int32_t>& out);
  /// All bitmaps numbered so far, one after another.
  std::vector<std::uint64_t> take() { return std::move(bitmaps_); }

 private:
  std::int32_t intern(const std::uint64_t* words);
  std::int32_t index_of_tile(const TileSegment& segment, std::int32_t row, std::int32_t col);

  struct PanelTiles {
    std::int64_t first = 0;  // into panel_indices_
    std::int32_t count = -1;
  };

  const SegmentMask& mask_;
  const std::size_t words_per_bitmap_;
  std::vector<std::uint64_t> bitmaps_;
  DataIndex known_;
  std::vector<std::int32_t> index_of_bitmap_;  // by bitmap index of the mask, -1 if not met yet
  std::vector<PanelTiles> panels_;             // by panel index of the mask
  std::vector<std::int32_t> panel_indices_;
  std::vector<std::uint64_t> scratch_;
};

}  // namespace fdma
