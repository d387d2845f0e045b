// Tests conversions between every pair of formats against the cells, for any block and length.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "cell_oracle.hpp"
#include "fdma/formats/row_bands.hpp"
#include "fdma/formats/validate.hpp"

namespace fdma {
namespace {

using testing::block_mask_of;
using testing::Cells;
using testing::cells_of;
using testing::pick;

SegmentMask causal(std::int64_t n, BlockShape block) {
  ParametricMask mask;
  mask.q_len = mask.kv_len = mask.kv_end = n;
  mask.right = 0;
  return segment_from_parametric(mask, block);
}

// The mask is stored in every format and block that can hold it. Each of these and every conversion
// between two of them must have the same cells.
void expect_round_trips(std::mt19937& rng, const Cells& cells) {
  const BlockMask origin = block_mask_of(cells, testing::random_block(rng));
  ASSERT_EQ(cells_of(origin, 0), cells);
  for (const MaskFormat from : kMaskFormats) {
    const BlockShape block = testing::random_block(rng);
    const auto first = convert(origin, from, block);
    if (!first) {
      ASSERT_EQ(from, MaskFormat::parametric);
      ASSERT_EQ(first.error().code, ErrorCode::unsupported);
      continue;
    }
    ASSERT_EQ(first->format(), from);
    ASSERT_EQ(cells_of(*first, 0), cells) << to_string(from);
    const auto valid = validate(*first, ValidationLevel::canonical);
    ASSERT_TRUE(valid) << to_string(from) << ": " << valid.error().message;
    ASSERT_TRUE(equal_cells(origin, *first));
    for (const MaskFormat to : kMaskFormats) {
      const BlockShape other = testing::random_block(rng);
      const auto second = convert(*first, to, other);
      if (!second) {
        ASSERT_EQ(to, MaskFormat::parametric);
        continue;
      }
      ASSERT_EQ(cells_of(*second, 0), cells)
          << to_string(from) << " " << block.block_q << " x " << block.block_kv << " to "
          << to_string(to) << " " << other.block_q << " x " << other.block_kv;
      // The result is canonical, whichever way led to it.
      const auto direct = convert(origin, to, other);
      ASSERT_TRUE(direct);
      ASSERT_EQ(second->groups, direct->groups) << to_string(from) << " to " << to_string(to);
    }
  }
}

TEST(Convert, KeepsEveryCellBetweenAnyTwoFormatsAndBlocks) {
  EXPECT_TRUE(rc::check("round trips", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const std::int64_t scale = pick(rng, 0, 5) == 0 ? 600 : 200;
    const Cells cells = testing::random_cells(rng, pick(rng, 1, scale), pick(rng, 1, scale));
    expect_round_trips(rng, cells);
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

TEST(Convert, TakesLengthsOfZero) {
  std::mt19937 rng(1);
  for (const auto& [q_len, kv_len] : {std::pair{0, 0}, std::pair{0, 70}, std::pair{70, 0},
                                      std::pair{1, 1}, std::pair{1, 300}, std::pair{300, 1}}) {
    expect_round_trips(rng, Cells(q_len, kv_len));
    expect_round_trips(rng, testing::make_cells(q_len, kv_len, [](auto, auto) { return true; }));
  }
}

TEST(Convert, KeepsGroupsAndSpec) {
  std::mt19937 rng(5);
  for (int trial = 0; trial < 20; ++trial) {
    BlockMask mask = testing::random_block_mask(rng, 100, 130, {32, 16});
    mask.spec = "causal";
    mask.origin.q_offset = 7;
    for (const MaskFormat format : kMaskFormats) {
      if (format == MaskFormat::parametric) continue;
      const auto other = convert(mask, format, {48, 80});
      ASSERT_TRUE(other);
      EXPECT_EQ(other->group_of, mask.group_of);
      EXPECT_EQ(other->shape, mask.shape);
      EXPECT_EQ(other->origin, mask.origin);
      EXPECT_EQ(other->spec, mask.spec);
      EXPECT_EQ(other->block, (BlockShape{48, 80}));
      EXPECT_TRUE(equal_cells(mask, *other));
      EXPECT_TRUE(validate(*other, ValidationLevel::canonical));
    }
  }
}

TEST(Convert, RejectsABadBlock) {
  const BlockMask mask = block_mask_of(Cells(10, 10), {16, 16});
  for (const BlockShape block : {BlockShape{0, 16}, BlockShape{16, 24}, BlockShape{16, 2048}}) {
    const auto result = convert(mask, MaskFormat::bcsr, block);
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().code, ErrorCode::invalid_argument);
  }
}

TEST(BcsrFromSegment, GivesTheArraysOfItsExample) {
  const BcsrMask mask = bcsr_from_segment(causal(32, {16, 16}));
  EXPECT_EQ(mask.row_offsets, (std::vector<std::int64_t>{0, 1, 3}));
  EXPECT_EQ(mask.col_indices, (std::vector<std::int32_t>{0, 0, 1}));
  EXPECT_EQ(mask.bitmap_index, (std::vector<std::int32_t>{0, -1, 0}));
}

TEST(ColumnsFromSegment, GivesTheArraysOfItsExample) {
  const ColumnIntervals mask = columns_from_segment(causal(3, {16, 16}));
  EXPECT_EQ(mask.offsets, (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(mask.intervals, (std::vector<Interval>{{0, 3}, {1, 3}, {2, 3}}));
}

TEST(BcsrFromBitset, KeepsEmptyRows) {
  const Cells cells = testing::make_cells(
      200, 200, [](std::int64_t q, std::int64_t k) { return q / 32 % 2 == 1 && k == 77; });
  const BlockBitset bitset = bitset_from_segment(segment_from_dense(dense_of(cells), {32, 32}));
  const BcsrMask bcsr = bcsr_from_segment(segment_from_bitset(bitset));
  EXPECT_EQ(bcsr.row_offsets, (std::vector<std::int64_t>{0, 0, 1, 1, 2, 2, 3, 3}));
  EXPECT_EQ(cells_of(bcsr), cells);
}

TEST(ColumnsFromSegment, OfCausalOverAMillionTokensHasOneIntervalAKey) {
  const std::int64_t n = std::int64_t{1} << 20;
  const ColumnIntervals mask = columns_from_segment(causal(n, {128, 128}));
  ASSERT_EQ(mask.intervals.size(), static_cast<std::size_t>(n));
  for (std::int64_t k = 0; k < n; k += 997) {
    EXPECT_EQ(mask.intervals[static_cast<std::size_t>(k)],
              (Interval{static_cast<std::int32_t>(k), static_cast<std::int32_t>(n)}));
  }
}

TEST(SegmentFromSegment, OfCausalOverAMillionTokensIsTheOtherCausal) {
  const std::int64_t n = (std::int64_t{1} << 20) + 37;
  EXPECT_EQ(segment_from_segment(causal(n, {64, 64}), {128, 128}), causal(n, {128, 128}));
  EXPECT_EQ(segment_from_segment(causal(n, {128, 64}), {256, 256}), causal(n, {256, 256}));
}

TEST(DenseFromSegment, RejectsMoreBytesThanAllowed) {
  const auto result = dense_from_segment(causal(1 << 20, {128, 128}), 1 << 30);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().code, ErrorCode::out_of_memory);
  EXPECT_NE(result.error().message.find("137438953472 bytes"), std::string::npos);
}

TEST(EqualCells, SeesOneCell) {
  std::mt19937 rng(3);
  for (int trial = 0; trial < 100; ++trial) {
    Cells cells = testing::random_cells(rng, pick(rng, 1, 200), pick(rng, 1, 200));
    const BlockMask before = block_mask_of(cells, testing::random_block(rng));
    char& cell = cells.at(pick(rng, 0, cells.q_len - 1), pick(rng, 0, cells.kv_len - 1));
    cell = cell ? 0 : 1;
    const BlockMask after = block_mask_of(cells, testing::random_block(rng));
    EXPECT_FALSE(equal_cells(before, after));
    EXPECT_TRUE(equal_cells(after, *convert(after, MaskFormat::columns, {16, 16})));
  }
}

TEST(EqualCells, ComparesCountsAndLengthsPerElement) {
  const Cells cells = testing::make_cells(20, 30, [](auto, auto) { return true; });
  const SegmentMask segments = segment_from_dense(dense_of(cells), {16, 16});
  MaskShape uniform{2, 1, {20}, {30}}, per_element{2, 1, {20, 20}, {30, 30}}, one{1, 1, {20}, {30}};
  const std::vector<std::int32_t> twice{0, 0};
  const BlockMask a = make_block_mask(uniform, {16, 16}, {segments}, twice);
  const BlockMask b = make_block_mask(per_element, {16, 16}, {segments}, twice);
  EXPECT_TRUE(equal_cells(a, b));
  EXPECT_FALSE(equal_cells(a, make_block_mask(one, {16, 16}, {segments})));
}

}  // namespace
}  // namespace fdma
