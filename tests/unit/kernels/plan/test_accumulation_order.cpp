#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <span>
#include <tuple>
#include <vector>

#include "backend/backend_cases.hpp"
#include "fdma/kernels/segment_iterator.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "plan/accumulation_order.hpp"
#include "plan/plan_forms.hpp"

namespace fdma {
namespace {

using testing::has_worklist;
using testing::segments_of;
using testing::worklist_of;

AttentionPlan plan_of(const testing::MaskCase& mask, std::int64_t batch, std::int32_t heads_q,
                      std::int32_t heads_kv, ColumnMode columns = ColumnMode::scan) {
  AttentionShape shape;
  shape.batch = batch;
  shape.heads_q = heads_q;
  shape.heads_kv = heads_kv;
  shape.q_lens = mask.mask.shape.q_lens;
  shape.kv_lens = mask.mask.shape.kv_lens;
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::bfloat16;
  PlanOptions options;
  options.backend = Backend::sm90;
  options.direction = Direction::backward;
  options.columns = columns;
  auto plan = make_plan(mask.mask, shape, {}, options);
  EXPECT_TRUE(plan);
  return *std::move(plan);
}

// Makes a plan of the causal mask; lengths, heads and head sizes are those of `shape`.
AttentionPlan causal_plan(AttentionShape shape) {
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::bfloat16;
  PlanOptions options;
  options.backend = Backend::sm90;
  options.direction = Direction::backward;
  MaskShape lengths;
  lengths.q_lens = shape.q_lens;
  lengths.kv_lens = shape.kv_lens;
  auto plan = make_plan(*compile(*parse_mask("causal"), {}, lengths), shape, {}, options);
  EXPECT_TRUE(plan);
  return *std::move(plan);
}

// Every tile group comes once, and each visit has the number of tile groups before it as its
// position.
void expect_valid(const AttentionPlan& plan, int num_workers = 8) {
  const auto made = accumulation_order(plan, segments_of(plan), num_workers);
  ASSERT_TRUE(made);
  const auto group_size = static_cast<std::size_t>(plan.shape.group_size());
  std::vector<std::int32_t> sorted = made->tile_groups;
  std::sort(sorted.begin(), sorted.end());
  ASSERT_EQ(sorted.size(), segments_of(plan).work_tiles.size() / group_size);
  ASSERT_EQ(made->first_positions.size(), sorted.size());
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, std::int32_t> num_before;
  std::size_t visit = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    EXPECT_EQ(sorted[i], static_cast<std::int32_t>(i));
    EXPECT_EQ(made->first_positions[i], static_cast<std::int32_t>(visit));
    for (std::size_t g = 0; g < group_size; ++g) {
      const WorkTile& work_tile =
          segments_of(plan)
              .work_tiles[static_cast<std::size_t>(made->tile_groups[i]) * group_size + g];
      EitherWayIterator iterator(segments_of(plan).segments.data(), work_tile, made->walks_down);
      TileStep step;
      while (iterator.next(step, made->walks_down, segments_of(plan).pattern_arrays())) {
        ASSERT_LT(visit, made->positions.size());
        EXPECT_EQ(made->positions[visit++],
                  (num_before[{work_tile.batch, work_tile.head, step.tile}]++));
      }
    }
  }
  EXPECT_EQ(visit, made->positions.size());
}

TEST(AccumulationOrder, PlacesEveryTileBehindTheGroupsBefore) {
  std::mt19937 rng(1);
  for (int trial = 0; trial < 4; ++trial) {
    const testing::MaskCase mask =
        trial % 2 == 0 ? testing::tile_case(rng, 700, 900) : testing::column_case(rng, 500, 600);
    expect_valid(plan_of(mask, 2, 6, 2));
  }
}

TEST(AccumulationOrder, TakesTheLastKeyTilesFirst) {
  const testing::MaskCase mask = testing::case_of(
      "causal", testing::make_cells(512, 512, [](auto q, auto k) { return k <= q; }), {128, 128});
  const AttentionPlan plan = plan_of(mask, 1, 2, 2);
  const auto made = accumulation_order(plan, segments_of(plan), 8);
  ASSERT_TRUE(made);
  std::vector<std::int32_t> key_tiles;
  for (const std::int32_t tile_group : made->tile_groups) {
    key_tiles.push_back(segments_of(plan).work_tiles[static_cast<std::size_t>(tile_group)].q_tile);
  }
  EXPECT_EQ(key_tiles, (std::vector<std::int32_t>{3, 3, 2, 2, 1, 1, 0, 0}));
  EXPECT_EQ(made->positions.size(), 2U * (4 + 3 + 2 + 1));
}

// Below their own document, key tiles are seen by the last document only, which all tile groups
// walk first.
TEST(AccumulationOrder, WalksDownWhereKeyTilesShareTheirLastQueries) {
  const testing::MaskCase mask = testing::case_of(
      "the last document sees everything",
      testing::make_cells(
          3072, 2560, [](auto q, auto k) { return k <= q && (q >= 2048 || q / 512 == k / 512); }),
      {128, 128});
  const AttentionPlan plan = plan_of(mask, 1, 8, 4);
  const auto made = accumulation_order(plan, segments_of(plan), 16);
  ASSERT_TRUE(made);
  EXPECT_TRUE(made->walks_down);
  EXPECT_EQ(
      segments_of(plan).work_tiles[static_cast<std::size_t>(made->tile_groups.front()) * 2].q_tile,
      0);
  expect_valid(plan, 16);
}

// The simulation has few heads, and many more come. A long tile group at the end therefore keeps a
// worker from other heads, and not from idling. If twice the heads ran side by side, some tiles
// would leave the cache.
TEST(AccumulationOrder, EndsOnceForAllHeads) {
  AttentionShape shape;
  shape.batch = 4;
  shape.heads_q = shape.heads_kv = 32;
  shape.q_lens = shape.kv_lens = {8192};
  const AttentionPlan plan = causal_plan(shape);
  const auto made = accumulation_order(plan, segments_of(plan), 132);
  ASSERT_TRUE(made);
  EXPECT_FALSE(made->walks_down);
  std::vector<std::int32_t> key_tiles;
  for (const std::int32_t tile_group : std::span(made->tile_groups).first(8)) {
    key_tiles.push_back(segments_of(plan).work_tiles[static_cast<std::size_t>(tile_group)].q_tile);
  }
  EXPECT_EQ(key_tiles, (std::vector<std::int32_t>{63, 63, 63, 63, 62, 62, 62, 62}));
}

// The last key tiles come first, so key tiles of long rows are far apart. What they read has left
// the cache.
TEST(AccumulationOrder, WalksDownWhereTheCacheIsShort) {
  for (const auto& [head_dim, walks_down] : {std::pair{256, true}, std::pair{64, false}}) {
    AttentionShape shape;
    shape.heads_q = shape.heads_kv = 4;
    shape.head_dim = shape.head_dim_v = head_dim;
    shape.q_lens = shape.kv_lens = {65536};
    const AttentionPlan plan = causal_plan(shape);
    const auto made = accumulation_order(plan, segments_of(plan), 66);
    ASSERT_TRUE(made);
    EXPECT_EQ(made->walks_down, walks_down) << head_dim;
  }
}

// The work tiles of several heads run side by side.
TEST(AccumulationOrder, OfKvWorklistsPlacesEveryTileBehindTheWorkTilesBefore) {
  const testing::MaskCase mask = testing::case_of(
      "eviction",
      testing::make_cells(1200, 900,
                          [](auto q, auto k) { return k <= q && q < k + 40 + k * 61 % 500; }),
      {128, 128});
  const AttentionPlan plan = plan_of(mask, 2, 6, 3, ColumnMode::reorder);
  ASSERT_TRUE(has_worklist(plan));
  const auto made = accumulation_order(plan, worklist_of(plan), 8);
  ASSERT_TRUE(made);
  EXPECT_FALSE(made->walks_down);
  std::vector<std::int32_t> sorted = made->tile_groups;
  std::sort(sorted.begin(), sorted.end());
  ASSERT_EQ(sorted.size(), worklist_of(plan).work_tiles.size());
  std::map<std::tuple<std::int32_t, std::int32_t, std::int32_t>, std::int32_t> num_before;
  std::size_t visit = 0;
  for (std::size_t i = 0; i < sorted.size(); ++i) {
    EXPECT_EQ(sorted[i], static_cast<std::int32_t>(i));
    EXPECT_EQ(made->first_positions[i], static_cast<std::int32_t>(visit));
    const KvWorkTile& work_tile =
        worklist_of(plan).work_tiles[static_cast<std::size_t>(made->tile_groups[i])];
    for (std::int32_t tile = work_tile.begin_tile; tile < work_tile.end_tile; ++tile) {
      ASSERT_LT(visit, made->positions.size());
      EXPECT_EQ(made->positions[visit++],
                (num_before[{work_tile.batch, work_tile.kv_head, tile}]++));
    }
  }
  EXPECT_EQ(visit, made->positions.size());
}

TEST(AccumulationOrder, OfNothingIsEmpty) {
  const testing::MaskCase mask = testing::case_of(
      "nothing", testing::make_cells(200, 300, [](auto, auto) { return false; }), {128, 128});
  const AttentionPlan plan = plan_of(mask, 1, 2, 1);
  const auto made = accumulation_order(plan, segments_of(plan), 8);
  ASSERT_TRUE(made);
  EXPECT_EQ(made->tile_groups.size(), 3U);
  EXPECT_TRUE(made->positions.empty());
}

}  // namespace
}  // namespace fdma
