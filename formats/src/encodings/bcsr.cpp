// Block compressed sparse rows from and to the canonical form.
#include <algorithm>

#include "fdma/formats/convert.hpp"
#include "segment/tile_bitmaps.hpp"

namespace fdma {

SegmentMask segment_from_bcsr(const BcsrMask& mask) {
  SegmentBuilder builder(mask.q_len, mask.kv_len, mask.block);
  const std::int64_t words_per_bitmap = std::int64_t{mask.block.block_q} * mask.block.block_kv / 64;
  std::vector<TileRange> ranges;
  for (std::size_t row = 0; row < static_cast<std::size_t>(mask.num_tile_rows()); ++row) {
    ranges.clear();
    const std::int64_t first = mask.row_offsets[row], last = mask.row_offsets[row + 1];
    for (std::int64_t i = first; i < last; ++i) {
      const std::int32_t col = mask.col_indices[static_cast<std::size_t>(i)];
      const bool is_full = mask.bitmap_index[static_cast<std::size_t>(i)] == BcsrMask::kFullBlock;
      if (!ranges.empty() && ranges.back().end == col && ranges.back().is_full == is_full) {
        ++ranges.back().end;
      } else {
        ranges.push_back({col, col + 1, is_full});
      }
    }
    std::int64_t next = first;  // the builder asks for partial tiles in order
    builder.add_tile_row(
        ranges,
        [&](std::int32_t tile, std::uint64_t* words) {
          while (mask.col_indices[static_cast<std::size_t>(next)] != tile) ++next;
          const std::int64_t index = mask.bitmap_index[static_cast<std::size_t>(next)];
          std::copy_n(mask.bitmaps.data() + index * words_per_bitmap, words_per_bitmap, words);
        },
        true);
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
