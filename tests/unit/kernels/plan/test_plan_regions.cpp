// Tests kv index lists and kv permutations in plans. They hold the cells of their masks, whatever
// the mask and the way, and the planner takes the cheap way.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <stdexcept>

#include "backend/scattered_cases.hpp"
#include "fdma/kernels/plan.hpp"
#include "plan/plan_cells.hpp"
#include "plan/plan_forms.hpp"
#include "plan/regions.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::kColumnModes;
using testing::MaskCase;
using testing::pick;
using testing::segments_of;

constexpr BlockShape kBlock{128, 128};

AttentionShape shape_of(const MaskCase& mask, std::int64_t batch, std::int32_t heads_q,
                        std::int32_t heads_kv) {
  AttentionShape shape = testing::shape_for(mask.mask, batch, heads_q, heads_kv);
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::bfloat16;
  return shape;
}

AttentionPlan plan_of(const MaskCase& mask, const AttentionShape& shape, Backend backend,
                      ColumnMode columns) {
  PlanOptions options;
  options.backend = backend;
  options.columns = columns;
  auto plan = make_plan(mask.mask, shape, {}, options);
  if (!plan) throw std::runtime_error(mask.name + ": " + plan.error().message);
  return *std::move(plan);
}

// Says what is wrong with the plans of a case in every way and for both backends; empty if nothing
// is.
std::string plan_error(const MaskCase& mask, const AttentionShape& shape) {
  for (const Backend backend : {Backend::cpu, Backend::sm90}) {
    for (const ColumnMode mode : kColumnModes) {
      const AttentionPlan plan = plan_of(mask, shape, backend, mode);
      const std::string where = std::string(to_string(backend)) + " " +
                                std::string(to_string(mode)) + ": " + mask.name + ": ";
      if (const auto valid = validate(plan); !valid) return where + valid.error().message;
      if (const std::string error = testing::check_plan(plan, mask); !error.empty())
        return where + error;
      if (plan != plan_of(mask, shape, backend, mode)) return where + "differs the second time";
    }
  }
  return {};
}

std::int64_t num_tiles(const AttentionPlan& plan) {
  return plan.counts.full_tiles + plan.counts.bitmap_tiles + plan.counts.row_tiles +
         plan.counts.column_tiles + plan.counts.gather_chunks;
}

TEST(PlanRegions, HaveTheCellsOfScatteredMasks) {
  for (const auto& [q_len, kv_len] : {std::pair{400, 650}, {130, 1000}, {513, 300}, {5, 900}}) {
    for (const MaskCase& mask : testing::scattered_cases(q_len, kv_len, 3))
      EXPECT_EQ(plan_error(mask, shape_of(mask, 1, 2, 1)), "");
  }
}

TEST(PlanRegions, HaveTheCellsOfMasksPerHeadAndLengthsPerElement) {
  const std::vector<MaskCase> one = testing::scattered_cases(300, 500, 5);
  const std::vector<MaskCase> other = testing::scattered_cases(77, 640, 6);
  for (std::size_t i = 0; i + 1 < one.size(); i += 2) {
    // The query heads of a KV head share a mask, or have different ones.
    const MaskCase shared = testing::combined(
        "shared", 2, 4,
        {one[i], one[i], one[i + 1], one[i + 1], other[i], other[i], other[i], other[i]}, kBlock);
    EXPECT_EQ(plan_error(shared, shape_of(shared, 2, 4, 2)), "");
    const MaskCase apart =
        testing::combined("apart", 1, 4, {one[i], one[i + 1], one[i], one[i]}, kBlock);
    EXPECT_EQ(plan_error(apart, shape_of(apart, 3, 4, 2)), "");
  }
}

TEST(PlanRegions, HaveTheCellsOfRandomMasks) {
  EXPECT_TRUE(rc::check("regions", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const std::int64_t q_len = pick(rng, 1, 300), kv_len = pick(rng, 1, 500);
    const std::vector<MaskCase> cases = testing::scattered_cases(q_len, kv_len, seed);
    const auto index = pick(rng, 0, static_cast<std::int64_t>(cases.size()) - 1);
    const auto heads_kv = static_cast<std::int32_t>(pick(rng, 1, 2));
    const auto heads_q = heads_kv * static_cast<std::int32_t>(pick(rng, 1, 5));
    const MaskCase& mask = cases[static_cast<std::size_t>(index)];
    const std::string error = plan_error(mask, shape_of(mask, pick(rng, 1, 2), heads_q, heads_kv));
    if (!error.empty()) RC_FAIL(error);
  }));
}

// All heads and elements with the mask share one list of a query tile.
TEST(PlanRegions, ShareListsAndOrdersBetweenHeads) {
  const MaskCase mask = testing::scattered_cases(300, 700, 9).front();
  const AttentionShape shape = shape_of(mask, 3, 8, 2);
  const AttentionPlan one =
      plan_of(mask, shape_of(mask, 1, 1, 1), Backend::cpu, ColumnMode::gather);
  const AttentionPlan many = plan_of(mask, shape, Backend::cpu, ColumnMode::gather);
  EXPECT_GT(one.counts.gather_chunks, 0);
  EXPECT_EQ(segments_of(many).kv_index_entries, segments_of(one).kv_index_entries);
  EXPECT_EQ(many.counts.gather_entries, 24 * one.counts.gather_entries);
  const AttentionPlan ordered = plan_of(mask, shape, Backend::cpu, ColumnMode::reorder);
  ASSERT_EQ(segments_of(ordered).kv_permutations.size(), 1);
  EXPECT_EQ(segments_of(ordered).permutation_of, std::vector<std::int32_t>(6, 0));
  EXPECT_EQ(ordered.counts.moved_keys, 6 * segments_of(ordered).kv_permutations[0].num_keys);
}

TEST(PlanRegions, OrderTheKeysThatAreSeen) {
  int num_orders = 0;
  for (const MaskCase& mask : testing::scattered_cases(300, 700, 10)) {
    const AttentionPlan plan =
        plan_of(mask, shape_of(mask, 1, 1, 1), Backend::cpu, ColumnMode::reorder);
    if (segments_of(plan).kv_permutations.empty()) continue;
    ++num_orders;
    std::vector<bool> is_seen(700, false);
    for (std::int64_t q = 0; q < 300; ++q) {
      for (std::int64_t k = 0; k < 700; ++k) {
        if (mask.cells[0].get(q, k) != 0) is_seen[static_cast<std::size_t>(k)] = true;
      }
    }
    for (const std::int32_t key : segments_of(plan).permuted_keys) {
      EXPECT_TRUE(is_seen[static_cast<std::size_t>(key)]) << mask.name;
      is_seen[static_cast<std::size_t>(key)] = false;
    }
    EXPECT_EQ(std::count(is_seen.begin(), is_seen.end(), true), 0) << mask.name;
  }
  EXPECT_GT(num_orders, 3);
}

// The window of full tiles stays, and the scattered keys before it are gathered.
TEST(PlanRegions, GatherPartOfARow) {
  const MaskCase mask = testing::case_of(
      "mixed",
      testing::make_cells(2048, 2048,
                          [](auto q, auto k) { return k <= q && (q - k < 300 || k % 29 == 0); }),
      kBlock);
  const AttentionShape shape = shape_of(mask, 1, 1, 1);
  const AttentionPlan scan = plan_of(mask, shape, Backend::sm90, ColumnMode::scan);
  const AttentionPlan gather = plan_of(mask, shape, Backend::sm90, ColumnMode::gather);
  EXPECT_GT(gather.counts.gather_chunks, 0);
  EXPECT_GT(gather.counts.full_tiles, 0);
  EXPECT_EQ(gather.counts.full_tiles, scan.counts.full_tiles);
  EXPECT_LT(num_tiles(gather), num_tiles(scan) * 2 / 3);
}

// Whole columns are few keys for many rows; keys that only one row sees are many entries.
TEST(PlanRegions, GatherBitmapsOnlyWhereThatPays) {
  const MaskCase columns = testing::case_of(
      "columns", testing::make_cells(256, 2048, [](auto, auto k) { return k % 31 == 7; }), kBlock);
  const AttentionShape shape = shape_of(columns, 1, 1, 1);
  const AttentionPlan scan = plan_of(columns, shape, Backend::sm90, ColumnMode::scan);
  const AttentionPlan gather = plan_of(columns, shape, Backend::sm90, ColumnMode::gather);
  EXPECT_EQ(scan.counts.gather_chunks, 0);
  EXPECT_EQ(gather.counts.gather_chunks, 2);
  EXPECT_EQ(gather.counts.gather_entries, 2 * 66);
  EXPECT_EQ(segments_of(gather).bitmaps.size() + segments_of(gather).row_intervals.size(),
            0);  // none is used any more

  std::mt19937 rng(2);
  Cells cells(256, 2048);
  for (std::int64_t q = 0; q < 256; ++q) {
    for (int i = 0; i < 100; ++i) cells.at(q, pick(rng, 0, 2047)) = 1;
  }
  const MaskCase tokens = testing::case_of("tokens", cells, kBlock);
  EXPECT_EQ(plan_of(tokens, shape, Backend::sm90, ColumnMode::gather).counts.gather_chunks, 0);
}

// Tables of blocks smaller than a tile, one for each head: entries come from bitmaps and row panels
// that many tiles share, and some are seen by all rows.
TEST(PlanRegions, GatherHalvesOfTiles) {
  std::vector<MaskCase> heads;
  for (const std::uint32_t seed : {1u, 2u, 3u}) {
    std::mt19937 rng(seed);
    std::vector<bool> kept(11 * 32);
    for (std::size_t i = 0; i < kept.size(); ++i) kept[i] = pick(rng, 0, 9) == 0;
    const auto cells = testing::make_cells(700, 1990, [&](auto q, auto k) {
      return static_cast<bool>(kept[static_cast<std::size_t>(q / 64 * 32 + k / 64)]);
    });
    heads.push_back(testing::case_of("blocks", cells, kBlock));
  }
  const MaskCase mask =
      testing::combined("blocks of heads", 1, 3, {heads[0], heads[1], heads[2]}, kBlock);
  const AttentionShape shape = shape_of(mask, 1, 3, 3);
  EXPECT_EQ(plan_error(mask, shape), "");
  PlanOptions options;
  options.backend = Backend::sm90;
  options.num_threads = 1;
  const auto serial = make_plan(mask.mask, shape, {}, options);
  ASSERT_TRUE(serial);
  std::int64_t num_full = 0;
  for (const KvIndexList& list : segments_of(*serial).kv_index_lists) num_full += list.num_full;
  EXPECT_GT(num_full, 0);
  EXPECT_LT(num_full, serial->counts.gather_entries);
  options.num_threads = 3;
  const auto parallel = make_plan(mask.mask, shape, {}, options);
  ASSERT_TRUE(parallel);
  EXPECT_EQ(*parallel, *serial);
}

// By prediction the way that is taken is within 10 % of the best way of each tile row.
TEST(PlanRegions, AreNearTheBestWay) {
  for (const MaskCase& mask : testing::scattered_cases(700, 2048, 12)) {
    const SegmentMask& segments = std::get<std::vector<SegmentMask>>(mask.mask.groups).front();
    const auto costs =
        cost_model(*shipped_profile("h200"), shape_of(mask, 1, 1, 1), Direction::forward, kBlock);
    ASSERT_TRUE(costs) << costs.error().message;
    const double least_gain = Backend::sm90.traits().least_gains.row;
    const Regions scan = choose_regions(segments, ColumnMode::scan, *costs, least_gain);
    const Regions gather = choose_regions(segments, ColumnMode::gather, *costs, least_gain);
    const Regions automatic = choose_regions(segments, ColumnMode::automatic, *costs, least_gain);
    for (std::size_t row = 0; row < scan.rows.size(); ++row) {
      EXPECT_DOUBLE_EQ(scan.rows[row].us, automatic.rows[row].tiles_us) << mask.name;
      EXPECT_LE(automatic.rows[row].us, 1.1 * std::min(scan.rows[row].us, gather.rows[row].us))
          << mask.name;
    }
  }
}

// Lists that nobody asked for are left out if they take more than max_kv_index_bytes.
TEST(PlanRegions, KeepListsWithinTheirBytes) {
  std::vector<float> scores(3000);
  for (std::size_t k = 0; k < scores.size(); ++k)
    scores[k] = static_cast<float>(k * 7919 % scores.size());
  const auto topk = [&](std::int64_t width) {
    return testing::case_of("topk", testing::topk_cells(300, 3000, width, scores), kBlock);
  };
  const MaskCase mask = testing::combined("two", 1, 2, {topk(60), topk(70)}, kBlock);
  const AttentionShape shape = shape_of(mask, 1, 2, 2);
  PlanOptions options;
  const auto bytes = [&] {
    return static_cast<std::int64_t>(sizeof(KvIndexEntry)) *
           make_plan(mask.mask, shape, {}, options)->counts.gather_entries;
  };
  options.columns = ColumnMode::gather;
  const std::int64_t all = bytes();
  options.max_kv_index_bytes = 0;
  EXPECT_EQ(bytes(), all);
  options.columns = ColumnMode::automatic;
  EXPECT_EQ(bytes(), 0);
  EXPECT_EQ(testing::check_plan(*make_plan(mask.mask, shape, {}, options), mask), "");
  options.max_kv_index_bytes = all;
  const std::int64_t automatic = bytes();
  EXPECT_GT(automatic, 0);
  options.max_kv_index_bytes = automatic - 1;
  EXPECT_GT(bytes(), 0);
  EXPECT_LT(bytes(), automatic);
  options.max_kv_index_bytes = -1;
  EXPECT_FALSE(make_plan(mask.mask, shape, {}, options));
}

TEST(PlanRegions, RejectGatheringOfWideHeadsOnSm90) {
  const MaskCase mask = testing::scattered_cases(100, 200, 15).front();
  AttentionShape shape = shape_of(mask, 1, 1, 1);
  PlanOptions options;
  options.backend = Backend::sm90;
  for (const ColumnMode mode : kColumnModes) {
    options.columns = mode;
    shape.head_dim = shape.head_dim_v = 192;
    const auto plan = make_plan(mask.mask, shape, {}, options);
    EXPECT_EQ(plan.has_value(), mode != ColumnMode::gather);
    if (plan) {
      EXPECT_TRUE(segments_of(*plan).kv_index_lists.empty());
    }
    shape.head_dim = shape.head_dim_v = 128;
    EXPECT_TRUE(make_plan(mask.mask, shape, {}, options));
  }
}

TEST(PlanRegions, VisitFewTilesOfLearnedTopk) {
  std::mt19937 rng(4);
  std::normal_distribution<float> normal;
  std::vector<float> scores(2048);
  for (float& score : scores) score = normal(rng);
  const MaskCase mask =
      testing::case_of("topk", testing::topk_cells(2048, 2048, 128, scores), kBlock);
  const AttentionShape shape = shape_of(mask, 1, 8, 2);
  const AttentionPlan scan = plan_of(mask, shape, Backend::sm90, ColumnMode::scan);
  EXPECT_EQ(num_tiles(scan), 8 * 16 * 17 / 2);
  // At most 128 + 127 keys live in a tile row, which are 2 index tiles.
  EXPECT_LE(num_tiles(plan_of(mask, shape, Backend::sm90, ColumnMode::gather)), 8 * 16 * 2);
  EXPECT_LT(num_tiles(plan_of(mask, shape, Backend::sm90, ColumnMode::reorder)),
            num_tiles(scan) / 2);
}

}  // namespace
}  // namespace fdma
