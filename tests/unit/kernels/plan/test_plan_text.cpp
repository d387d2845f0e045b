// Tests the text form of a plan, letter by letter.
#include <gtest/gtest.h>

#include "backend/mask_cases.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {
namespace {

using testing::MaskCase;

TEST(PlanText, ShowsHeaderCountsAndWorkTiles) {
  const MaskCase each = testing::case_of(
      "", testing::make_cells(40, 50, [](auto q, auto k) { return k <= q + 10; }), {16, 16});
  PlanOptions options;
  options.tile = {16, 16};
  AttentionShape shape = testing::shape_for(each.mask, 1, 2, 1);
  shape.head_dim = 64;
  shape.k_dtype = shape.v_dtype = DType::bfloat16;
  const auto plan = make_plan(each.mask, shape, {.key_bias = true}, options);
  ASSERT_TRUE(plan);
  EXPECT_EQ(to_text(*plan, 3),
            "plan cpu tile 16x16 score key_bias\n"
            "shape batch 1 heads 2/1 q_len 40 kv_len 50 head_dim 64/128 dtypes float32 bfloat16 "
            "bfloat16 -> float32\n"
            "work tiles 6 (0 empty), 568 bytes\n"
            "tiles full 6 bitmap 12 rows 0 columns 0 (0 entries) gather 0 (0 entries)\n"
            "costs by cpu, 8 workers\n"
            "choice columns: scan 4.21 us; not gather 4.21 us; rule: gains at least 5 % of a row, "
            "lists 0 % of the mask\n"
            "choice heads in L2: 1 of 1 KV heads 0 us; rule: what is read again fits in 33554432 "
            "bytes\n"
            "work tile 0: batch 0 head 0 q_tile 2, 4 tiles: full [0, 2), bitmap 2 [2, 3), "
            "bitmap 3 [3, 4)\n"
            "work tile 1: batch 0 head 1 q_tile 2, 4 tiles: full [0, 2), bitmap 2 [2, 3), "
            "bitmap 3 [3, 4)\n"
            "work tile 2: batch 0 head 0 q_tile 1, 3 tiles: full [0, 1), bitmap 0 [1, 2), "
            "bitmap 1 [2, 3)\n"
            ".. 3 more work tiles\n");
}

// The live ranges are long and thin, and rows from 256 on have no keys.
TEST(PlanText, ShowsColumnsKvIndexListsAndWorkTilesWithoutKeys) {
  testing::Cells cells(384, 1024);
  for (std::int64_t k = 0; k < 1024; k += 9) {
    for (std::int64_t q = k % 5 * 40; q < 180 + k % 7 * 10; ++q) cells.at(q, k) = 1;
  }
  const MaskCase each = testing::case_of("", cells, {128, 128});
  const AttentionShape shape = testing::shape_for(each.mask, 1, 1, 1);
  const auto work_tiles_of = [&](ColumnMode mode) {
    PlanOptions options;
    options.columns = mode;
    const std::string text = to_text(*make_plan(each.mask, shape, {}, options));
    return text.substr(text.find("tiles full"));
  };
  EXPECT_EQ(work_tiles_of(ColumnMode::gather),
            "tiles full 0 bitmap 0 rows 0 columns 0 (0 entries) gather 2 (205 entries)\n"
            "costs by cpu, 8 workers\n"
            "choice columns: gather 36.95 us (asked for)\n"
            "choice heads in L2: 1 of 1 KV heads 0 us; rule: what is read again fits in 33554432 "
            "bytes\n"
            "work tile 0: batch 0 head 0 q_tile 1, 1 tiles: gather 1 (114 keys, 0 full)\n"
            "work tile 1: batch 0 head 0 q_tile 0, 1 tiles: gather 0 (91 keys, 23 full)\n"
            "work tile 2: batch 0 head 0 q_tile 2, 0 tiles:\n");
  EXPECT_EQ(work_tiles_of(ColumnMode::scan),
            "tiles full 0 bitmap 0 rows 0 columns 16 (205 entries) gather 0 (0 entries)\n"
            "costs by cpu, 8 workers\n"
            "choice columns: scan 39.29 us (asked for)\n"
            "choice heads in L2: 1 of 1 KV heads 0 us; rule: what is read again fits in 33554432 "
            "bytes\n"
            "work tile 0: batch 0 head 0 q_tile 1, 8 tiles: columns 0 [0, 8)\n"
            "work tile 1: batch 0 head 0 q_tile 0, 8 tiles: columns 0 [0, 8)\n"
            "work tile 2: batch 0 head 0 q_tile 2, 0 tiles:\n");
}

}  // namespace
}  // namespace fdma
