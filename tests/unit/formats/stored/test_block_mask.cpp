// Tests the names of formats, the shapes and the groups of block masks.
#include <gtest/gtest.h>

#include "cell_oracle.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma {
namespace {

TEST(MaskFormat, NamesGoBothWays) {
  for (std::size_t i = 0; i < kMaskFormats.size(); ++i) {
    const MaskFormat format = kMaskFormats[i];
    EXPECT_EQ(static_cast<std::size_t>(format), i);
    const auto parsed = parse_mask_format(to_string(format));
    ASSERT_TRUE(parsed);
    EXPECT_EQ(*parsed, format);
  }
  const auto unknown = parse_mask_format("csr");
  ASSERT_FALSE(unknown);
  EXPECT_EQ(unknown.error().message,
            "format: 'csr', expected one of segment, parametric, bitset, bcsr, columns, dense");
}

TEST(MaskShape, RejectsWrongCountsAndLengths) {
  EXPECT_TRUE(validate(MaskShape{2, 3, {5}, {6, 7}}));
  const auto code = [](const MaskShape& shape) { return validate(shape).error().code; };
  EXPECT_EQ(code({0, 1, {5}, {5}}), ErrorCode::invalid_argument);
  EXPECT_EQ(code({1, -1, {5}, {5}}), ErrorCode::invalid_argument);
  EXPECT_EQ(code({3, 1, {5, 5}, {5}}), ErrorCode::shape_mismatch);
  EXPECT_EQ(code({1, 1, {}, {5}}), ErrorCode::shape_mismatch);
  EXPECT_EQ(code({1, 1, {-1}, {5}}), ErrorCode::invalid_argument);
  EXPECT_EQ(code({1, 1, {5}, {kMaxLength + 1}}), ErrorCode::invalid_argument);
  EXPECT_EQ(code({std::int64_t{1} << 40, std::int64_t{1} << 40, {5}, {5}}),
            ErrorCode::invalid_argument);
  EXPECT_EQ(validate(MaskShape{2, 1, {4, 9}, {5, -3}}).error().message,
            "kv_lens[1]: -3, expected 0 to 2147483647");
}

TEST(BlockShape, RejectsSidesThatAreNotMultiplesOf16) {
  EXPECT_TRUE(validate(BlockShape{16, 1024}));
  EXPECT_EQ(validate(BlockShape{8, 16}).error().message,
            "block_q: 8, expected a multiple of 16 from 16 to 1024");
  EXPECT_EQ(validate(BlockShape{16, 1040}).error().message,
            "block_kv: 1040, expected a multiple of 16 from 16 to 1024");
}

TEST(MakeBlockMask, StoresEqualMasksOnce) {
  const BlockShape block{16, 16};
  const auto stripe = [&](std::int64_t step) {
    return segment_from_dense(
        dense_of(testing::make_cells(40, 40, [&](auto, auto k) { return k % step == 0; })), block);
  };
  const BlockMask mask =
      make_block_mask({2, 2, {40}, {40}}, block, {stripe(3), stripe(2), stripe(3), stripe(2)});
  EXPECT_EQ(mask.num_groups(), 2);
  EXPECT_EQ(mask.group_of, (std::vector<std::int32_t>{0, 1, 0, 1}));
  EXPECT_EQ(mask.format(), MaskFormat::segment);
  EXPECT_EQ(mask.size_bytes(), stripe(2).size_bytes() + stripe(3).size_bytes());
  const BlockMask one = make_block_mask({2, 2, {40}, {40}}, block, {stripe(5)});
  EXPECT_EQ(one.group_of, (std::vector<std::int32_t>{0, 0, 0, 0}));
}

TEST(MakeBlockMask, DropsMasksThatNoPairUses) {
  const BlockShape block{16, 16};
  const SegmentMask empty = segment_from_dense(dense_of(testing::Cells(20, 20)), block);
  const SegmentMask full = segment_from_dense(
      dense_of(testing::make_cells(20, 20, [](auto, auto) { return true; })), block);
  const std::vector<std::int32_t> of{1, 1};
  const BlockMask mask = make_block_mask({1, 2, {20}, {20}}, block, {empty, full}, of);
  ASSERT_EQ(mask.num_groups(), 1);
  EXPECT_EQ(std::get<std::vector<SegmentMask>>(mask.groups)[0], full);
}

}  // namespace
}  // namespace fdma
