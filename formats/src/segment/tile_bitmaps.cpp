#include "segment/tile_bitmaps.hpp"

#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace fdma {

TileBitmaps::TileBitmaps(const SegmentMask& mask)
    : mask_(mask),
      words_per_bitmap_(static_cast<std::size_t>(mask.words_per_bitmap())),
      index_of_bitmap_(static_cast<std::size_t>(mask.num_bitmaps()), -1),
      panels_(static_cast<std::size_t>(mask.num_row_panels())),
      scratch_(words_per_bitmap_) {}

std::int32_t TileBitmaps::intern(const std::uint64_t* words) {
  const std::size_t bytes = words_per_bitmap_ * sizeof(std::uint64_t);
  const std::uint64_t hash = XXH3_64bits(words, bytes);
  const std::int32_t found = known_.find(hash, [&](std::int32_t index) {
    return std::memcmp(bitmaps_.data() + static_cast<std::size_t>(index) * words_per_bitmap_, words,
                       bytes) == 0;
  });
  if (found >= 0) return found;
  const auto index = static_cast<std::int32_t>(bitmaps_.size() / words_per_bitmap_);
  bitmaps_.insert(bitmaps_.end(), words, words + words_per_bitmap_);
  known_.insert(hash, index);
  return index;
}

std::int32_t TileBitmaps::index_of_tile(const TileSegment& segment, std::int32_t row,
                                        std::int32_t col) {
  tile_cells(mask_, segment, row, col, scratch_.data());
  return intern(scratch_.data());
}

void TileBitmaps::append_indices(const TileSegment& segment, std::int32_t row,
                                 std::vector<std::int32_t>& out) {
  const std::int32_t num_tiles = segment.end_tile - segment.first_tile;
  const auto data_index = static_cast<std::size_t>(segment.data_index);
  if (segment.kind == SegmentKind::bitmap) {
    std::int32_t& index = index_of_bitmap_[data_index];
    if (index < 0) index = intern(mask_.bitmap(segment.data_index).data());
    out.insert(out.end(), static_cast<std::size_t>(num_tiles), index);
    return;
  }
  if (segment.kind == SegmentKind::rows && panels_[data_index].count == num_tiles) {
    const auto first = panel_indices_.begin() + panels_[data_index].first;
    out.insert(out.end(), first, first + num_tiles);
    return;
  }
  const std::size_t first = out.size();
  for (std::int32_t col = segment.first_tile; col < segment.end_tile; ++col) {
    out.push_back(index_of_tile(segment, row, col));
  }
  if (segment.kind == SegmentKind::rows && panels_[data_index].count < 0) {
    panels_[data_index] = {static_cast<std::int64_t>(panel_indices_.size()), num_tiles};
    panel_indices_.insert(panel_indices_.end(), out.begin() + static_cast<std::ptrdiff_t>(first),
                          out.end());
  }
}

}  // namespace fdma
