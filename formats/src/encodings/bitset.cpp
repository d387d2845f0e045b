// Block bit sets from and to the canonical form.
//
// To the canonical form, a tile row is scanned by runs of equal bits; partial tiles lie in the
// order in which the builder asks for their cells. From it, a segment becomes two runs of bits.
#include <algorithm>

#include "fdma/formats/convert.hpp"
#include "segment/bit_copy.hpp"
#include "segment/tile_bitmaps.hpp"

namespace fdma {

SegmentMask segment_from_bitset(const BlockBitset& mask) {
  SegmentBuilder builder(mask.q_len, mask.kv_len, mask.block);
  const std::int64_t num_cols = mask.num_tile_cols(), words_per_row = mask.words_per_row();
  const std::int64_t words_per_bitmap = std::int64_t{mask.block.block_q} * mask.block.block_kv / 64;
  std::vector<TileRange> ranges;
  for (std::int64_t row = 0; row < mask.num_tile_rows(); ++row) {
    const std::uint64_t* active = mask.active.data() + row * words_per_row;
    const std::uint64_t* full = mask.full.data() + row * words_per_row;
    ranges.clear();
    for (std::int64_t col = 0; (col = find_bit(active, col, num_cols, true)) < num_cols;) {
      const std::int64_t end = find_bit(active, col, num_cols, false);
      while (col < end) {
        const bool is_full = read_bits(full, col, 1) != 0;
        const std::int64_t next = find_bit(full, col, end, !is_full);
        ranges.push_back(
            {static_cast<std::int32_t>(col), static_cast<std::int32_t>(next), is_full});
        col = next;
      }
    }
    std::int64_t partial = mask.partial_offsets[static_cast<std::size_t>(row)];
    builder.add_tile_row(
        ranges,
        [&](std::int32_t, std::uint64_t* words) {
          const std::int64_t index = mask.bitmap_index[static_cast<std::size_t>(partial++)];
          std::copy_n(mask.bitmaps.data() + index * words_per_bitmap, words_per_bitmap, words);
        },
        true);
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
