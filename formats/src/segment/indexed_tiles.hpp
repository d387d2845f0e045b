// Tile rows of formats that hold the number of a bitmap for each partial tile.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fdma/formats/segment_builder.hpp"

namespace fdma {

/// One tile of a tile row: the number of its bitmap, or kFullTile.
struct IndexedTile {
  static constexpr std::int32_t kFullTile = -1;
  std::int32_t col;
  std::int32_t bitmap;
};

/// Appends such tile rows to a builder. Cells decide whether a tile is full, partial or empty.
///
/// Cost: one visit of each stored bitmap, and a few instructions a tile; a segment that may be a
/// row panel is gathered.
class IndexedTiles {
 public:
  /// `bitmaps` are distinct or not, block_q * block_kv / 64 words each.
  IndexedTiles(std::int64_t q_len, std::int64_t kv_len, BlockShape block,
               std::span<const std::uint64_t> bitmaps);
  /// Appends the next tile row; columns ascend. Tiles that are not listed are empty.
  void add_tile_row(std::span<const IndexedTile> tiles);
  /// The mask, after the last tile row.
  SegmentMask finish() { return builder_.finish(); }

 private:
  struct Bitmap {
    std::uint64_t hash = 0;
    std::int64_t num_cells = -1;  // -1: not looked at yet
    std::int32_t interned = -1;
  };
  class Run;
  Bitmap& look_at(std::int32_t index);
  void add_partial(std::int32_t end_tile);

  SegmentBuilder builder_;
  const std::int64_t q_len_, kv_len_;
  const BlockShape block_;
  const std::span<const std::uint64_t> words_;
  const std::size_t words_per_bitmap_;
  std::vector<Bitmap> bitmaps_;
  std::vector<std::int32_t> partial_;               // the bitmaps of partial tiles side by side
  std::vector<PartialRun::NumberedTiles> numbers_;  // of partial_
  std::vector<std::uint64_t> gathered_;
  std::vector<TileSegment> segments_;
};

}  // namespace fdma
