// Patterns: tiles that repeat, against the cells that their definition gives.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "fdma/formats/validate.hpp"
#include "pattern_masks.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::PatternCase;

constexpr BlockShape kBlock{16, 16};

std::vector<std::uint64_t> bitmap_of(std::uint64_t word) { return {word, 0, 0, 0}; }

TEST(Patterns, AreReducedToTheirSmallestPeriods) {
  SegmentBuilder builder(64, 64, kBlock);
  const std::int32_t a = builder.intern_bitmap(bitmap_of(1).data());
  const std::int32_t b = builder.intern_bitmap(bitmap_of(2).data());
  const auto one = builder.add_pattern(2, 3, 0, std::vector<std::int32_t>(6, kFullTile));
  EXPECT_EQ(one.kind, SegmentKind::full);
  EXPECT_TRUE(builder.add_pattern(3, 1, 0, std::vector<std::int32_t>(3, kEmptyTile)).is_empty);
  const auto bitmap = builder.add_pattern(1, 4, 2, std::vector<std::int32_t>(4, b));
  EXPECT_EQ(bitmap.kind, SegmentKind::bitmap);
  EXPECT_EQ(bitmap.data_index, b);
  const std::vector<std::int32_t> written{a, b, a, b, kFullTile, a, kFullTile, a};  // 2 x 4
  const auto pattern = builder.add_pattern(2, 4, 3, written);
  EXPECT_EQ(pattern.kind, SegmentKind::pattern);
  const std::vector<std::int32_t> same{a, b, kFullTile, a};  // 2 x 2, skew 3 mod 2
  EXPECT_EQ(builder.add_pattern(2, 2, 1, same).data_index, pattern.data_index);
  EXPECT_NE(builder.add_pattern(2, 2, 0, same).data_index, pattern.data_index);
  builder.add_rows(0, 4, {});
  builder.skip_to(4);
  const SegmentMask mask = builder.finish();
  ASSERT_EQ(mask.patterns.size(), 2u);
  EXPECT_EQ(mask.patterns[0], (TilePattern{2, 2, 1, 0}));
  EXPECT_EQ(mask.patterns[1], (TilePattern{2, 2, 0, 2}));
}

// Rows of one run share the pattern, whatever their place in it.
TEST(Patterns, LetRowsThatDifferJoinOneRun) {
  SegmentBuilder builder(16 * 100, 16 * 100, kBlock);
  const std::int32_t a = builder.intern_bitmap(bitmap_of(1).data());
  const std::vector<std::int32_t> tiles{a, kEmptyTile, kFullTile, kEmptyTile, kEmptyTile, a};
  const auto pattern = builder.add_pattern(2, 3, 1, tiles);
  builder.add_rows(0, 1, {});
  const TileSegment segment{0, 1, 0, 1, pattern.kind, pattern.data_index};
  builder.add_rows(1, 99, std::span(&segment, 1));
  const SegmentMask mask = builder.finish();
  EXPECT_EQ(mask.runs.size(), 2u);
  EXPECT_EQ(mask.segments.size(), 1u);
  EXPECT_LT(mask.size_bytes(), 512);
}

TEST(Patterns, GiveTheCellsOfTheirDefinition) {
  std::mt19937 rng(20261128);
  std::int64_t with_patterns = 0;
  for (int i = 0; i < 400; ++i) {
    const PatternCase sample = testing::random_pattern_case(rng);
    const SegmentMask& mask = sample.mask;
    SCOPED_TRACE(::testing::Message() << "case " << i);
    with_patterns += mask.has_patterns() ? 1 : 0;
    ASSERT_TRUE(validate(mask, ValidationLevel::structure));
    ASSERT_EQ(testing::cells_of(mask), sample.cells);
    // Where every pattern came back as one tile, the mask may hold bitmaps that it does not use.
    const SegmentMask plain =
        mask.has_patterns() ? expand_patterns(mask) : segment_from_segment(mask, mask.block);
    EXPECT_FALSE(plain.has_patterns());
    EXPECT_TRUE(plain == segment_from_dense(testing::dense_of(sample.cells), mask.block));
    const TileCounts counts = count_tiles(mask), expected = count_tiles(plain);
    EXPECT_EQ(counts.full, expected.full);
    EXPECT_EQ(counts.partial, expected.partial);
    EXPECT_EQ(counts.empty, expected.empty);
    EXPECT_EQ(counts.allowed_pairs, expected.allowed_pairs);
    std::vector<Interval> intervals, expected_intervals;
    for (std::int64_t q = 0; q < mask.q_len; ++q) {
      row_intervals_of(mask, q, intervals);
      row_intervals_of(plain, q, expected_intervals);
      ASSERT_EQ(intervals, expected_intervals) << "row " << q;
    }
  }
  EXPECT_GT(with_patterns, 200);
}

// Every conversion takes masks with patterns.
TEST(Patterns, AreConvertedToEveryFormat) {
  std::mt19937 rng(33);
  for (int i = 0; i < 60; ++i) {
    const PatternCase sample = testing::random_pattern_case(rng);
    SCOPED_TRACE(::testing::Message() << "case " << i);
    const MaskShape shape{1, 1, {sample.mask.q_len}, {sample.mask.kv_len}};
    const BlockMask mask = make_block_mask(shape, sample.mask.block, {sample.mask});
    const BlockMask dense = testing::block_mask_of(sample.cells, sample.mask.block);
    for (const MaskFormat format : kMaskFormats) {
      for (const BlockShape block : {sample.mask.block, BlockShape{48, 32}}) {
        const Result<BlockMask> converted = convert(mask, format, block);
        if (format == MaskFormat::parametric && !converted) continue;
        ASSERT_TRUE(converted) << converted.error().message;
        EXPECT_EQ(testing::cells_of(*converted, 0), sample.cells) << to_string(format);
      }
    }
    EXPECT_TRUE(equal_cells(mask, dense));
    EXPECT_TRUE(equal_cells(dense, mask));
  }
}

}  // namespace
}  // namespace fdma
