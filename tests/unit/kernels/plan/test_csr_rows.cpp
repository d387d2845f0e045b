// Compares the rows of masks as CSR with the cells of the oracles, and tests the errors of the
// cuSPARSE path, which need no GPU.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "backend/mask_cases.hpp"
#include "cusparse/csr_rows.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/kernels/cusparse_attention.hpp"

namespace fdma {
namespace {

using testing::Cells;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using testing::MaskCase;

// Returns the columns of every row as a device would write them, and checks what CsrRows promises.
std::vector<std::int32_t> columns_of(const CsrRows& rows) {
  EXPECT_EQ(rows.row_offsets.size(), static_cast<std::size_t>(rows.q_len) + 1);
  EXPECT_EQ(rows.interval_offsets.size(), static_cast<std::size_t>(rows.q_len) + 1);
  EXPECT_EQ(rows.interval_offsets.back(), static_cast<std::int64_t>(rows.intervals.size()));
  std::vector<std::int32_t> columns;
  for (std::size_t q = 0; q + 1 < rows.row_offsets.size(); ++q) {
    EXPECT_EQ(rows.row_offsets[q], static_cast<std::int64_t>(columns.size()));
    for (std::int64_t i = rows.interval_offsets[q]; i < rows.interval_offsets[q + 1]; ++i) {
      const Interval keys = rows.intervals[static_cast<std::size_t>(i)];
      EXPECT_LT(keys.begin, keys.end);
      for (std::int32_t k = keys.begin; k < keys.end; ++k) columns.push_back(k);
    }
  }
  EXPECT_EQ(rows.num_cells(), static_cast<std::int64_t>(columns.size()));
  return columns;
}

std::vector<std::int32_t> columns_of(const Cells& cells) {
  std::vector<std::int32_t> columns;
  for (std::int64_t q = 0; q < cells.q_len; ++q) {
    for (std::int64_t k = 0; k < cells.kv_len; ++k)
      if (cells.get(q, k)) columns.push_back(static_cast<std::int32_t>(k));
  }
  return columns;
}

void expect_cells(const MaskCase& mask) {
  for (std::int64_t b = 0; b < mask.mask.shape.num_batches; ++b) {
    for (std::int64_t h = 0; h < mask.mask.shape.num_heads; ++h) {
      const CsrRows rows =
          csr_rows_of(segment_of_group(mask.mask, mask.mask.group(b, h), mask.mask.block));
      EXPECT_EQ(rows.q_len, mask.mask.shape.q_len(b));
      EXPECT_EQ(rows.kv_len, mask.mask.shape.kv_len(b));
      ASSERT_EQ(columns_of(rows), columns_of(mask.at(b, h)))
          << mask.name << " of " << b << ", " << h;
    }
  }
}

MaskCase causal(std::int64_t q_len, std::int64_t kv_len) {
  return testing::case_of("causal",
                          testing::make_cells(q_len, kv_len, [](auto q, auto k) { return k <= q; }),
                          {16, 16});
}

TEST(CsrRows, OfTheExample) {
  const CsrRows rows = csr_rows_of(segment_of_group(causal(3, 3).mask, 0, {16, 16}));
  EXPECT_THAT(rows.row_offsets, ElementsAre(0, 1, 3, 6));
  EXPECT_THAT(rows.interval_offsets, ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(rows.intervals, ElementsAre(Interval{0, 1}, Interval{0, 2}, Interval{0, 3}));
}

TEST(CsrRows, HaveTheCellsOfTheMaskSuite) {
  for (const auto& [q_len, kv_len] : {std::pair{193, 193}, {257, 130}, {61, 300}, {1, 129}}) {
    for (const BlockShape block : {BlockShape{128, 128}, {64, 32}}) {
      for (const MaskCase& mask : testing::suite_cases(q_len, kv_len, block)) expect_cells(mask);
    }
  }
}

TEST(CsrRows, HaveTheCellsOfRandomMasksOfEveryFormatAndHead) {
  std::mt19937 rng(7);
  for (int trial = 0; trial < 40; ++trial) {
    expect_cells(
        testing::random_case(rng, 1 + trial % 3, 1 + trial % 4, 200, testing::random_block(rng)));
  }
}

TEST(CsrRows, KeepEmptyRowsAndMasks) {
  expect_cells(testing::case_of(
      "some rows", testing::make_cells(70, 90, [](auto q, auto) { return q % 3 == 1; }), {16, 16}));
  const CsrRows none = csr_rows_of(segment_of_group(
      testing::case_of("none", testing::make_cells(5, 9, [](auto, auto) { return false; }),
                       {16, 16})
          .mask,
      0, {16, 16}));
  EXPECT_THAT(none.row_offsets, ElementsAre(0, 0, 0, 0, 0, 0));
  EXPECT_TRUE(none.intervals.empty());
}

TEST(CheckMaskFits, RejectsOtherHeadsElementsAndLengths) {
  const MaskCase mask = causal(20, 30);
  AttentionShape shape = testing::shape_for(mask.mask, 2, 4, 2);
  EXPECT_TRUE(check_mask_fits(mask.mask, shape));
  BlockMask wrong = mask.mask;
  wrong.shape.num_heads = 3;
  auto checked = check_mask_fits(wrong, shape);
  ASSERT_FALSE(checked);
  EXPECT_EQ(checked.error().code, ErrorCode::shape_mismatch);
  EXPECT_THAT(checked.error().message, HasSubstr("expected 1 or 4 (heads_q) heads, got 3"));
  wrong = mask.mask;
  wrong.shape.num_batches = 3;
  checked = check_mask_fits(wrong, shape);
  ASSERT_FALSE(checked);
  EXPECT_THAT(checked.error().message, HasSubstr("expected 1 or 2 (batch) batch elements, got 3"));
  shape.kv_lens = {31};
  checked = check_mask_fits(mask.mask, shape);
  ASSERT_FALSE(checked);
  EXPECT_THAT(checked.error().message,
              HasSubstr("expected lengths 20 x 31 of batch element 0, got 20 x 30"));
}

// This also holds in a build without CUDA or without cusparse.h.
TEST(CusparseAttention, SaysHowToGetALibraryThatIsNotThere) {
  const auto version = cusparse_version("/no/such/folder/libcusparse.so.12");
  ASSERT_FALSE(version);
  EXPECT_EQ(version.error().code, ErrorCode::unsupported);
  EXPECT_THAT(version.error().message, HasSubstr("pip install"));
}

TEST(CusparseAttention, NeedsALibraryAndAGpu) {
  const MaskCase mask = causal(20, 30);
  CusparseOptions options;
  options.library = "/no/such/folder/libcusparse.so.12";
  const auto made =
      CusparseAttention::make(mask.mask, testing::shape_for(mask.mask, 1, 2, 1), {}, options);
  ASSERT_FALSE(made);
  EXPECT_EQ(made.error().code, ErrorCode::unsupported) << made.error().message;
}

}  // namespace
}  // namespace fdma
