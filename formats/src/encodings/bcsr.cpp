// Block compressed sparse rows from and to the canonical form.
#include "fdma/formats/convert.hpp"
#include "segment/indexed_tiles.hpp"
#include "segment/tile_bitmaps.hpp"

namespace fdma {

SegmentMask segment_from_bcsr(const BcsrMask& mask) {
  static_assert(BcsrMask::kFullBlock == IndexedTile::kFullTile);
  IndexedTiles builder(mask.q_len, mask.kv_len, mask.block, mask.bitmaps);
  std::vector<IndexedTile> tiles;
  for (std::size_t row = 0; row < static_cast<std::size_t>(mask.num_tile_rows()); ++row) {
    tiles.clear();
    for (auto i = static_cast<std::size_t>(mask.row_offsets[row]);
         i < static_cast<std::size_t>(mask.row_offsets[row + 1]); ++i) {
      tiles.push_back({mask.col_indices[i], mask.bitmap_index[i]});
    }
    builder.add_tile_row(tiles);
  }
  return builder.finish();
}

BcsrMask bcsr_from_segment(const SegmentMask& mask) {
  BcsrMask result;
  result.q_len = mask.q_len;
  result.kv_len = mask.kv_len;
  result.block = mask.block;
  const TileCounts counts = count_tiles(mask);
  result.row_offsets.reserve(static_cast<std::size_t>(result.num_tile_rows()) + 1);
  result.row_offsets.push_back(0);
  result.col_indices.reserve(static_cast<std::size_t>(counts.full + counts.partial));
  result.bitmap_index.reserve(static_cast<std::size_t>(counts.full + counts.partial));
  TileBitmaps bitmaps(mask);
  for_each_tile_row(mask, [&](std::int32_t row, std::span<const TileSegment> segments) {
    for (const TileSegment& segment : segments) {
      for (std::int32_t col = segment.first_tile; col < segment.end_tile; ++col) {
        result.col_indices.push_back(col);
      }
      if (segment.kind == SegmentKind::full) {
        result.bitmap_index.resize(result.col_indices.size(), BcsrMask::kFullBlock);
      } else {
        bitmaps.append_indices(segment, row, result.bitmap_index);
      }
    }
    result.row_offsets.push_back(static_cast<std::int64_t>(result.col_indices.size()));
  });
  result.bitmaps = bitmaps.take();
  return result;
}

}  // namespace fdma
