// Validation of masks with patterns: every fault is named, and bits past the ragged edges are found
// wherever a pattern puts them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "../segment/pattern_masks.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "fdma/formats/validate.hpp"

namespace fdma {
namespace {

using ::testing::HasSubstr;
using testing::pick;

constexpr BlockShape kBlock{16, 16};

std::string reason(const SegmentMask& mask, ValidationLevel level = ValidationLevel::structure) {
  const auto valid = validate(mask, level);
  if (valid) return "valid";
  EXPECT_EQ(valid.error().code, ErrorCode::corrupt_file);
  return valid.error().message;
}

// Bitmaps whose last true cell is (rows - 1, keys - 1).
std::vector<std::uint64_t> bitmap_to(std::int64_t rows, std::int64_t keys) {
  std::vector<std::uint64_t> words(4);
  set_bits(words.data(), (rows - 1) * 16 + keys - 1, (rows - 1) * 16 + keys);
  return words;
}

// 5 x 7 tiles; the last row has 6 queries, the last column 4 keys. Patterns 2 x 3 and 1 x 2 lie on
// the six whole columns of the four whole rows.
SegmentMask sample() {
  SegmentBuilder builder(70, 100, kBlock);
  const std::int32_t a = builder.intern_bitmap(bitmap_to(1, 1).data());
  const std::int32_t b = builder.intern_bitmap(bitmap_to(16, 16).data());
  const std::vector<std::int32_t> first{a, kEmptyTile, kFullTile, kEmptyTile, b, a};
  const std::vector<std::int32_t> second{b, kEmptyTile};
  const auto p = builder.add_pattern(2, 3, 1, first), q = builder.add_pattern(1, 2, 0, second);
  const TileSegment segments[] = {{0, 1, 0, 1, p.kind, p.data_index},
                                  {5, 6, 0, 0, q.kind, q.data_index}};
  builder.add_rows(0, 4, segments);
  builder.add_rows(4, 1, {});
  return builder.finish();
}

TEST(ValidatePatterns, NamesArrayIndexExpectedAndGot) {
  const SegmentMask good = sample();
  ASSERT_EQ(reason(good, ValidationLevel::canonical), "valid");
  ASSERT_EQ(good.patterns.size(), 2u);
  const auto expect = [&](const std::string& words, auto change) {
    SegmentMask bad = good;
    change(bad);
    EXPECT_THAT(reason(bad), HasSubstr(words));
  };
  const auto sizes = [&](const std::string& words, auto change) {
    SegmentMask bad = good;
    change(bad);
    EXPECT_THAT(reason(bad, ValidationLevel::sizes), HasSubstr(words));
  };
  sizes("pattern_offsets: 0 entries", [](SegmentMask& m) { m.pattern_offsets.clear(); });
  sizes("pattern_offsets[0]: 1, expected 0", [](SegmentMask& m) { m.pattern_offsets[0] = 1; });
  sizes("pattern_tiles: 6 entries, but pattern_offsets ends at 5", [](SegmentMask& m) {
    m.pattern_tiles.push_back({0, 0});
  });
  sizes("column_offsets: 101 entries, expected 0 (a mask with patterns has no column table)",
        [](SegmentMask& m) { m.column_offsets.assign(101, 0); });
  expect("pattern_offsets[2]: 1, expected at least 2",
         [](SegmentMask& m) { m.pattern_offsets[2] = 1; });
  expect("pattern_offsets: 5 entries, expected 4 (1 + the rows of all patterns)",
         [](SegmentMask& m) { m.pattern_offsets.push_back(5); });
  expect("pattern_offsets: 4 entries, expected 1 (1 + the rows of all patterns)",
         [](SegmentMask& m) { m.patterns.clear(), m.runs[0].num_segments = 0; });
  expect("patterns[0]: 0 x 3 tiles, expected at least 1 x 1",
         [](SegmentMask& m) { m.patterns[0].num_rows = 0; });
  expect("patterns[0]: 2 x -1 tiles", [](SegmentMask& m) { m.patterns[0].num_cols = -1; });
  expect("patterns[1]: 1 x 1 tiles, expected more than one tile",
         [](SegmentMask& m) { m.patterns[1].num_cols = 1; });
  expect("patterns[0]: 2 x 2147483647 tiles, expected at most 67108864 of all patterns",
         [](SegmentMask& m) { m.patterns[0].num_cols = kMaxLength; });
  expect("patterns[1]: 1 x 67108860 tiles, expected at most 67108864 of all patterns",
         [](SegmentMask& m) { m.patterns[1].num_cols = (1 << 26) - 4; });
  expect("patterns[0]: skew 3, expected 0 to 2", [](SegmentMask& m) { m.patterns[0].skew = 3; });
  expect("patterns[0]: skew -1, expected 0 to 2", [](SegmentMask& m) { m.patterns[0].skew = -1; });
  expect("patterns[1]: first_row 1, expected 2",
         [](SegmentMask& m) { m.patterns[1].first_row = 1; });
  expect("patterns[1]: rows 2 + 2, but pattern_offsets has 3 rows",
         [](SegmentMask& m) { m.patterns[1].num_rows = 2; });
  expect("pattern_tiles[1]: column 0, expected 1 to 2 in row 0 of pattern 0",
         [](SegmentMask& m) { m.pattern_tiles[1].column = 0; });
  expect("pattern_tiles[1]: column 3, expected 1 to 2 in row 0 of pattern 0",
         [](SegmentMask& m) { m.pattern_tiles[1].column = 3; });
  expect("pattern_tiles[0]: bitmap -2, expected -1 to 1",
         [](SegmentMask& m) { m.pattern_tiles[0].bitmap = kEmptyTile; });
  expect("pattern_tiles[4]: bitmap 2, expected -1 to 1",
         [](SegmentMask& m) { m.pattern_tiles[4].bitmap = 2; });
  expect("segments[0]: payload 2, expected less than 2",
         [](SegmentMask& m) { m.segments[0].data_index = 2; });
  expect("segments[0]: payload -1, expected less than 2",
         [](SegmentMask& m) { m.segments[0].data_index = -1; });
}

TEST(ValidatePatterns, CanonicalAsksForWhatTheBuilderMakes) {
  const SegmentMask good = sample();
  const auto expect = [&](const std::string& words, auto change) {
    SegmentMask bad = good;
    change(bad);
    EXPECT_EQ(reason(bad), "valid");
    EXPECT_THAT(reason(bad, ValidationLevel::canonical), HasSubstr(words));
  };
  expect(
      "patterns[1]: {1 x 4 tiles, skew 0, first row 2}, but the form that is built of these "
      "tiles and patterns has {1 x 2 tiles, skew 0, first row 2}",
      [](SegmentMask& m) {  // b . b .
        m.patterns[1].num_cols = 4;
        m.pattern_tiles.push_back({2, 1});
        m.pattern_offsets.back() = 6;
      });
  expect("patterns[1]: all its tiles are equal, expected a segment of one tile",
         [](SegmentMask& m) {
           m.pattern_tiles.push_back({1, 1});
           m.pattern_offsets.back() = 6;
         });
  expect("patterns[1]: all its tiles are equal, expected no segment", [](SegmentMask& m) {
    m.pattern_tiles.pop_back();
    m.pattern_offsets.back() = 4;
  });
  expect("patterns[2]: equal to patterns[1], expected to be stored once", [](SegmentMask& m) {
    m.patterns.push_back({1, 2, 0, 3});
    m.pattern_tiles.push_back({0, 1});
    m.pattern_offsets.push_back(6);
  });
  expect("bitmaps[1]: equal to bitmaps[0], expected to be stored once",
         [](SegmentMask& m) { std::copy_n(m.bitmaps.begin(), 4, m.bitmaps.begin() + 4); });
  expect("bitmaps[0]: no cell is true, expected an empty tile",
         [](SegmentMask& m) { std::fill_n(m.bitmaps.begin(), 4, 0); });
  expect("bitmaps[1]: every cell is true, expected a full tile",
         [](SegmentMask& m) { std::fill_n(m.bitmaps.begin() + 4, 4, ~std::uint64_t{0}); });
  expect("segments[1]: continues segments[0], expected one segment", [](SegmentMask& m) {
    m.segments[1] = m.segments[0];
    m.segments[0].step_end = 0;
    m.segments[1].first_tile = 1;
    m.segments[1].end_tile = 2;
  });
  expect("runs[0]: {row 0, stride 1, rows 1, segments 0 + 2}, but the form",
         [](SegmentMask& m) {  // rows 0 and 1 .. 3, which move as one run
           m.runs[0].num_rows = 1;
           m.runs.insert(m.runs.begin() + 1, TileRun{1, 1, 3, 2, 2});
           m.runs[2].first_segment = 4;
           m.segments.insert(m.segments.end(), m.segments.begin(), m.segments.end());
           m.segments[2].end_tile = 2;
           m.segments[0].step_end = 0;
         });
}

// Whatever makes masks with patterns makes them in this form.
TEST(ValidatePatterns, CanonicalTakesWhatTheBuilderMakes) {
  std::mt19937 rng(331);
  for (int i = 0; i < 300; ++i) {
    const SegmentMask mask = testing::random_pattern_case(rng).mask;
    if (!mask.has_patterns()) continue;
    ASSERT_EQ(reason(mask, ValidationLevel::canonical), "valid") << "case " << i;
  }
}

// Whether every bitmap of a pattern segment has only cells that exist, tile by tile.
bool has_only_existing_cells(const SegmentMask& mask) {
  bool is_right = true;
  for_each_tile_row(mask, [&](std::int32_t row, std::span<const TileSegment> segments) {
    for (const TileSegment& segment : segments) {
      if (segment.kind != SegmentKind::bitmap) continue;
      for (std::int64_t col = segment.first_tile; col < segment.end_tile; ++col) {
        const std::span<const std::uint64_t> words = mask.bitmap(segment.data_index);
        for (std::int64_t bit = 0; bit < std::ssize(words) * 64; ++bit) {
          if ((words[static_cast<std::size_t>(bit / 64)] >> (bit % 64) & 1) == 0) continue;
          const std::int64_t q = std::int64_t{row} * mask.block.block_q + bit / mask.block.block_kv;
          const std::int64_t k = col * mask.block.block_kv + bit % mask.block.block_kv;
          is_right = is_right && q < mask.q_len && k < mask.kv_len;
        }
      }
    }
  });
  return is_right;
}

TEST(ValidatePatterns, FindsBitsPastTheEdgesInWhateverRowTheyAre) {
  std::mt19937 rng(332);
  int num_right = 0, num_wrong = 0;
  for (int i = 0; i < 4000; ++i) {
    const BlockShape block{16, pick(rng, 0, 3) == 0 ? 48 : 16};
    const auto num_rows = static_cast<std::int32_t>(pick(rng, 1, 12));
    const auto num_cols = static_cast<std::int32_t>(pick(rng, 2, 9));
    SegmentBuilder builder(num_rows * block.block_q - pick(rng, 0, 15),
                           std::int64_t{num_cols} * block.block_kv - pick(rng, 0, 15), block);
    // One bitmap may reach past an edge, in few tiles of its pattern.
    std::vector<std::uint64_t> words(static_cast<std::size_t>(block.block_q * block.block_kv / 64));
    words[0] = 1;
    const std::int32_t small = builder.intern_bitmap(words.data());
    const std::int64_t last = (pick(rng, 1, 16) - 1) * block.block_kv +
                              pick(rng, block.block_kv - 14, block.block_kv) - 1;
    set_bits(words.data(), last, last + 1);
    const std::int32_t large = builder.intern_bitmap(words.data());
    const std::int32_t kinds[] = {kFullTile, kEmptyTile, small};
    std::vector<SegmentBuilder::PatternContent> contents;
    for (int p = 0; p < 2; ++p) {
      const auto rows = static_cast<std::int32_t>(pick(rng, 1, 4));
      const auto cols = static_cast<std::int32_t>(pick(rng, 2, 5));
      std::vector<std::int32_t> tiles;
      for (int t = 0; t < rows * cols; ++t) tiles.push_back(kinds[pick(rng, 0, 2)]);
      tiles[static_cast<std::size_t>(pick(rng, 0, rows * cols - 1))] = large;
      if (tiles[0] != large) tiles[0] = kEmptyTile;  // at least two kinds of tiles
      if (tiles[0] == large) tiles[1] = small;
      contents.push_back(builder.add_pattern(
          rows, cols, static_cast<std::int32_t>(pick(rng, 0, cols - 1)), tiles));
    }
    for (std::int32_t row = 0; row < num_rows; ++row) {
      const std::int32_t border = std::min(num_cols - 1, 1 + row % 3);
      const auto& left = contents[0];
      const auto& right = contents[static_cast<std::size_t>(row / 5 % 2)];
      std::vector<TileSegment> segments{{0, border, 0, 0, left.kind, left.data_index},
                                        {border, num_cols, 0, 0, right.kind, right.data_index}};
      if (pick(rng, 0, 5) == 0) segments.pop_back();
      builder.add_rows(row, 1, segments);
      builder.skip_to(row + 1);
    }
    const SegmentMask mask = builder.finish();
    ASSERT_TRUE(mask.has_patterns());
    const bool is_right = has_only_existing_cells(mask);
    ++(is_right ? num_right : num_wrong);
    const std::string words_of = reason(mask);
    ASSERT_EQ(words_of == "valid", is_right) << "case " << i << ": " << words_of;
    if (!is_right) {
      ASSERT_THAT(words_of, HasSubstr("of its cells exist"));
    }
  }
  EXPECT_GT(num_right, 500);
  EXPECT_GT(num_wrong, 500);
}

// A file of a few hundred bytes may name 134 million tile rows.
TEST(ValidatePatterns, CostsWhatIsStoredAndNotTheLengths) {
  SegmentBuilder builder(kMaxLength, kMaxLength, kBlock);
  const std::int32_t large = builder.intern_bitmap(bitmap_to(16, 16).data());
  const std::vector<std::int32_t> tiles{large, kEmptyTile, kFullTile};
  const auto pattern = builder.add_pattern(1, 3, 1, tiles);
  const std::int32_t rows = static_cast<std::int32_t>(ceil_div(kMaxLength, 16));
  const TileSegment segment{0, rows, 0, 0, pattern.kind, pattern.data_index};
  builder.add_rows(0, rows, std::span(&segment, 1));
  builder.skip_to(rows);
  const SegmentMask mask = builder.finish();
  const auto start = std::chrono::steady_clock::now();
  EXPECT_THAT(reason(mask), HasSubstr("of its cells exist"));
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

}  // namespace
}  // namespace fdma
