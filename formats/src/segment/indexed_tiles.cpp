#include "segment/indexed_tiles.hpp"

#include <algorithm>
#include <bit>

#include "segment/bitmaps_run.hpp"

namespace fdma {

// The partial tiles side by side. Their bitmaps are gathered only where a row panel may be written.
class IndexedTiles::Run final : public PartialRun {
 public:
  explicit Run(IndexedTiles& tiles) : tiles_(tiles) { tiles_.gathered_.clear(); }

  std::span<const NumberedTiles> numbers() override {
    std::vector<NumberedTiles>& numbers = tiles_.numbers_;
    numbers.clear();
    for (std::int64_t tile = 0; tile < std::ssize(tiles_.partial_);) {
      const std::int64_t end = run_end(tile);
      numbers.push_back(
          {tiles_.partial_[static_cast<std::size_t>(tile)], static_cast<std::int32_t>(end)});
      tile = end;
    }
    return numbers;
  }

  std::int64_t num_intervals(std::int64_t limit) override {
    return gathered().num_intervals(limit);
  }
  std::int64_t run_end(std::int64_t tile) override {
    const auto first = tiles_.partial_.begin() + tile;
    const auto end = std::find_if(first, tiles_.partial_.end(),
                                  [&](std::int32_t index) { return index != *first; });
    return end - tiles_.partial_.begin();
  }
  std::uint64_t bitmap_hash(std::int64_t tile) override {
    return tiles_.look_at(tiles_.partial_[static_cast<std::size_t>(tile)]).hash;
  }
  std::int32_t intern(std::int64_t tile, std::uint64_t hash) override {
    const std::int32_t index = tiles_.partial_[static_cast<std::size_t>(tile)];
    Bitmap& bitmap = tiles_.look_at(index);
    if (bitmap.interned < 0) {
      const auto first = static_cast<std::size_t>(index) * tiles_.words_per_bitmap_;
      bitmap.interned = tiles_.builder_.intern_bitmap(tiles_.words_.data() + first, hash);
    }
    return bitmap.interned;
  }
  void write_panel(std::vector<std::int64_t>& offsets, std::vector<Interval>& intervals) override {
    gathered().write_panel(offsets, intervals);
  }

 private:
  BitmapsRun gathered() {
    if (tiles_.gathered_.empty()) {
      for (const std::int32_t index : tiles_.partial_) {
        const auto words = tiles_.words_.subspan(
            static_cast<std::size_t>(index) * tiles_.words_per_bitmap_, tiles_.words_per_bitmap_);
        tiles_.gathered_.insert(tiles_.gathered_.end(), words.begin(), words.end());
      }
    }
    return {tiles_.builder_, tiles_.gathered_, tiles_.block_};
  }

  IndexedTiles& tiles_;
};

IndexedTiles::IndexedTiles(std::int64_t q_len, std::int64_t kv_len, BlockShape block,
                           std::span<const std::uint64_t> bitmaps)
    : builder_(q_len, kv_len, block),
      q_len_(q_len),
      kv_len_(kv_len),
      block_(block),
      words_(bitmaps),
      words_per_bitmap_(static_cast<std::size_t>(block.block_q) *
                        static_cast<std::size_t>(block.block_kv) / 64),
      bitmaps_(bitmaps.size() / words_per_bitmap_) {}

IndexedTiles::Bitmap& IndexedTiles::look_at(std::int32_t index) {
  Bitmap& bitmap = bitmaps_[static_cast<std::size_t>(index)];
  if (bitmap.num_cells < 0) {
    const auto words =
        words_.subspan(static_cast<std::size_t>(index) * words_per_bitmap_, words_per_bitmap_);
    bitmap.hash = hash_words(words.data(), std::ssize(words));
    bitmap.num_cells = 0;
    for (const std::uint64_t word : words) bitmap.num_cells += std::popcount(word);
  }
  return bitmap;
}

void IndexedTiles::add_partial(std::int32_t end_tile) {
  if (partial_.empty()) return;
  const auto first_tile = end_tile - static_cast<std::int32_t>(partial_.size());
  Run run(*this);
  builder_.add_partial_run(first_tile, end_tile, 0, run, segments_);
  partial_.clear();
}

void IndexedTiles::add_tile_row(std::span<const IndexedTile> tiles) {
  const std::int32_t row = builder_.next_row();
  const std::int64_t num_rows =
      std::min<std::int64_t>(block_.block_q, q_len_ - std::int64_t{row} * block_.block_q);
  segments_.clear();
  std::int32_t next = 0;  // tile after the last one
  for (const IndexedTile& tile : tiles) {
    bool is_full = tile.bitmap == IndexedTile::kFullTile;
    if (!is_full) {
      const std::int64_t first_key = std::int64_t{tile.col} * block_.block_kv;
      const std::int64_t num_keys = std::min<std::int64_t>(block_.block_kv, kv_len_ - first_key);
      const std::int64_t num_cells = look_at(tile.bitmap).num_cells;
      if (num_cells == 0) continue;
      is_full = num_cells == num_rows * num_keys;
    }
    if (is_full || tile.col != next) add_partial(next);
    next = tile.col + 1;
    if (!is_full) {
      partial_.push_back(tile.bitmap);
    } else if (!segments_.empty() && segments_.back().kind == SegmentKind::full &&
               segments_.back().end_tile == tile.col) {
      segments_.back().end_tile = next;
    } else {
      segments_.push_back({tile.col, next, 0, 0, SegmentKind::full, 0});
    }
  }
  add_partial(next);
  builder_.add_rows(row, 1, segments_);
  builder_.skip_to(row + 1);
}

}  // namespace fdma
