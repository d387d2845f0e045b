// Operations on masks with patterns, against the cells that they should have.
#include <gtest/gtest.h>

#include <random>

#include "../segment/pattern_masks.hpp"
#include "algebra/combine_segments.hpp"
#include "algebra/reblock.hpp"
#include "fdma/formats/validate.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::PatternCase;
using testing::pick;
using testing::random_pattern_case;

// The mask is valid, has these cells, and equals the canonical mask once it is written out. A mask
// without patterns is the canonical one.
void check(const SegmentMask& mask, const Cells& expected) {
  const Result<void> valid = validate(mask, ValidationLevel::canonical);
  ASSERT_TRUE(valid) << valid.error().message;
  ASSERT_EQ(testing::cells_of(mask), expected);
  ASSERT_TRUE(expand_patterns(mask) == segment_from_dense(testing::dense_of(expected), mask.block));
}

Cells transposed(const Cells& cells) {
  Cells result(cells.kv_len, cells.q_len);
  for (std::int64_t q = 0; q < cells.q_len; ++q) {
    for (std::int64_t k = 0; k < cells.kv_len; ++k) result.at(k, q) = cells.get(q, k) ? 1 : 0;
  }
  return result;
}

// A pattern over the whole of a long mask.
SegmentMask repeated(std::int64_t num_tiles, std::int32_t num_rows, std::int32_t num_cols,
                     std::int32_t skew, const std::vector<std::int32_t>& tiles, bool is_causal) {
  const auto n = static_cast<std::int32_t>(num_tiles);
  SegmentBuilder builder(16 * num_tiles, 16 * num_tiles, {16, 16});
  const std::uint64_t words[] = {0x1234567, 1, 2, 3};
  EXPECT_EQ(builder.intern_bitmap(words), 0);
  const auto content = builder.add_pattern(num_rows, num_cols, skew, tiles);
  const TileSegment segment{
      0, is_causal ? 1 : n, 0, is_causal ? 1 : 0, content.kind, content.data_index};
  builder.add_rows(0, n, std::span(&segment, 1));
  return builder.finish();
}

TEST(PatternTranspose, SwapsCells) {
  std::mt19937 rng(331);
  std::int64_t with_patterns = 0;
  for (int i = 0; i < 1500; ++i) {
    const PatternCase sample = random_pattern_case(rng);
    SCOPED_TRACE(::testing::Message() << "case " << i);
    const SegmentMask mask = transpose_segment(sample.mask);
    ASSERT_NO_FATAL_FAILURE(check(mask, transposed(sample.cells)));
    with_patterns += mask.has_patterns() ? 1 : 0;
    if (sample.mask.has_patterns()) {
      ASSERT_NO_FATAL_FAILURE(check(transpose_segment(mask), sample.cells));
    }
  }
  EXPECT_GT(with_patterns, 600);
}

TEST(PatternTranspose, FindsThePeriodOfTheOtherSide) {
  const SegmentMask one = transpose_segment(repeated(40, 1, 5, 2, {0, -2, -1, -2, -2}, false));
  ASSERT_EQ(one.patterns.size(), 1u);
  EXPECT_EQ(one.patterns[0], (TilePattern{1, 5, 3, 0}));
  const SegmentMask row = transpose_segment(repeated(40, 1, 3, 0, {0, -2, -1}, true));
  ASSERT_EQ(row.patterns.size(), 1u);
  EXPECT_EQ(row.patterns[0], (TilePattern{3, 1, 0, 0}));
  EXPECT_EQ(row.runs.size(), 1u);
  const SegmentMask longer = transpose_segment(repeated(40, 1, 4, 2, {0, -2, -1, -2}, false));
  ASSERT_EQ(longer.patterns.size(), 1u);
  EXPECT_EQ(longer.patterns[0], (TilePattern{4, 2, 0, 0}));
}

TEST(PatternTranspose, CostsWhatTheStoredFormCosts) {
  const SegmentMask mask =
      repeated(1 << 16, 3, 5, 2, {0, -2, -1, -2, 0, 0, 0, -2, 0, -1, 0, 0, 0, 0, -2}, true);
  const SegmentMask result = transpose_segment(mask);  // 2^31 tiles
  EXPECT_LT(result.size_bytes(), 1 << 12);
  EXPECT_TRUE(transpose_segment(result) == mask);
  EXPECT_EQ(count_tiles(result).allowed_pairs, count_tiles(mask).allowed_pairs);
}

Cells combined(const Cells& a, const Cells& b, SetOperation operation) {
  Cells result(a.q_len, a.kv_len);
  for (std::int64_t q = 0; q < a.q_len; ++q) {
    for (std::int64_t k = 0; k < a.kv_len; ++k) {
      result.at(q, k) = holds(truth_table(operation), a.get(q, k), b.get(q, k)) ? 1 : 0;
    }
  }
  return result;
}

TEST(PatternSetOperations, CombineCells) {
  std::mt19937 rng(332);
  std::int64_t with_patterns = 0;
  for (int i = 0; i < 500; ++i) {
    const PatternCase a = random_pattern_case(rng);
    const PatternCase b = random_pattern_case(rng, a.mask.q_len, a.mask.kv_len, a.mask.block);
    for (const SetOperation operation :
         {SetOperation::intersection, SetOperation::union_of, SetOperation::difference,
          SetOperation::symmetric_difference}) {
      SCOPED_TRACE(::testing::Message() << "case " << i << " operation " << int(operation));
      const SegmentMask mask = combine_segments(a.mask, b.mask, operation);
      ASSERT_NO_FATAL_FAILURE(check(mask, combined(a.cells, b.cells, operation)));
      with_patterns += mask.has_patterns() ? 1 : 0;
      // With a mask that has none.
      const SegmentMask plain = expand_patterns(b.mask);
      ASSERT_NO_FATAL_FAILURE(
          check(combine_segments(a.mask, plain, operation), combined(a.cells, b.cells, operation)));
      ASSERT_NO_FATAL_FAILURE(
          check(combine_segments(plain, a.mask, operation), combined(b.cells, a.cells, operation)));
    }
  }
  EXPECT_GT(with_patterns, 500);
}

TEST(PatternSetOperations, ComplementCells) {
  std::mt19937 rng(333);
  std::int64_t with_patterns = 0;
  for (int i = 0; i < 1000; ++i) {
    const PatternCase a = random_pattern_case(rng);
    SCOPED_TRACE(::testing::Message() << "case " << i);
    Cells expected = a.cells;
    for (std::int64_t q = 0; q < expected.q_len; ++q) {
      for (std::int64_t k = 0; k < expected.kv_len; ++k)
        expected.at(q, k) = a.cells.get(q, k) ? 0 : 1;
    }
    const SegmentMask mask = complement_segment(a.mask);
    ASSERT_NO_FATAL_FAILURE(check(mask, expected));
    with_patterns += mask.has_patterns() ? 1 : 0;
  }
  EXPECT_GT(with_patterns, 400);
}

TEST(PatternSetOperations, CostWhatTheStoredFormCosts) {
  const std::int64_t n = 1 << 16;  // 2^32 tiles
  const SegmentMask a = repeated(n, 1, 7, 1, {0, -2, -1, -2, 0, -1, -2}, true);
  const SegmentMask b = repeated(
      n, 4, 5, 0, {0, -2, -1, -2, 0, 0, 0, -2, 0, -1, -2, 0, 0, -1, -2, 0, 0, 0, 0, -2}, false);
  const SegmentMask both = combine_segments(a, b, SetOperation::intersection);
  EXPECT_EQ(both.patterns.size(), 1u);
  EXPECT_EQ(both.runs.size(), 1u);
  EXPECT_TRUE(combine_segments(both, a, SetOperation::difference).segments.empty());
  EXPECT_TRUE(combine_segments(both, both, SetOperation::symmetric_difference).segments.empty());
  const SegmentMask not_a = complement_segment(a);
  EXPECT_LT(not_a.size_bytes(), 1 << 12);
  EXPECT_EQ(count_tiles(not_a).allowed_pairs + count_tiles(a).allowed_pairs, 256 * n * n);
  const SegmentMask all = combine_segments(a, not_a, SetOperation::union_of);
  EXPECT_FALSE(all.has_patterns());
  EXPECT_EQ(count_tiles(all).full, n * n);
}

TEST(PatternShift, MovesCells) {
  std::mt19937 rng(334);
  std::int64_t with_patterns = 0;
  for (int i = 0; i < 2000; ++i) {
    const PatternCase a = random_pattern_case(rng);
    const auto distance = [&](std::int64_t side) {
      const std::int64_t tiles = pick(rng, -4, 4) * side;
      return pick(rng, 0, 1) == 0 ? tiles : tiles + pick(rng, -side, side);
    };
    const std::int64_t dq = distance(a.mask.block.block_q), dk = distance(a.mask.block.block_kv);
    SCOPED_TRACE(::testing::Message() << "case " << i << ": " << dq << ", " << dk);
    Cells expected(a.cells.q_len, a.cells.kv_len);
    for (std::int64_t q = std::max<std::int64_t>(dq, 0);
         q < std::min(a.cells.q_len, a.cells.q_len + dq); ++q) {
      for (std::int64_t k = std::max<std::int64_t>(dk, 0);
           k < std::min(a.cells.kv_len, a.cells.kv_len + dk); ++k) {
        expected.at(q, k) = a.cells.get(q - dq, k - dk) ? 1 : 0;
      }
    }
    const SegmentMask mask = shift_segment(a.mask, dq, dk);
    ASSERT_NO_FATAL_FAILURE(check(mask, expected));
    with_patterns += mask.has_patterns() ? 1 : 0;
  }
  EXPECT_GT(with_patterns, 500);
}

CellWindow random_window(std::mt19937& rng, const SegmentMask& mask) {
  const auto range = [&](std::int64_t length, std::int64_t side) {
    std::int64_t begin = pick(rng, 0, length / 2), end = pick(rng, begin, length);
    if (pick(rng, 0, 1) == 0) begin = begin / side * side;
    if (pick(rng, 0, 2) == 0) end = length;
    return std::pair{begin, end};
  };
  const auto [q_begin, q_end] = range(mask.q_len, mask.block.block_q);
  const auto [kv_begin, kv_end] = range(mask.kv_len, mask.block.block_kv);
  return {q_begin, q_end, kv_begin, kv_end};
}

TEST(PatternCrop, CutsCells) {
  std::mt19937 rng(335);
  std::int64_t with_patterns = 0;
  for (int i = 0; i < 2000; ++i) {
    const PatternCase a = random_pattern_case(rng);
    const CellWindow window = random_window(rng, a.mask);
    SCOPED_TRACE(::testing::Message() << "case " << i);
    const SegmentMask mask = reblock(a.mask, window, a.mask.block);
    ASSERT_NO_FATAL_FAILURE(check(
        mask, crop_cells(a.cells, window.q_begin, window.q_end, window.kv_begin, window.kv_end)));
    with_patterns += mask.has_patterns() ? 1 : 0;
  }
  EXPECT_GT(with_patterns, 400);
}

TEST(PatternReblock, KeepsCells) {
  std::mt19937 rng(336);
  std::int64_t with_patterns = 0;
  const std::int32_t sides[] = {16, 32, 48, 64, 128};
  for (int i = 0; i < 2000; ++i) {
    const PatternCase a = random_pattern_case(rng);
    CellWindow window{0, a.mask.q_len, 0, a.mask.kv_len};
    if (pick(rng, 0, 1) == 0) window = random_window(rng, a.mask);
    const BlockShape block{sides[pick(rng, 0, 4)], sides[pick(rng, 0, 4)]};
    SCOPED_TRACE(::testing::Message() << "case " << i);
    const SegmentMask mask = reblock(a.mask, window, block);
    ASSERT_NO_FATAL_FAILURE(check(
        mask, crop_cells(a.cells, window.q_begin, window.q_end, window.kv_begin, window.kv_end)));
    with_patterns += mask.has_patterns() ? 1 : 0;
  }
  EXPECT_GT(with_patterns, 300);
}

TEST(PatternReblock, CostsWhatTheStoredFormCosts) {
  const std::int64_t n = 1 << 16;  // 2^32 tiles
  const SegmentMask mask = repeated(n, 1, 7, 1, {0, -2, -1, -2, 0, -1, -2}, true);
  const SegmentMask whole = reblock(mask, {0, mask.q_len, 0, mask.kv_len}, {64, 64});
  EXPECT_LT(whole.size_bytes(), 1 << 16);
  EXPECT_EQ(count_tiles(whole).allowed_pairs, count_tiles(mask).allowed_pairs);
  const CellWindow window{5, mask.q_len, 21, mask.kv_len};
  const SegmentMask cut = reblock(mask, window, mask.block);
  const SegmentMask cut_in_blocks = reblock(mask, window, {64, 64});
  EXPECT_LT(cut.size_bytes(), 1 << 16);
  EXPECT_LT(cut_in_blocks.size_bytes(), 1 << 16);
  EXPECT_EQ(count_tiles(cut).allowed_pairs, count_tiles(cut_in_blocks).allowed_pairs);
}

TEST(PatternColumns, ListQueryIntervals) {
  std::mt19937 rng(337);
  for (int i = 0; i < 1000; ++i) {
    const PatternCase a = random_pattern_case(rng);
    SCOPED_TRACE(::testing::Message() << "case " << i);
    ASSERT_TRUE(columns_from_segment(a.mask) == columns_from_segment(expand_patterns(a.mask)));
  }
}

// Every second tile column up to the diagonal: one interval for each key, under 2^25 tiles.
TEST(PatternColumns, CostWhatTheResultCosts) {
  const std::int64_t n = 1 << 13;
  const ColumnIntervals columns =
      columns_from_segment(repeated(n, 1, 2, 0, {kFullTile, kEmptyTile}, true));
  const auto q_len = static_cast<std::int32_t>(16 * n);
  ASSERT_EQ(std::ssize(columns.intervals), 8 * n);
  EXPECT_EQ(columns.intervals.front(), (Interval{0, q_len}));
  EXPECT_EQ(columns.intervals.back(), (Interval{q_len - 32, q_len}));
}

TEST(PatternEquality, IsThatOfCells) {
  std::mt19937 rng(338);
  for (int i = 0; i < 500; ++i) {
    const PatternCase a = random_pattern_case(rng);
    SCOPED_TRACE(::testing::Message() << "case " << i);
    const MaskShape shape{1, 1, {a.mask.q_len}, {a.mask.kv_len}};
    const BlockMask mask = make_block_mask(shape, a.mask.block, {a.mask});
    // The same cells by another way, and in other blocks.
    const SegmentMask twice = complement_segment(complement_segment(a.mask));
    EXPECT_TRUE(equal_cells(mask, make_block_mask(shape, a.mask.block, {twice})));
    const BlockShape block{48, 32};
    const SegmentMask in_blocks = segment_from_segment(a.mask, block);
    EXPECT_TRUE(equal_cells(mask, make_block_mask(shape, block, {in_blocks})));
    Cells other = a.cells;
    char& cell = other.at(pick(rng, 0, other.q_len - 1), pick(rng, 0, other.kv_len - 1));
    cell = cell != 0 ? 0 : 1;
    EXPECT_FALSE(equal_cells(mask, testing::block_mask_of(other, block)));
    EXPECT_FALSE(equal_cells(testing::block_mask_of(other, a.mask.block), mask));
  }
}

TEST(PatternEquality, CostsWhatTheStoredFormCosts) {
  const std::int64_t n = 1 << 16;  // 2^32 tiles
  const std::vector<std::int32_t> tiles{0, -2, -1, -2, 0, -1, -2};
  const SegmentMask one = repeated(n, 1, 7, 1, tiles, true);
  SegmentMask other = transpose_segment(transpose_segment(one));
  other.patterns.front().skew = 2;
  const MaskShape shape{1, 1, {16 * n}, {16 * n}};
  const auto is_equal = [&](const SegmentMask& a, const SegmentMask& b) {
    return equal_cells(make_block_mask(shape, a.block, {a}), make_block_mask(shape, b.block, {b}));
  };
  EXPECT_TRUE(is_equal(one, complement_segment(complement_segment(one))));
  EXPECT_TRUE(is_equal(one, segment_from_segment(one, {32, 32})));
  EXPECT_FALSE(is_equal(one, other));
}

}  // namespace
}  // namespace fdma
