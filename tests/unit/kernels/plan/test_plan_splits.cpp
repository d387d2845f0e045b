// Tests rows that are split over several work tiles, and heads that are packed into a tile: every
// cell comes once. Further tests cover when the planner splits and packs, the predicted gain, and
// refusals of validate.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

#include "backend/backend_cases.hpp"
#include "cuda/partials.hpp"
#include "estimate/work_tile_counts.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/kernels/device_profile.hpp"
#include "fdma/kernels/estimate.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "mask_suite.hpp"
#include "plan/bitmap_order.hpp"
#include "plan/plan_cells.hpp"
#include "plan/plan_forms.hpp"
#include "plan/plan_mutations.hpp"
#include "plan/splits.hpp"

namespace fdma {
namespace {

using testing::expect_caught;
using ::testing::HasSubstr;
using testing::MaskCase;
using testing::segments_of;

constexpr BlockShape kTile{128, 128};

AttentionShape half_shape(const BlockMask& mask, std::int64_t batch, std::int32_t heads_q,
                          std::int32_t heads_kv) {
  AttentionShape shape = testing::shape_for(mask, batch, heads_q, heads_kv);
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::bfloat16;
  return shape;
}

PlanOptions for_sm90(SplitMode split = SplitMode::automatic, PackMode pack = PackMode::automatic) {
  PlanOptions options;
  options.backend = Backend::sm90;
  options.split = split;
  options.pack = pack;
  return options;
}

AttentionPlan plan_of(const BlockMask& mask, const AttentionShape& shape,
                      const PlanOptions& options = for_sm90()) {
  auto plan = make_plan(mask, shape, {}, options);
  if (!plan) throw std::runtime_error(plan.error().message);
  return *std::move(plan);
}

BlockMask compiled(const char* spec, std::int64_t q_len, std::int64_t kv_len) {
  MaskShape shape;
  shape.q_lens = {q_len};
  shape.kv_lens = {kv_len};
  return *compile(*parse_mask(spec), {}, shape);
}

// Says what is wrong with the plan of a mask, with and without splits and packing.
std::string plan_error(const MaskCase& mask, const AttentionShape& shape,
                       const PlanOptions& options, PlanCounts* counts) {
  const AttentionPlan plan = plan_of(mask.mask, shape, options);
  if (options.split == SplitMode::never && !segments_of(plan).split_rows.empty()) return "split";
  if (options.pack == PackMode::never && plan.heads_per_tile != 1) return "packed";
  if (plan.heads_per_tile * plan.tile.block_q != 128) return "a tile of other than 128 rows";
  if (const auto valid = validate(plan); !valid) return mask.name + ": " + valid.error().message;
  const std::string error = testing::check_plan(plan, mask);
  if (!error.empty() || counts == nullptr || segments_of(plan).split_rows.empty()) return error;
  counts->full_tiles += plan.counts.full_tiles;
  counts->bitmap_tiles += plan.counts.bitmap_tiles;
  counts->row_tiles += plan.counts.row_tiles;
  counts->column_tiles += plan.counts.column_tiles;
  return {};
}

// Plans are split, packed, both or neither, and scan scattered keys or do not.
std::string plan_error(const MaskCase& mask, const AttentionShape& shape, PlanCounts* counts = {}) {
  for (const SplitMode split : {SplitMode::automatic, SplitMode::never}) {
    for (const PackMode pack : {PackMode::automatic, PackMode::never}) {
      for (const ColumnMode columns : {ColumnMode::automatic, ColumnMode::scan}) {
        PlanOptions options = for_sm90(split, pack);
        options.columns = columns;
        const std::string error = plan_error(mask, shape, options, counts);
        if (!error.empty()) return error;
      }
    }
  }
  return {};
}

TEST(HeadsPerTile, AreThePowerOfTwoThatHoldsAGroupUpToEight) {
  const std::vector<std::int32_t> wanted{1, 2, 4, 4, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8, 8};
  for (std::int32_t group = 1; group <= 16; ++group)
    EXPECT_EQ(heads_per_tile_of_group(group), wanted[static_cast<std::size_t>(group - 1)]) << group;
}

TEST(PackedHeads, SharesTilesWhereQueriesDoNotFillThem) {
  const auto heads = [](std::int64_t q_len, std::int32_t heads_q, std::int32_t heads_kv) {
    const BlockMask mask = compiled("causal", q_len, 4096);
    return packed_heads(mask, half_shape(mask, 1, heads_q, heads_kv), kTile.block_q);
  };
  for (std::int32_t group = 1; group <= 16; ++group)
    EXPECT_EQ(heads(1, 2 * group, 2), heads_per_tile_of_group(group)) << group;
  EXPECT_EQ(heads(16, 8, 1), 8);
  EXPECT_EQ(heads(61, 4, 1), 4);   // 2 work tiles of 4
  EXPECT_EQ(heads(61, 16, 2), 8);  // 4 of 8
  EXPECT_EQ(heads(120, 7, 1), 1);  // 8 of 7
  EXPECT_EQ(heads(128, 4, 1), 1);  // 4 of 4
  EXPECT_EQ(heads(160, 4, 1), 4);  // 5 of 8
  EXPECT_EQ(heads(4096, 4, 1), 1);
  EXPECT_EQ(heads(3969, 4, 1), 1);  // 125 of 128: a tenth is wanted
  EXPECT_EQ(heads(4, 12, 1), 8);    // 2 of 12
}

TEST(PackedHeads, WantsOneMaskForTheHeadsOfATile) {
  std::mt19937 rng(3);
  const MaskCase a = testing::tile_case(rng, 20, 700), b = testing::tile_case(rng, 20, 700);
  const auto heads = [&](const std::vector<MaskCase>& masks, std::int32_t heads_kv) {
    const MaskCase all =
        testing::combined("all", 1, static_cast<std::int64_t>(masks.size()), masks, kTile);
    const AttentionShape shape =
        half_shape(all.mask, 1, static_cast<std::int32_t>(masks.size()), heads_kv);
    EXPECT_EQ(plan_error(all, shape), "");
    const std::int32_t packed = packed_heads(all.mask, shape, kTile.block_q);
    EXPECT_EQ(plan_of(all.mask, shape).heads_per_tile, packed);
    return packed;
  };
  EXPECT_EQ(heads({a, a, a, a}, 1), 4);
  EXPECT_EQ(heads({a, a, b, b}, 2), 2);
  EXPECT_EQ(heads({a, a, b, b}, 1), 1);
  EXPECT_EQ(heads({a, b, a, b}, 2), 1);
  // A group of 12 heads has the sets 0 to 7 and 8 to 11.
  std::vector<MaskCase> twelve(12, a);
  std::fill(twelve.begin() + 8, twelve.end(), b);
  EXPECT_EQ(heads(twelve, 1), 8);
  twelve[7] = b;
  EXPECT_EQ(heads(twelve, 1), 1);
}

TEST(PackedFragments, RepeatEachMaskRowForEveryHead) {
  std::mt19937_64 rng(5);
  for (const int heads : {1, 2, 4, 8}) {
    std::vector<std::uint64_t> mask(static_cast<std::size_t>(256 / heads)), rows(256), wanted(256),
        words(256, ~std::uint64_t{0});
    for (std::uint64_t& word : mask) word = rng();
    for (std::size_t r = 0; r < 128; ++r) {
      for (std::size_t i = 0; i < 2; ++i)
        rows[2 * r + i] = mask[2 * (r / static_cast<std::size_t>(heads)) + i];
    }
    thread_fragments_from_row_major(rows.data(), wanted.data());
    packed_thread_fragments_from_row_major(mask.data(), heads, words.data());
    EXPECT_EQ(words, wanted) << heads;
  }
}

TEST(SplitRuns, AreEvenAndCoverARow) {
  for (const std::int32_t num_tiles : {1, 2, 7, 64, 1024, 1025}) {
    for (std::int32_t n = 1; n <= std::min(num_tiles, 140); ++n) {
      std::int32_t next = 0;
      for (std::int32_t i = 0; i < n; ++i) {
        const SplitRun split_run = split_run_of(num_tiles, n, i);
        ASSERT_EQ(split_run.first_tile, next);
        ASSERT_TRUE(split_run.num_tiles == num_tiles / n ||
                    split_run.num_tiles == num_tiles / n + 1);
        next += split_run.num_tiles;
      }
      ASSERT_EQ(next, num_tiles);
    }
  }
}

TEST(SplitPlans, HaveTheCellsOfTheMaskSuite) {
  PlanCounts counts;
  for (const auto& [q_len, kv_len] : {std::pair{130, 1300}, {17, 1000}, {300, 700}}) {
    for (const MaskCase& mask : testing::suite_cases(q_len, kv_len, {64, 64})) {
      EXPECT_EQ(plan_error(mask, half_shape(mask.mask, 1, 4, 2), &counts), "");
      EXPECT_EQ(plan_error(mask, half_shape(mask.mask, 2, 3, 1), &counts), "");
    }
  }
  EXPECT_GT(counts.full_tiles, 0);
  EXPECT_GT(counts.bitmap_tiles, 0);
  EXPECT_GT(counts.column_tiles, 0);
}

TEST(SplitPlans, HaveTheCellsOfEveryKindOfSegment) {
  std::mt19937 rng(7);
  PlanCounts counts;
  for (int trial = 0; trial < 12; ++trial) {
    const std::int64_t q_len = testing::pick(rng, 1, 160), kv_len = testing::pick(rng, 900, 2500);
    std::vector<MaskCase> cases;
    for (int b = 0; b < 2; ++b)
      cases.push_back(trial % 2 == 0 ? testing::tile_case(rng, q_len, kv_len)
                                     : testing::column_case(rng, q_len, kv_len));
    const MaskCase mask = testing::combined(fmt::format("trial {}", trial), 2, 1, cases, kTile);
    for (const auto& [heads_q, heads_kv] : {std::pair{1, 1}, {4, 1}, {7, 1}, {6, 2}, {12, 1}})
      EXPECT_EQ(plan_error(mask, half_shape(mask.mask, 2, heads_q, heads_kv), &counts), "");
  }
  EXPECT_GT(counts.full_tiles, 0);
  EXPECT_GT(counts.bitmap_tiles, 0);
  EXPECT_GT(counts.row_tiles, 0);
  EXPECT_GT(counts.column_tiles, 0);
}

TEST(SplitPlans, CoverLongRowsOfDecode) {
  for (const std::int64_t q_len : {1, 3, 61}) {
    for (const char* spec : {"causal", "causal & window(4096) | sink(4)"}) {
      suite::SuiteMask suite_mask = suite::make_square(spec, spec, 131071);
      suite_mask.shape.q_lens = {q_len};
      const MaskCase mask = testing::compiled_case(suite_mask, kTile);
      for (const std::int32_t group : {1, 4, 7, 8, 16}) {
        const AttentionShape shape = half_shape(mask.mask, 1, group, 1);
        const AttentionPlan plan = plan_of(mask.mask, shape);
        ASSERT_TRUE(validate(plan)) << validate(plan).error().message;
        EXPECT_EQ(plan.heads_per_tile, heads_per_tile_of_group(group));
        EXPECT_FALSE(segments_of(plan).split_rows.empty());
        if (group == 7 || group == 1) {
          EXPECT_EQ(testing::check_plan(plan, mask), "");
        }
      }
    }
  }
}

// Predicted time in full tiles of an H200.
double predicted_tiles(const AttentionPlan& plan, std::int32_t num_workers) {
  const CostModel costs = *cost_model(*shipped_profile("h200"), plan.shape, plan.direction, kTile);
  return predicted_us(plan, segments_of(plan), costs, num_workers) /
         costs.tile_us(PlanSegmentKind::full);
}

double balance_of(const AttentionPlan& plan, std::int32_t num_workers) {
  double tiles = 0;
  for (const WorkTile& work_tile : segments_of(plan).work_tiles) tiles += work_tile.num_tiles;
  return tiles / num_workers / predicted_tiles(plan, num_workers);
}

TEST(SplitPlans, KeepWorkersBusyInDecode) {
  const BlockMask mask = compiled("causal", 1, 131072);
  // The numbers of query heads, KV heads and batch elements.
  for (const auto& [heads_q, heads_kv, batch] :
       {std::tuple{32, 4, 1}, {32, 4, 8}, {8, 1, 1}, {64, 8, 2}, {32, 32, 1}, {1, 1, 1}}) {
    const AttentionShape shape = half_shape(mask, batch, heads_q, heads_kv);
    const AttentionPlan plan = plan_of(mask, shape);
    const std::string what = fmt::format("heads {}/{} batch {}", heads_q, heads_kv, batch);
    ASSERT_TRUE(validate(plan)) << what;
    const double rows = static_cast<double>(batch) * heads_kv;
    // The bound is the best possible time plus a work tile and the combination.
    const double ideal = rows * 1024 / 132;
    const CostModel costs = *cost_model(*shipped_profile("h200"), shape, plan.direction, kTile);
    const double combination =
        costs.combine_us(static_cast<double>(combined_rows(plan, segments_of(plan)))) /
        costs.tile_us(PlanSegmentKind::full);
    EXPECT_LT(predicted_tiles(plan, 132), 1.06 * ideal + 1.2 + 0.5 + combination) << what;
    EXPECT_GT(balance_of(plan, 132), rows < 2 ? 0.6 : 0.85) << what;
  }
}

TEST(SplitPlans, GainWhatIsAskedOrStayWhole) {
  for (const char* spec : {"causal", "causal & window(1024)", "~(k < 0)", "causal | global(64)"}) {
    for (const auto& [q_len, kv_len] :
         {std::pair{8192, 8192}, {2048, 32768}, {128, 8192}, {700, 700}, {1, 500}, {1, 100}}) {
      const BlockMask mask = compiled(spec, q_len, kv_len);
      for (const std::int32_t heads : {1, 2, 8, 32}) {
        const AttentionShape shape = half_shape(mask, 1, heads, heads);
        const AttentionPlan split = plan_of(mask, shape);
        const AttentionPlan whole = plan_of(mask, shape, for_sm90(SplitMode::never));
        const std::string what = fmt::format("{} {}x{} heads {}", spec, q_len, kv_len, heads);
        ASSERT_TRUE(validate(split)) << what;
        const double split_time = predicted_tiles(split, 132),
                     whole_time = predicted_tiles(whole, 132);
        if (segments_of(split).split_rows.empty()) {
          EXPECT_EQ(split, whole) << what;
        } else {
          EXPECT_LE(split_time, 0.97 * whole_time + 1e-9) << what;
        }
        // Long rows are split if workers would be idle.
        if (whole_time > 20 && segments_of(whole).work_tiles.size() < 40) {
          EXPECT_FALSE(segments_of(split).split_rows.empty()) << what;
        }
      }
    }
  }
}

TEST(SplitPlans, StayWholeWhereThereAreWorkTilesForAll) {
  for (const char* spec : {"causal", "~(k < 0)"}) {
    const BlockMask mask = compiled(spec, 8192, 8192);
    EXPECT_TRUE(segments_of(plan_of(mask, half_shape(mask, 4, 32, 8))).split_rows.empty());
  }
}

// The last group of heads has one row of global keys among many rows of a window. Without splits it
// ends late.
TEST(SplitPlans, SplitOneLongRowAmongManyShortOnes) {
  const BlockMask mask = compiled("window(128) | pos < 1", 65536, 65536);
  const AttentionShape shape = half_shape(mask, 1, 4, 4);
  const AttentionPlan plan = plan_of(mask, shape);
  ASSERT_TRUE(validate(plan));
  EXPECT_EQ(segments_of(plan).split_rows.size(), 4U);
  for (const SplitRow& row : segments_of(plan).split_rows) EXPECT_EQ(row.q_tile, 0);
  const AttentionPlan whole = plan_of(mask, shape, for_sm90(SplitMode::never));
  EXPECT_LT(predicted_tiles(plan, 132), 0.6 * predicted_tiles(whole, 132));
}

TEST(SplitPlans, FollowTheNumberOfWorkers) {
  const BlockMask mask = compiled("~(k < 0)", 128, 8192);
  PlanOptions options = for_sm90();
  for (const std::int32_t workers : {1, 4, 16, 64}) {
    options.num_workers = workers;
    const AttentionPlan plan = plan_of(mask, half_shape(mask, 1, 1, 1), options);
    EXPECT_EQ(segments_of(plan).work_tiles.size(), static_cast<std::size_t>(std::min(workers, 64)));
  }
  options.num_workers = -1;
  const auto refused = make_plan(mask, half_shape(mask, 1, 1, 1), {}, options);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("num_workers"));
}

TEST(SplitPlans, AreNotMadeForTheCpu) {
  const BlockMask mask = compiled("causal", 1, 65536);
  const AttentionPlan plan = plan_of(mask, half_shape(mask, 1, 8, 1), {});
  EXPECT_TRUE(segments_of(plan).split_rows.empty());
  EXPECT_EQ(plan.heads_per_tile, 1);
  EXPECT_EQ(segments_of(plan).work_tiles.size(), 8U);
  EXPECT_EQ(num_partials(segments_of(plan)), 0);
}

// The work of a row does not depend on how it is split.
TEST(SplitPlans, CountTheSameWork) {
  std::mt19937 rng(13);
  for (int trial = 0; trial < 6; ++trial) {
    const MaskCase mask =
        trial % 2 == 0 ? testing::tile_case(rng, 200, 3000) : testing::column_case(rng, 200, 3000);
    const AttentionShape shape = half_shape(mask.mask, 1, 2, 2);
    const AttentionPlan split = plan_of(mask.mask, shape),
                        whole = plan_of(mask.mask, shape, for_sm90(SplitMode::never));
    ASSERT_FALSE(segments_of(split).split_rows.empty());
    EXPECT_EQ(split.counts, whole.counts);
    const auto work_of = [](const AttentionPlan& plan) {
      const WorkCounter counter(plan, segments_of(plan), 64, false);
      PlanWork sum;
      for (const WorkTile& work_tile : segments_of(plan).work_tiles) {
        const PlanWork work = counter.of(work_tile);
        EXPECT_EQ(work.tiles(), work_tile.num_tiles);
        for (std::size_t kind = 0; kind < work.steps.size(); ++kind) {
          sum.steps[kind].tiles += work.steps[kind].tiles;
          sum.steps[kind].cells += work.steps[kind].cells;
        }
      }
      return sum;
    };
    EXPECT_EQ(work_of(split), work_of(whole));
  }
}

TEST(SplitPlans, AreEstimatedWithTheirCombiningAndTheirTile) {
  const BlockMask mask = compiled("causal", 1, 65536);
  const AttentionShape shape = half_shape(mask, 1, 8, 1);
  const DeviceProfile profile = *shipped_profile("h200");
  const auto split = estimate_plan(plan_of(mask, shape), profile);
  const auto whole = estimate_plan(plan_of(mask, shape, for_sm90(SplitMode::never)), profile);
  const auto unpacked =
      estimate_plan(plan_of(mask, shape, for_sm90(SplitMode::never, PackMode::never)), profile);
  ASSERT_TRUE(split && whole && unpacked);
  EXPECT_GT(split->combine_us, 0);
  EXPECT_EQ(whole->combine_us, 0);
  EXPECT_EQ(split->work, whole->work);
  EXPECT_EQ(8 * whole->work.cells(), unpacked->work.cells());
  EXPECT_LT(split->time_us, 0.2 * whole->time_us);
}

TEST(SplitPlans, AreShownByTheirText) {
  const BlockMask mask = compiled("causal", 2, 1000);
  const AttentionPlan plan = plan_of(mask, half_shape(mask, 1, 6, 2));
  const std::string text = to_text(plan, 2);
  EXPECT_THAT(text, HasSubstr("plan sm90 tile 32x128 of 4 heads score none\n"));
  EXPECT_THAT(text, HasSubstr("split rows 2, partial results 16\n"));
  EXPECT_THAT(text,
              HasSubstr("work tile 1: batch 0 heads [0, 3) q_tile 0, 1 tiles from 1 on, partial 1:"
                        " full [0, 7), rows 0 [7, 8)\n"));
}

TEST(ValidatePlan, RejectsOneChangedFieldOfSplitRows) {
  const BlockMask mask = compiled("causal", 100, 3000);
  const AttentionPlan plan = plan_of(mask, half_shape(mask, 2, 2, 2));
  ASSERT_EQ(segments_of(plan).split_rows.size(), 4U);
  ASSERT_GT(segments_of(plan).split_rows[0].num_partials, 2);
  expect_caught(
      plan,
      {{"a work tile less", [](auto& p) { segments_of(p).work_tiles.pop_back(); }},
       {"a work tile twice",
        [](auto& p) { segments_of(p).work_tiles[1] = segments_of(p).work_tiles[0]; }},
       {"whole", [](auto& p) { segments_of(p).work_tiles[0].partial = kWholeRow; }},
       {"another partial", [](auto& p) { ++segments_of(p).work_tiles[0].partial; }},
       {"a partial of another row",
        [](auto& p) { segments_of(p).work_tiles[0].partial = num_partials(segments_of(p)) - 1; }},
       {"no such partial",
        [](auto& p) {
          segments_of(p).work_tiles[0].partial =
              static_cast<std::int32_t>(num_partials(segments_of(p)));
        }},
       {"a tile less", [](auto& p) { --segments_of(p).work_tiles[0].num_tiles; }},
       {"a tile more", [](auto& p) { ++segments_of(p).work_tiles[0].num_tiles; }},
       {"no tile", [](auto& p) { segments_of(p).work_tiles[0].num_tiles = 0; }},
       {"a later tile", [](auto& p) { ++segments_of(p).work_tiles[0].first_tile; }},
       {"a tile before the first", [](auto& p) { segments_of(p).work_tiles[0].first_tile = -1; }},
       {"far beyond the end",
        [](auto& p) { segments_of(p).work_tiles[0].first_tile = 0x7fffffff; }},
       {"other entries", [](auto& p) { ++segments_of(p).work_tiles[0].num_entries; }},
       {"a row less", [](auto& p) { segments_of(p).split_rows.pop_back(); }},
       {"a row twice",
        [](auto& p) {
          segments_of(p).split_rows[1].head = segments_of(p).split_rows[0].head;
          segments_of(p).split_rows[1].batch = segments_of(p).split_rows[0].batch;
        }},
       {"no such batch element", [](auto& p) { segments_of(p).split_rows[0].batch = 2; }},
       {"no such head", [](auto& p) { segments_of(p).split_rows[0].head = -1; }},
       {"no such tile", [](auto& p) { segments_of(p).split_rows[0].q_tile = 1; }},
       {"a gap of partials", [](auto& p) { ++segments_of(p).split_rows[1].first_partial; }},
       {"one partial", [](auto& p) { segments_of(p).split_rows[3].num_partials = 1; }},
       {"very many partials",
        [](auto& p) { segments_of(p).split_rows[3].num_partials = 0x7fffffff; }},
       {"counts", [](auto& p) { ++p.counts.full_tiles; }}});
}

TEST(ValidatePlan, RejectsOneChangedFieldOfPackedHeads) {
  std::mt19937 rng(4);
  const MaskCase mask = testing::case_of(
      "noise",
      testing::make_cells(20, 100, [&](auto, auto) { return testing::pick(rng, 0, 1) == 1; }),
      kTile);
  const AttentionPlan plan = plan_of(mask.mask, half_shape(mask.mask, 1, 12, 1));
  ASSERT_EQ(plan.heads_per_tile, 8);
  ASSERT_EQ(segments_of(plan).work_tiles.size(), 4U);
  ASSERT_EQ(segments_of(plan).num_bitmaps(plan.words_per_bitmap()), 2);
  expect_caught(plan,
                {{"heads", [](auto& p) { p.heads_per_tile = 4; }},
                 {"no heads", [](auto& p) { p.heads_per_tile = 0; }},
                 {"heads below zero", [](auto& p) { p.heads_per_tile = -8; }},
                 {"rows", [](auto& p) { p.tile.block_q = 32; }},
                 {"keys", [](auto& p) { p.tile.block_kv = 256; }},
                 {"backend", [](auto& p) { p.backend = Backend::cpu; }},
                 {"not the first head", [](auto& p) { ++segments_of(p).work_tiles[0].head; }},
                 {"a partial", [](auto& p) { segments_of(p).work_tiles[0].partial = 0; }},
                 {"a first tile", [](auto& p) { segments_of(p).work_tiles[0].first_tile = 1; }},
                 // The second tile has 4 queries, which take its first 32 rows.
                 {"a bit of a row that does not exist",
                  [](auto& p) { segments_of(p).bitmaps[256 + 16 * 4] |= 1; }},
                 {"bitmaps", [](auto& p) { segments_of(p).bitmaps.resize(2 * 32); }}});
}

TEST(PartialLayout, PutsOutputsBeforeTheirSums) {
  const gpu::PartialLayout layout{128, 4};
  EXPECT_EQ(layout.out_at(0, 0), 0);
  EXPECT_EQ(layout.out_at(2, 3), (2 * 128 + 3) * 128 * 4);
  EXPECT_EQ(layout.lse_at(0, 0), 4 * 65536);
  EXPECT_EQ(layout.lse_at(2, 3), 4 * 65536 + 2 * 512 + 12);
  EXPECT_EQ(layout.bytes(), 4 * 65536 + 4 * 512);
  const gpu::SplitGrid grid{3, 5, 4};
  std::int32_t next = 0;
  for (std::int32_t b = 0; b < 2; ++b)
    for (std::int32_t q = 0; q < 3; ++q)
      for (std::int32_t set = 0; set < 5; ++set)
        for (std::int32_t split = 0; split < 4; ++split)
          EXPECT_EQ(grid.partial_of(b, q, set, split), next++);
}

}  // namespace
}  // namespace fdma
