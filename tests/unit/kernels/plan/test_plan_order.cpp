// Tests the order of a plan's work tiles, and how little a plan stores.
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/mask_cases.hpp"
#include "fdma/kernels/plan.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "mask_suite.hpp"
#include "plan/plan_forms.hpp"

namespace fdma {
namespace {

using testing::MaskCase;
using testing::segments_of;

BlockMask compiled(const char* spec, std::int64_t n) {
  MaskShape shape;
  shape.q_lens = {n};
  shape.kv_lens = {n};
  return *compile(*parse_mask(spec), {}, shape);
}

AttentionShape shape_of(std::int64_t n, std::int64_t batch, std::int32_t heads_q,
                        std::int32_t heads_kv) {
  AttentionShape shape;
  shape.batch = batch;
  shape.heads_q = heads_q;
  shape.heads_kv = heads_kv;
  shape.q_lens = {n};
  shape.kv_lens = {n};
  return shape;
}

std::int64_t kv_head(const AttentionPlan& plan, const WorkTile& work_tile) {
  return std::int64_t{work_tile.batch} * plan.shape.heads_kv +
         work_tile.head / plan.shape.group_size();
}

TEST(PlanOrder, TakesTheLongestWorkTilesFirst) {
  const auto plan = make_plan(compiled("causal", 2048), shape_of(2048, 2, 4, 2));
  ASSERT_TRUE(plan);
  ASSERT_EQ(segments_of(*plan).work_tiles.size(), 2U * 4 * 16);
  EXPECT_TRUE(std::is_sorted(
      segments_of(*plan).work_tiles.begin(), segments_of(*plan).work_tiles.end(),
      [](const WorkTile& a, const WorkTile& b) { return a.num_tiles > b.num_tiles; }));
  EXPECT_EQ(segments_of(*plan).work_tiles.front().num_tiles, 16);
  EXPECT_EQ(segments_of(*plan).work_tiles.back().num_tiles, 1);
}

TEST(PlanOrder, PutsTheQueryHeadsOfAGroupSideBySide) {
  const auto plan = make_plan(compiled("causal", 1024), shape_of(1024, 2, 6, 2));
  ASSERT_TRUE(plan);
  for (std::size_t i = 0; i < segments_of(*plan).work_tiles.size(); i += 3) {
    for (std::size_t j = i + 1; j < i + 3; ++j) {
      EXPECT_EQ(kv_head(*plan, segments_of(*plan).work_tiles[j]),
                kv_head(*plan, segments_of(*plan).work_tiles[i]))
          << j;
      EXPECT_EQ(segments_of(*plan).work_tiles[j].q_tile, segments_of(*plan).work_tiles[i].q_tile)
          << j;
      EXPECT_EQ(segments_of(*plan).work_tiles[j].head,
                segments_of(*plan).work_tiles[j - 1].head + 1)
          << j;
    }
  }
}

// The KV heads in L2 are finished before the next ones. Among their work tiles the longest come
// first.
TEST(PlanOrder, TakesKvHeadsInGroupsThatFitInL2) {
  const AttentionShape shape = shape_of(1024, 2, 4, 2);
  PlanOptions options;
  const std::int64_t head_bytes = 1024 * (128 + 128) * 4;
  for (const std::int64_t heads : {1, 2, 3}) {
    options.l2_bytes = heads * head_bytes;
    const auto plan = make_plan(compiled("causal", 1024), shape, {}, options);
    ASSERT_TRUE(plan);
    std::int64_t l2_group = 0;
    std::int32_t num_tiles = segments_of(*plan).work_tiles.front().num_tiles;
    for (const WorkTile& work_tile : segments_of(*plan).work_tiles) {
      const std::int64_t of_work_tile = kv_head(*plan, work_tile) / heads;
      EXPECT_GE(of_work_tile, l2_group);
      if (of_work_tile == l2_group) {
        EXPECT_LE(work_tile.num_tiles, num_tiles);
      }
      l2_group = of_work_tile;
      num_tiles = work_tile.num_tiles;
    }
    EXPECT_EQ(l2_group, (4 - 1) / heads);
  }
}

TEST(PlanOrder, TakesOneHeadWhereNoneFits) {
  PlanOptions options;
  options.l2_bytes = 0;
  const auto plan = make_plan(compiled("causal", 512), shape_of(512, 1, 2, 2), {}, options);
  ASSERT_TRUE(plan);
  for (std::size_t i = 0; i < segments_of(*plan).work_tiles.size(); ++i) {
    EXPECT_EQ(segments_of(*plan).work_tiles[i].head,
              i < segments_of(*plan).work_tiles.size() / 2 ? 0 : 1);
  }
}

// The closed form stays: segments do not grow with the tokens, only work tiles do.
TEST(PlanSize, KeepsFewSegmentsForMasksThatMoveInStep) {
  constexpr std::int64_t kLen = 1048576;
  for (const char* spec :
       {"true", "causal", "causal & window(1024)", "causal & (window(4096) | sink(4))"}) {
    const auto plan = make_plan(compiled(spec, kLen), shape_of(kLen, 1, 2, 1));
    ASSERT_TRUE(plan) << spec;
    EXPECT_LE(segments_of(*plan).segments.size(), 160U) << spec;
    EXPECT_LE(segments_of(*plan).num_bitmaps(plan->words_per_bitmap()), 8) << spec;
    EXPECT_EQ(segments_of(*plan).work_tiles.size(), 2U * kLen / 128) << spec;
    EXPECT_LE(plan->size_bytes(),
              static_cast<std::int64_t>(segments_of(*plan).work_tiles.size() * sizeof(WorkTile)) +
                  (16 << 10))
        << spec;
  }
}

TEST(PlanSize, CountsTheTilesOfCausalAtAMillionTokens) {
  constexpr std::int64_t kLen = 1048576, kRows = kLen / 128;
  const auto plan = make_plan(compiled("causal", kLen), shape_of(kLen, 1, 2, 1));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->counts.full_tiles, 2 * (kRows * (kRows - 1) / 2));
  EXPECT_EQ(plan->counts.bitmap_tiles + plan->counts.row_tiles, 2 * kRows);
  EXPECT_EQ(plan->counts.empty_items, 0);
}

}  // namespace
}  // namespace fdma
