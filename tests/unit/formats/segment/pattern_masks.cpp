#include "pattern_masks.hpp"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

namespace fdma::testing {
namespace {

struct Pattern {
  std::int32_t num_rows, num_cols, skew;
  std::vector<std::int32_t> tiles;
};

std::int64_t floor_mod(std::int64_t a, std::int64_t b) { return ((a % b) + b) % b; }

}  // namespace

PatternCase random_pattern_case(std::mt19937& rng) {
  const std::int64_t sides[] = {16, 32, 64};
  BlockShape block;
  block.block_q = static_cast<std::int32_t>(sides[pick(rng, 0, 2)]);
  block.block_kv =
      pick(rng, 0, 1) == 0 ? block.block_q : static_cast<std::int32_t>(sides[pick(rng, 0, 2)]);
  const std::int64_t num_rows = pick(rng, 1, 14), num_cols = pick(rng, 1, 20);
  const std::int64_t q_len =
      num_rows * block.block_q - (pick(rng, 0, 1) == 0 ? 0 : pick(rng, 1, 15));
  const std::int64_t kv_len =
      num_cols * block.block_kv - (pick(rng, 0, 1) == 0 ? 0 : pick(rng, 1, 15));
  return random_pattern_case(rng, q_len, kv_len, block);
}

PatternCase random_pattern_case(std::mt19937& rng, std::int64_t q_len, std::int64_t kv_len,
                                BlockShape block) {
  const std::int64_t num_rows = ceil_div(q_len, block.block_q);
  const std::int64_t num_cols = ceil_div(kv_len, block.block_kv);
  const std::int64_t whole_rows = q_len / block.block_q, whole_cols = kv_len / block.block_kv;
  SegmentBuilder builder(q_len, kv_len, block);
  const std::int64_t words = std::int64_t{block.block_q} * block.block_kv / 64;

  // A few bitmaps, and patterns of them.
  std::vector<std::vector<std::uint64_t>> bitmaps;
  std::map<std::int32_t, std::size_t> bitmap_of_index;
  std::vector<std::int32_t> choices{kFullTile, kEmptyTile, kEmptyTile};
  for (std::int64_t i = pick(rng, 1, 4); i > 0; --i) {
    std::vector<std::uint64_t> bits(static_cast<std::size_t>(words));
    for (std::uint64_t& word : bits) word = std::uint64_t{rng()} << 32 | rng();
    const std::int32_t index = builder.intern_bitmap(bits.data());
    bitmap_of_index[index] = bitmaps.size();
    bitmaps.push_back(std::move(bits));
    choices.push_back(index);
  }
  std::vector<Pattern> patterns;
  std::vector<SegmentBuilder::PatternContent> contents;
  for (std::int64_t i = pick(rng, 1, 3); i > 0; --i) {
    Pattern p{};
    p.num_rows = static_cast<std::int32_t>(pick(rng, 1, 5));
    p.num_cols = static_cast<std::int32_t>(pick(rng, 1, 6));
    p.skew = static_cast<std::int32_t>(pick(rng, 0, p.num_cols - 1));
    const std::int64_t num_choices = pick(rng, 1, std::ssize(choices));  // few: periods reduce
    for (std::int32_t t = 0; t < p.num_rows * p.num_cols; ++t) {
      p.tiles.push_back(choices[static_cast<std::size_t>(pick(rng, 0, num_choices - 1))]);
    }
    contents.push_back(builder.add_pattern(p.num_rows, p.num_cols, p.skew, p.tiles));
    patterns.push_back(std::move(p));
  }

  Cells cells(q_len, kv_len);
  const auto write_tile = [&](std::int64_t row, std::int64_t col, std::int32_t tile) {
    if (tile == kEmptyTile) return;
    for (std::int64_t r = 0; r < block.block_q; ++r) {
      for (std::int64_t c = 0; c < block.block_kv; ++c) {
        const std::int64_t q = row * block.block_q + r, k = col * block.block_kv + c;
        if (q >= q_len || k >= kv_len) continue;
        const auto bit = static_cast<std::size_t>(r * block.block_kv + c);
        cells.at(q, k) =
            tile == kFullTile ? 1 : bitmaps[bitmap_of_index[tile]][bit / 64] >> (bit % 64) & 1;
      }
    }
  };
  // Segments of a tile row: a pattern, often with a border that moves, and a full segment after it.
  const std::int64_t step = pick(rng, 0, 1);
  std::vector<TileSegment> segments;
  for (std::int64_t row = 0; row < num_rows; ++row) {
    segments.clear();
    const bool is_ragged = row >= whole_rows;
    const std::int64_t border =
        std::clamp<std::int64_t>(row * step + pick(rng, 0, 20) / 20, 0, whole_cols);
    const std::size_t p = static_cast<std::size_t>(pick(rng, 0, 9)) < 8 ? 0 : patterns.size() - 1;
    if (!is_ragged && border > 0 && !contents[p].is_empty) {
      segments.push_back(
          {0, static_cast<std::int32_t>(border), 0, 0, contents[p].kind, contents[p].data_index});
      for (std::int64_t col = 0; col < border; ++col) {
        const Pattern& pattern = patterns[p];
        const std::int64_t at = floor_mod(row, pattern.num_rows) * pattern.num_cols +
                                floor_mod(col - pattern.skew * row, pattern.num_cols);
        write_tile(row, col, pattern.tiles[static_cast<std::size_t>(at)]);
      }
    }
    const std::int64_t full = std::max<std::int64_t>(border, num_cols - 2);
    if (full < num_cols) {
      const auto first = static_cast<std::int32_t>(full);
      const bool joins = !segments.empty() && segments.back().kind == SegmentKind::full &&
                         segments.back().end_tile == first;
      if (joins) {
        segments.back().end_tile = static_cast<std::int32_t>(num_cols);
      } else {
        segments.push_back(
            {first, static_cast<std::int32_t>(num_cols), 0, 0, SegmentKind::full, 0});
      }
      for (std::int64_t col = full; col < num_cols; ++col) write_tile(row, col, kFullTile);
    }
    builder.add_rows(static_cast<std::int32_t>(row), 1, segments);
    builder.skip_to(static_cast<std::int32_t>(row) + 1);
  }
  return {builder.finish(), std::move(cells)};
}

}  // namespace fdma::testing
