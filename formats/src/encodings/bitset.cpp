// Block bit sets from and to the canonical form.
//
// To the canonical form, the active tiles of a tile row are listed; the bitmaps of partial ones lie
// in the same order. From it, a segment becomes two runs of bits.
#include <bit>

#include "fdma/formats/convert.hpp"
#include "segment/indexed_tiles.hpp"
#include "segment/tile_bitmaps.hpp"

namespace fdma {

SegmentMask segment_from_bitset(const BlockBitset& mask) {
  IndexedTiles builder(mask.q_len, mask.kv_len, mask.block, mask.bitmaps);
  const std::int64_t words_per_row = mask.words_per_row();
  std::vector<IndexedTile> tiles;
  std::size_t partial = 0;
  for (std::int64_t row = 0; row < mask.num_tile_rows(); ++row) {
    tiles.clear();
    for (std::int64_t w = 0; w < words_per_row; ++w) {
      const auto i = static_cast<std::size_t>(row * words_per_row + w);
      for (std::uint64_t active = mask.active[i]; active != 0; active &= active - 1) {
        const int bit = std::countr_zero(active);
        const bool is_full = (mask.full[i] >> bit & 1) != 0;
        tiles.push_back({static_cast<std::int32_t>(64 * w + bit),
                         is_full ? IndexedTile::kFullTile : mask.bitmap_index[partial++]});
      }
    }
    builder.add_tile_row(tiles);
  }
  return builder.finish();
}

BlockBitset bitset_from_segment(const SegmentMask& mask) {
  BlockBitset result;
  result.q_len = mask.q_len;
  result.kv_len = mask.kv_len;
  result.block = mask.block;
  const std::int64_t words_per_row = result.words_per_row();
  const auto num_words = static_cast<std::size_t>(result.num_tile_rows() * words_per_row);
  result.active.resize(num_words);
  result.full.resize(num_words);
  result.partial_offsets.reserve(static_cast<std::size_t>(result.num_tile_rows()) + 1);
  result.partial_offsets.push_back(0);
  TileBitmaps bitmaps(mask);
  for_each_tile_row(mask, [&](std::int32_t row, std::span<const TileSegment> segments) {
    for (const TileSegment& segment : segments) {
      set_bits(result.active.data() + row * words_per_row, segment.first_tile, segment.end_tile);
      if (segment.kind == SegmentKind::full) {
        set_bits(result.full.data() + row * words_per_row, segment.first_tile, segment.end_tile);
      } else {
        bitmaps.append_indices(segment, row, result.bitmap_index);
      }
    }
    result.partial_offsets.push_back(static_cast<std::int64_t>(result.bitmap_index.size()));
  });
  result.bitmaps = bitmaps.take();
  return result;
}

}  // namespace fdma
