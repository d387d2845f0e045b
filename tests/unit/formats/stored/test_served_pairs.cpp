// Tests masks that hold for one batch element or head alone, through every operation that makes one
// mask from another.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fdma/formats/convert.hpp"
#include "fdma/formats/interop/flex_block_mask.hpp"
#include "fdma/formats/served_pairs.hpp"
#include "fdma/formats/set_algebra.hpp"

namespace fdma {
namespace {

// Returns a causal mask of these counts of elements and heads, marked as written with b and h.
BlockMask marked(std::int64_t batches = 1, std::int64_t heads = 1) {
  ParametricMask causal;
  causal.q_len = causal.kv_len = causal.kv_end = 32;
  causal.right = 0;
  BlockMask mask = make_block_mask({batches, heads, {32}, {32}}, {16, 16},
                                   {segment_from_parametric(causal, {16, 16})});
  mask.is_per_batch = mask.is_per_head = true;
  return mask;
}

BlockMask unmarked(std::int64_t batches = 1, std::int64_t heads = 1) {
  BlockMask mask = marked(batches, heads);
  mask.is_per_batch = mask.is_per_head = false;
  return mask;
}

std::string marks_of(const Result<BlockMask>& mask) {
  if (!mask) return mask.error().message;
  return std::string(mask->is_per_batch ? "b" : "") + (mask->is_per_head ? "h" : "");
}

std::string error_of(const Result<void>& status) {
  return status ? "no error" : status.error().message;
}

TEST(CheckServes, RefusesSeveralForOne) {
  EXPECT_EQ(error_of(check_serves(marked(), 1, 4)),
            "mask: it was written with h and compiled for one head, the tensors have 4; compile it "
            "with heads=4");
  EXPECT_EQ(error_of(check_serves(marked(), 2, 4)),
            "mask: it was written with b, or with a table that has an entry for each batch "
            "element, and compiled for one, the tensors have 2; compile it with batch=2");
  EXPECT_EQ(check_serves(marked(), 1, 4).error().code, ErrorCode::shape_mismatch);
  EXPECT_EQ(error_of(check_serves(marked(), 1, 1)), "no error");
  EXPECT_EQ(error_of(check_serves(marked(2, 4), 2, 4)), "no error");
  EXPECT_EQ(error_of(check_serves(unmarked(), 2, 4)), "no error");
}

TEST(ServedPairs, EveryOperationOnOneMaskKeepsTheMarks) {
  const BlockMask mask = marked();
  EXPECT_EQ(marks_of(convert(mask, MaskFormat::bcsr, {32, 16})), "bh");
  EXPECT_EQ(marks_of(convert(mask, MaskFormat::segment, {16, 16})), "bh");
  EXPECT_EQ(marks_of(complement(mask)), "bh");
  EXPECT_EQ(marks_of(shift(mask, 1, 2)), "bh");
  EXPECT_EQ(marks_of(transpose(mask)), "bh");
  SetAlgebraOptions options;
  options.format = MaskFormat::dense;
  EXPECT_EQ(marks_of(complement(mask, options)), "bh");
  EXPECT_EQ(marks_of(crop(mask, {0, 16, 0, 32, 0, 1, 0, 1})), "bh");
}

TEST(ServedPairs, OneThatACropChoseServesAll) {
  const BlockMask mask = marked(2, 4);
  EXPECT_EQ(marks_of(crop(mask, {0, 32, 0, 32, 1, 2, 3, 4})), "");
  EXPECT_EQ(marks_of(crop(mask, {0, 32, 0, 32, 0, 2, 3, 4})), "b");
  EXPECT_EQ(marks_of(crop(mask, {0, 32, 0, 32, 0, 1, 2, 4})), "h");
}

TEST(ServedPairs, CombineRefusesOneForSeveral) {
  for (const SetOperation operation :
       {SetOperation::intersection, SetOperation::union_of, SetOperation::difference,
        SetOperation::symmetric_difference}) {
    const std::string refusal =
        "combine: one mask was written with h and compiled for one head, the other has 4; compile "
        "it with heads=4";
    EXPECT_EQ(marks_of(combine(marked(), unmarked(1, 4), operation)), refusal);
    EXPECT_EQ(marks_of(combine(unmarked(1, 4), marked(), operation)), refusal);
    EXPECT_EQ(marks_of(combine(marked(), unmarked(3, 1), operation)),
              "combine: one mask was written with b, or with a table that has an entry for each "
              "batch element, and compiled for one, the other has 3; compile it with batch=3");
    EXPECT_EQ(marks_of(combine(marked(), unmarked(), operation)), "bh");
    EXPECT_EQ(marks_of(combine(unmarked(), marked(), operation)), "bh");
    EXPECT_EQ(marks_of(combine(marked(2, 4), unmarked(), operation)), "bh");
    EXPECT_EQ(marks_of(combine(unmarked(), unmarked(2, 4), operation)), "");
  }
}

TEST(ServedPairs, CellsOfAFlexMaskAreItsHeads) {
  const auto flex = flex_from_block_mask(unmarked(1, 4));
  ASSERT_TRUE(flex) << flex.error().message;
  const BlockMask cells = marked(), shared = unmarked();
  EXPECT_EQ(marks_of(block_mask_from_flex(*flex, &shared)), "");
  EXPECT_EQ(marks_of(block_mask_from_flex(*flex, &cells)),
            "cells: it was written with h and compiled for one head, the BlockMask has 4; compile "
            "it with heads=4");
}

}  // namespace
}  // namespace fdma
