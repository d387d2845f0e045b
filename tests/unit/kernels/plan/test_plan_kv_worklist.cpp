// Tests backward plans with kv worklists: the cells of scattered masks; full tiles, cut keys and
// accumulator rows; and the masks for which the planner makes such a plan.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <functional>
#include <random>
#include <utility>
#include <vector>

#include "backend/mask_cases.hpp"
#include "backend/scattered_cases.hpp"
#include "fdma/kernels/plan.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "plan/kv_worklist.hpp"
#include "plan/make_kv_worklist.hpp"
#include "plan/plan_cells.hpp"
#include "plan/plan_forms.hpp"

namespace fdma {
namespace {

using testing::has_worklist;
using testing::MaskCase;
using testing::pick;
using testing::worklist_of;

PlanOptions worklist_options(ColumnMode columns = ColumnMode::reorder) {
  PlanOptions options;
  options.backend = Backend::sm90;
  options.direction = Direction::backward;
  options.columns = columns;
  return options;
}

AttentionShape shape_for(const BlockMask& mask, std::int64_t batch, std::int32_t heads_q,
                         std::int32_t heads_kv) {
  AttentionShape shape = testing::shape_for(mask, batch, heads_q, heads_kv);
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::bfloat16;
  return shape;
}

std::string plan_error(const MaskCase& each, const AttentionShape& shape) {
  const auto plan = make_plan(each.mask, shape, {}, worklist_options());
  if (!plan) return each.name + ": " + plan.error().message;
  if (const auto valid = validate(*plan); !valid) return each.name + ": " + valid.error().message;
  return testing::check_plan(*plan, each);  // a mask without cells has no lists
}

TEST(KvWorklistPlan, HasTheCellsOfScatteredMasks) {
  std::uint32_t seed = 1;
  for (const auto& [q_len, kv_len] :
       {std::pair{300, 500}, {257, 1003}, {640, 640}, {1, 900}, {129, 1}}) {
    for (const MaskCase& each : testing::scattered_cases(q_len, kv_len, seed++)) {
      EXPECT_EQ(plan_error(each, shape_for(each.mask, 2, 4, 2)), "");
    }
  }
}

// The plan has several segments of queries, and keys with several intervals in them.
TEST(KvWorklistPlan, CutsTilesOfKeysAtSegmentsOfQueries) {
  const MaskCase each = testing::case_of(
      "long",
      testing::make_cells(2300, 300,
                          [](auto q, auto k) { return q >= 3 * k && (q - 3 * k) % 900 < 500; }),
      {128, 128});
  for (const std::int32_t group : {1, 8, 16}) {
    EXPECT_EQ(plan_error(each, shape_for(each.mask, 1, group, 1)), "") << group;
  }
}

TEST(KvWorklistPlan, HasTheCellsOfRandomMasksOfSeveralHeads) {
  EXPECT_TRUE(rc::check("plans", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const std::int64_t batch = pick(rng, 1, 3), group = pick(rng, 1, 3), heads = pick(rng, 1, 2);
    const MaskCase each = testing::random_case(rng, pick(rng, 0, 1) == 0 ? 1 : batch,
                                               pick(rng, 0, 2) == 0 ? group * heads : 1, 200,
                                               testing::random_block(rng));
    const AttentionShape shape =
        shape_for(each.mask, batch, static_cast<std::int32_t>(group * heads),
                  static_cast<std::int32_t>(heads));
    const auto plan = make_plan(each.mask, shape, {}, worklist_options());
    RC_ASSERT(plan);
    const auto valid = validate(*plan);
    if (!valid) RC_FAIL(valid.error().message);
    const std::string error = testing::check_plan(*plan, each);
    if (!error.empty()) RC_FAIL(error);
  }));
}

TEST(HeadWorklists, SortsByTheLastQueryAndInBlocksByTheFirst) {
  // Keys 0 to 2 live in steps of 64 queries with different ends, and key 3 is never seen.
  const std::int64_t offsets[] = {0, 1, 2, 3, 3};
  const Interval intervals[] = {{200, 300}, {0, 70}, {10, 60}};
  const HeadWorklist lists = make_head_worklist(offsets, intervals, 300, 64, 2);
  ASSERT_EQ(lists.keys.size(), 128U);
  EXPECT_EQ(lists.keys[0], (WorklistEntry{1, 0, 70, kNoAccum}));
  EXPECT_EQ(lists.keys[1], (WorklistEntry{2, 10, 60, kNoAccum}));
  EXPECT_EQ(lists.keys[2], (WorklistEntry{0, 200, 300, kNoAccum}));
  EXPECT_EQ(lists.keys[3], (WorklistEntry{-1, 0, 0, kNoAccum}));
  ASSERT_EQ(lists.work_tiles.size(), 1U);
  EXPECT_EQ(lists.work_tiles[0], (KvWorkTile{0, 0, 0, 0, 0, 3, 0, 0}));
  EXPECT_TRUE(lists.accum_keys.empty());
}

TEST(HeadWorklists, CutsWhatLivesLongAndGivesItSums) {
  std::vector<std::int64_t> offsets{0};
  std::vector<Interval> intervals;
  for (std::int32_t k = 0; k < 128; ++k) {
    intervals.push_back({k, 600});
    offsets.push_back(k + 1);
  }
  const HeadWorklist lists = make_head_worklist(offsets, intervals, 600, 2, 128);
  const KvWorkTile expected[] = {
      {0, 0, 0, 0, 0, 2, 1, 2}, {0, 0, 1, 0, 2, 4, 2, 4}, {0, 0, 2, 0, 4, 5, 4, 5}};
  ASSERT_EQ(lists.work_tiles.size(), std::size(expected));
  for (std::size_t i = 0; i < std::size(expected); ++i)
    EXPECT_EQ(lists.work_tiles[i], expected[i]) << i;
  ASSERT_EQ(lists.accum_keys.size(), 128U);
  EXPECT_EQ(lists.accum_keys[5], 5);
  EXPECT_EQ(lists.keys[5], (WorklistEntry{5, 5, 256, 5}));
  EXPECT_EQ(lists.keys[128 + 5], (WorklistEntry{5, 256, 512, 5}));
  EXPECT_EQ(lists.keys[256 + 5], (WorklistEntry{5, 512, 600, 5}));
}

TEST(HeadWorklists, LeavesKeysWholeThatEndAsTheyBegin) {
  std::vector<std::int64_t> offsets{0};
  std::vector<Interval> intervals;
  for (std::int32_t k = 0; k < 6000; ++k) {
    intervals.push_back({k, std::min(k + 500, 6000)});
    offsets.push_back(k + 1);
  }
  EXPECT_EQ(most_seen(intervals, 6000), 500);
  const HeadWorklist lists = make_head_worklist(offsets, intervals, 6000, 8, 500);
  EXPECT_TRUE(lists.accum_keys.empty());
  EXPECT_EQ(lists.work_tiles.size(), 47U);
  // Every eighth key of the second 2048 lives longer.
  for (std::int32_t k = 2048; k < 4096; k += 8) {
    intervals[static_cast<std::size_t>(k)].end = k + 751;
  }
  const HeadWorklist cut = make_head_worklist(offsets, intervals, 6000, 8, 500);
  ASSERT_FALSE(cut.accum_keys.empty());
  EXPECT_EQ(cut.accum_keys.front(), 2328);  // the first that the end of a segment, 3,072, cuts
  EXPECT_EQ(cut.accum_keys.back(), 4095);
  intervals[2048].end = 2048 + 750;  // one less
  EXPECT_TRUE(make_head_worklist(offsets, intervals, 6000, 8, 500).accum_keys.empty());
}

TEST(HeadWorklists, GivesOneRowOfSumsToAKeyOfSeveralIntervals) {
  const std::int64_t offsets[] = {0, 2, 3};
  const Interval intervals[] = {{0, 10}, {900, 950}, {0, 1000}};
  const HeadWorklist lists = make_head_worklist(offsets, intervals, 1000, 64, 1000);
  EXPECT_EQ(lists.accum_keys, std::vector<std::int32_t>{0});
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(lists.keys[i].accum_row, lists.keys[i].key == 0 ? 0 : kNoAccum);
  }
}

TEST(SegmentTiles, AreAsLongAsKeysLive) {
  const auto tiles = [](std::int32_t group_size, std::int64_t w, std::int32_t head_dim = 128) {
    AttentionShape shape;
    shape.heads_q = 2 * group_size;
    shape.heads_kv = 2;
    shape.q_lens = shape.kv_lens = {131072};
    shape.head_dim = shape.head_dim_v = head_dim;
    return segment_tiles(shape, w);
  };
  EXPECT_EQ(tiles(1, 0), segment_tiles(1, 131072));
  EXPECT_EQ(tiles(1, 6143), 32);
  EXPECT_EQ(tiles(1, 6144), 64);
  EXPECT_EQ(tiles(1, 32767), 64);
  EXPECT_EQ(tiles(1, 32768), 128);
  EXPECT_EQ(tiles(1, 131072), 128);
  EXPECT_EQ(tiles(4, 32767), 16);
  EXPECT_EQ(tiles(4, 32768), 32);
  EXPECT_EQ(tiles(8, 131072), 16);
  EXPECT_EQ(tiles(1, 32767, 256), 32);
  EXPECT_EQ(tiles(1, 32768, 256), 64);
}

BlockMask compiled(const char* spec, std::int64_t n) {
  MaskShape shape;
  shape.q_lens = {n};
  shape.kv_lens = {n};
  return *compile(*parse_mask(spec), {}, shape);
}

// Each query of the second half evicts one live key, any of them.
BlockMask random_eviction(std::int32_t n) {
  std::mt19937 rng(3);
  std::vector<std::int32_t> ends(static_cast<std::size_t>(n), n), alive;
  for (std::int32_t q = 0; q < n; ++q) {
    if (q >= n / 2) {
      std::swap(alive[static_cast<std::size_t>(
                    pick(rng, 0, static_cast<std::int64_t>(alive.size()) - 1))],
                alive.back());
      ends[static_cast<std::size_t>(alive.back())] = q;
      alive.pop_back();
    }
    alive.push_back(q);
  }
  ColumnIntervals columns;
  columns.q_len = columns.kv_len = n;
  columns.offsets = {0};
  for (std::int32_t k = 0; k < n; ++k) {
    columns.intervals.push_back({k, ends[static_cast<std::size_t>(k)]});
    columns.offsets.push_back(k + 1);
  }
  BlockMask mask;
  mask.block = {128, 128};
  mask.shape.q_lens = mask.shape.kv_lens = {n};
  mask.group_of = {0};
  mask.groups = std::vector<ColumnIntervals>{columns};
  return mask;
}

// Each of two KV heads has a mask. The keys that live longer decide the length of segments.
TEST(KvWorklistPlan, HasOneLengthOfSegments) {
  constexpr std::int32_t kLength = 16384;
  const auto ending = [](std::int32_t life) {
    ColumnIntervals columns;
    columns.q_len = columns.kv_len = kLength;
    columns.offsets = {0};
    std::mt19937 rng(5);
    for (std::int32_t k = 0; k < kLength; ++k) {
      const auto end = k + 1 + static_cast<std::int32_t>(pick(rng, 0, 2 * life));
      columns.intervals.push_back({k, end < kLength ? end : kLength});
      columns.offsets.push_back(k + 1);
    }
    return columns;
  };
  BlockMask mask;
  mask.block = {128, 128};
  mask.shape.num_heads = 2;
  mask.shape.q_lens = mask.shape.kv_lens = {kLength};
  mask.group_of = {0, 1};
  mask.groups = std::vector<ColumnIntervals>{ending(1000), ending(8000)};
  const auto plan = make_plan(mask, shape_for(mask, 1, 2, 2), {}, worklist_options());
  ASSERT_TRUE(plan);
  ASSERT_TRUE(validate(*plan));
  EXPECT_EQ(worklist_segment(plan->shape, worklist_of(*plan)), 64);
  std::vector<std::int32_t> longest(2);
  for (const KvWorkTile& work_tile : worklist_of(*plan).work_tiles) {
    std::int32_t& most = longest[static_cast<std::size_t>(work_tile.kv_head)];
    most = std::max(most, work_tile.end_tile - work_tile.begin_tile);
    EXPECT_EQ(work_tile.begin_tile / 64, (work_tile.end_tile - 1) / 64);
  }
  EXPECT_LT(longest[0], 33);
  EXPECT_GT(longest[1], 48);
}

TEST(KvWorklistPlan, IsMadeWhereItIsPredictedToPay) {
  const auto makes_worklist = [](const BlockMask& mask, std::int32_t heads_q, ColumnMode columns) {
    const auto plan =
        make_plan(mask, shape_for(mask, 1, heads_q, 1), {}, worklist_options(columns));
    EXPECT_TRUE(plan) << plan.error().message;
    return plan && has_worklist(*plan);
  };
  constexpr ColumnMode kAutomatic = ColumnMode::automatic;
  EXPECT_FALSE(makes_worklist(compiled("causal", 4096), 2, kAutomatic));
  EXPECT_FALSE(makes_worklist(compiled("causal & window(256, 0)", 4096), 2, kAutomatic));
  const BlockMask eviction = random_eviction(32768);
  EXPECT_TRUE(makes_worklist(eviction, 2, kAutomatic));
  EXPECT_FALSE(makes_worklist(eviction, 2, ColumnMode::scan));
}

TEST(KvWorklistPlan, IsNotMadeWhereHeadsOfAKvHeadDiffer) {
  std::vector<MaskCase> heads;
  for (const std::int64_t stride : {3, 5}) {
    heads.push_back(testing::case_of(
        "",
        testing::make_cells(300, 300, [&](auto q, auto k) { return k <= q && k % stride == 0; }),
        {128, 128}));
  }
  const MaskCase each = testing::combined("per head", 1, 2, heads, {128, 128});
  const auto shared = make_plan(each.mask, shape_for(each.mask, 1, 2, 1), {}, worklist_options());
  ASSERT_TRUE(shared);
  EXPECT_FALSE(has_worklist(*shared));
  const auto apart = make_plan(each.mask, shape_for(each.mask, 1, 2, 2), {}, worklist_options());
  ASSERT_TRUE(apart);
  EXPECT_TRUE(has_worklist(*apart));
  EXPECT_EQ(testing::check_plan(*apart, each), "");
}

TEST(KvWorklistPlan, RejectsListsThatLeaveTheirArrays) {
  const MaskCase each = testing::case_of(
      "", testing::make_cells(400, 300, [](auto q, auto k) { return k <= q && k % 2 == 0; }),
      {128, 128});
  const auto plan = make_plan(each.mask, shape_for(each.mask, 1, 64, 1), {}, worklist_options());
  ASSERT_TRUE(plan && has_worklist(*plan) && !worklist_of(*plan).accum_keys.empty());
  const std::function<void(KvWorklist&)> changes[] = {
      [](KvWorklist& lists) { lists.keys[0].key = 300; },
      [](KvWorklist& lists) { lists.keys[0].q_end = 401; },
      [](KvWorklist& lists) { lists.keys.pop_back(); },
      [](KvWorklist& lists) { lists.work_tiles[0].key_tile = 2; },
      [](KvWorklist& lists) { lists.work_tiles[0].kv_head = 1; },
      [](KvWorklist& lists) { lists.work_tiles[0].end_tile = 5; },
      [](KvWorklist& lists) { lists.work_tiles[0].full_end = lists.work_tiles[0].end_tile + 1; },
      [](KvWorklist& lists) { lists.work_tiles.pop_back(); },
      [](KvWorklist& lists) { lists.accum_keys[0].key = 7; },
      [](KvWorklist& lists) { lists.accum_keys.clear(); },
      [](KvWorklist& lists) { lists.keys[1].accum_row = kNoAccum; },
  };
  for (std::size_t i = 0; i < std::size(changes); ++i) {
    AttentionPlan broken = *plan;
    changes[i](worklist_of(broken));
    const auto valid = validate(broken);
    ASSERT_FALSE(valid) << i;
    EXPECT_EQ(valid.error().code, ErrorCode::internal) << i;
  }
}

TEST(KvWorklistPlan, SaysItsListsInItsText) {
  const MaskCase each = testing::case_of(
      "", testing::make_cells(200, 200, [](auto q, auto k) { return k <= q && k % 2 == 0; }),
      {128, 128});
  const auto plan = make_plan(each.mask, shape_for(each.mask, 1, 2, 1), {}, worklist_options());
  ASSERT_TRUE(plan);
  const std::string text = to_text(*plan, 1);
  EXPECT_NE(text.find("listed keys 128 in tiles of 128, accumulator rows 0, keys moved 100\n"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("work tile 0: batch 0 kv_head 0 key_tile 0: tiles [0, 2), full [0, 0)\n"),
            std::string::npos)
      << text;
}

}  // namespace
}  // namespace fdma
