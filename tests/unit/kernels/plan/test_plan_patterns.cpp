// Plans of masks with patterns: the cells and the tiles are those of the mask written out, and the
// plan does not grow with the tiles.
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>
#include <tuple>
#include <utility>
#include <vector>

#include "backend/pattern_cases.hpp"
#include "fdma/kernels/device_profile.hpp"
#include "fdma/kernels/estimate.hpp"
#include "fdma/kernels/plan.hpp"
#include "fdma/kernels/segment_iterator.hpp"
#include "plan/plan_cells.hpp"
#include "plan/plan_forms.hpp"
#include "plan/plan_mutations.hpp"

namespace fdma {
namespace {

using testing::causal_periodic_case;
using testing::MaskCase;
using testing::pick;
using testing::segments_of;
using testing::shape_for;
using testing::written_out;

AttentionPlan plan_of(const MaskCase& each, const PlanOptions& options, std::int32_t heads = 1) {
  AttentionShape shape = shape_for(each.mask, 1, heads, heads);
  if (options.backend == Backend::sm90) {
    shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::bfloat16;
    shape.head_dim = shape.head_dim_v = 128;
  }
  auto plan = make_plan(each.mask, shape, {}, options);
  EXPECT_TRUE(plan) << each.name << ": " << plan.error().message;
  return *std::move(plan);
}

std::string error_of(const AttentionPlan& plan, const MaskCase& each) {
  if (const auto valid = validate(plan); !valid) return each.name + ": " + valid.error().message;
  return testing::check_plan(plan, each);
}

// The tiles of every work tile in the order of its walk, and the words of their bitmaps.
using Steps = std::vector<std::tuple<std::int32_t, bool, std::vector<std::uint64_t>>>;
std::map<std::tuple<int, int, int, int>, Steps> steps_of(const AttentionPlan& plan) {
  std::map<std::tuple<int, int, int, int>, Steps> all;
  const SegmentPlan& form = segments_of(plan);
  for (const WorkTile& work_tile : form.work_tiles) {
    Steps& steps = all[{work_tile.batch, work_tile.head, work_tile.q_tile, work_tile.first_tile}];
    SegmentIterator it(form.segments.data(), work_tile);
    TileStep step;
    for (int i = 0; i < work_tile.num_tiles && it.next(step, form.pattern_arrays()); ++i) {
      std::vector<std::uint64_t> words;
      if (step.kind == PlanSegmentKind::bitmap) {
        const auto begin = form.bitmaps.begin() + step.data_index * plan.words_per_bitmap();
        words.assign(begin, begin + plan.words_per_bitmap());
      }
      steps.emplace_back(step.tile, step.kind == PlanSegmentKind::full, std::move(words));
    }
  }
  return all;
}

TEST(PlanOfPatterns, HasTheCellsOfRandomMasks) {
  std::mt19937 rng(20);
  int num_kept = 0;
  for (int trial = 0; trial < 400; ++trial) {
    const MaskCase each = testing::random_pattern_mask(rng);
    PlanOptions options;
    options.tile = pick(rng, 0, 4) == 0 ? testing::random_block(rng) : each.mask.block;
    options.columns = pick(rng, 0, 3) == 0 ? ColumnMode::automatic : ColumnMode::scan;
    const AttentionPlan plan = plan_of(each, options, 2);
    ASSERT_EQ(error_of(plan, each), "") << trial;
    num_kept += segments_of(plan).patterns.empty() ? 0 : 1;
    options.direction = Direction::backward;
    const AttentionPlan backward = plan_of(each, options, 2);
    ASSERT_EQ(error_of(backward, each), "") << trial;
  }
  EXPECT_GT(num_kept, 100);
}

TEST(PlanOfPatterns, WalksTheTilesOfTheMaskWrittenOut) {
  std::mt19937 rng(21);
  int num_compared = 0;
  for (int trial = 0; trial < 200; ++trial) {
    const MaskCase each = testing::random_pattern_mask(rng);
    const MaskCase expanded = written_out(each);
    PlanOptions options;
    options.tile = each.mask.block;
    options.columns = ColumnMode::scan;
    const AttentionPlan plan = plan_of(each, options), wanted = plan_of(expanded, options);
    // Panels and column tables hold the cells that bitmaps hold here.
    if (wanted.counts.row_tiles + wanted.counts.column_tiles > 0) continue;
    ++num_compared;
    EXPECT_EQ(steps_of(plan), steps_of(wanted)) << trial;
    EXPECT_EQ(plan.counts, wanted.counts) << trial;
  }
  EXPECT_GT(num_compared, 50);
}

// Patterns of one row and of several, skewed ones, ends that move or not; periods that divide the
// tile rows and periods above them.
TEST(PlanOfPatterns, HasTheCellsOfMovingPatterns) {
  for (const MaskCase& each :
       {causal_periodic_case(23, 16, 10, 3), causal_periodic_case(40, 16, 80, 48),
        causal_periodic_case(12, 16, 16 * 37, 16 * 30), causal_periodic_case(9, 16, 7, 3),
        testing::window_periodic_case(30, 16, 96, 80, 20),
        testing::window_periodic_case(30, 16, 160, 3, 1)}) {
    PlanOptions options;
    options.tile = {16, 16};
    options.columns = ColumnMode::scan;
    const AttentionPlan plan = plan_of(each, options, 2);
    EXPECT_EQ(error_of(plan, each), "");
    EXPECT_FALSE(segments_of(plan).patterns.empty()) << each.name;
    EXPECT_EQ(steps_of(plan), steps_of(plan_of(written_out(each), options, 2))) << each.name;
  }
}

TEST(PlanOfPatterns, HasTheCellsOnSm90WithAndWithoutSplitRows) {
  const MaskCase each = causal_periodic_case(11, 128, 640, 300);
  PlanOptions options;
  options.backend = Backend::sm90;
  for (const std::int32_t workers : {1, 400}) {
    options.num_workers = workers;
    const AttentionPlan plan = plan_of(each, options);
    EXPECT_EQ(error_of(plan, each), "") << workers;
    EXPECT_FALSE(segments_of(plan).patterns.empty());
    EXPECT_EQ(segments_of(plan).split_rows.empty(), workers == 1);
    const AttentionPlan wanted = plan_of(written_out(each), options);
    EXPECT_EQ(plan.counts, wanted.counts);
    EXPECT_EQ(steps_of(plan), steps_of(wanted));
    EXPECT_EQ(segments_of(plan).split_rows, segments_of(wanted).split_rows);
  }
}

TEST(PlanOfPatterns, IsEstimatedAsTheMaskWrittenOut) {
  std::mt19937 rng(22);
  std::vector<MaskCase> cases{causal_periodic_case(9, 128, 640, 300),
                              causal_periodic_case(8, 128, 10, 3)};
  for (int trial = 0; trial < 200; ++trial) {  // the profile has costs for tiles of 64 x 64
    MaskCase random = testing::random_pattern_mask(rng);
    if (random.mask.block == BlockShape{64, 64}) cases.push_back(std::move(random));
  }
  for (const MaskCase& each : cases) {
    for (const Backend backend : {Backend::cpu, Backend::sm90}) {
      if (backend == Backend::sm90 && each.mask.block != BlockShape{128, 128}) continue;
      PlanOptions options;
      options.backend = backend;
      options.tile = each.mask.block;
      options.columns = ColumnMode::scan;
      const auto profile = default_profile(backend);
      const AttentionPlan plan = plan_of(each, options);
      const AttentionPlan expanded = plan_of(written_out(each), options);
      const auto predicted = estimate_plan(plan, *profile);
      const auto wanted = estimate_plan(expanded, *profile);
      ASSERT_TRUE(predicted) << each.name << ": " << predicted.error().message;
      ASSERT_TRUE(wanted) << each.name << ": " << wanted.error().message;
      EXPECT_EQ(predicted->work.tiles(), wanted->work.tiles()) << each.name;
      // Other forms of the same cells have other costs.
      if (expanded.counts.row_tiles + expanded.counts.column_tiles > 0) continue;
      EXPECT_EQ(predicted->work, wanted->work) << each.name;
      EXPECT_NEAR(predicted->time_us / wanted->time_us, 1, 1e-9) << each.name;
      EstimateOptions whole;
      whole.tile = options.tile;
      whole.columns = options.columns;
      const AttentionShape& shape = plan.shape;
      const auto savings = estimate(each.mask, shape, *profile, whole);
      const auto wanted_savings = estimate(written_out(each).mask, shape, *profile, whole);
      ASSERT_TRUE(savings && wanted_savings) << each.name;
      EXPECT_EQ(savings->allowed_pairs, wanted_savings->allowed_pairs) << each.name;
      EXPECT_EQ(savings->partial_dead_cells, wanted_savings->partial_dead_cells) << each.name;
    }
  }
}

// Live keys of sparse tiles go to kv index lists as they do without patterns.
TEST(PlanOfPatterns, AreWrittenOutWhereTilesAreGathered) {
  const MaskCase each = causal_periodic_case(20, 128, 640, 5);
  PlanOptions options;
  options.columns = ColumnMode::gather;
  const AttentionPlan plan = plan_of(each, options), wanted = plan_of(written_out(each), options);
  EXPECT_GT(plan.counts.gather_entries, 0);
  EXPECT_TRUE(segments_of(plan).patterns.empty());
  EXPECT_EQ(plan.counts, wanted.counts);
  EXPECT_EQ(error_of(plan, each), "");

  // Lists that would take too many bytes are not made, and the patterns stay.
  options.columns = ColumnMode::automatic;
  EXPECT_GT(plan_of(each, options).counts.gather_entries, 0);
  options.max_kv_index_bytes = 1000;
  const AttentionPlan scanned = plan_of(each, options);
  EXPECT_EQ(scanned.counts.gather_entries, 0);
  EXPECT_FALSE(segments_of(scanned).patterns.empty());
  EXPECT_EQ(error_of(scanned, each), "");
}

// Kernels that gather know no patterns.
TEST(PlanOfPatterns, AreWrittenOutWhereAnotherHeadGathers) {
  const MaskCase dense = causal_periodic_case(20, 128, 640, 300),
                 sparse = causal_periodic_case(20, 128, 640, 5);
  MaskCase both;
  both.name = "one head gathers";
  MaskShape mask_shape = dense.mask.shape;
  mask_shape.num_heads = 2;
  std::vector<SegmentMask> groups;
  for (const MaskCase* each : {&dense, &sparse}) {
    groups.push_back(std::get<std::vector<SegmentMask>>(each->mask.groups).front());
    both.cells.push_back(each->cells.front());
  }
  both.mask = make_block_mask(mask_shape, {128, 128}, std::move(groups));
  PlanOptions options;
  options.columns = ColumnMode::automatic;
  const AttentionPlan plan = plan_of(both, options);
  EXPECT_GT(plan.counts.gather_entries, 0);
  EXPECT_GT(plan.counts.bitmap_tiles, 0);
  EXPECT_TRUE(segments_of(plan).patterns.empty());
  EXPECT_EQ(error_of(plan, both), "");
  options.columns = ColumnMode::scan;
  EXPECT_FALSE(segments_of(plan_of(both, options)).patterns.empty());
}

TEST(PlanOfPatterns, DoesNotGrowWithTheTiles) {
  MaskCase each;
  each.mask = causal_periodic_case(1, 128, 10, 3).mask;
  SegmentMask mask = testing::causal_periodic(8192, 128, 10, 3);
  each.mask.shape.q_lens = each.mask.shape.kv_lens = {mask.q_len};
  std::get<std::vector<SegmentMask>>(each.mask.groups).front() = std::move(mask);
  for (const Backend backend : {Backend::cpu, Backend::sm90}) {
    PlanOptions options;
    options.backend = backend;
    const AttentionPlan plan = plan_of(each, options);
    EXPECT_EQ(plan.counts.bitmap_tiles, std::int64_t{8192} * 8193 / 2);
    EXPECT_TRUE(validate(plan));
    EXPECT_LT(segments_of(plan).segments.size(), 100);
    EXPECT_LT(plan.size_bytes(), 8192 * 40 + 100000);
  }
}

TEST(PlanOfPatterns, AreNamedInTheText) {
  PlanOptions options;
  options.tile = {16, 16};
  options.columns = ColumnMode::scan;
  const AttentionPlan plan = plan_of(causal_periodic_case(12, 16, 80, 40), options);
  // Query tile 11: the tiles 0, 1, 2, 5, 6, 7 and 10 of 5-tile turns, then the diagonal.
  EXPECT_NE(to_text(plan, 1).find("q_tile 11, 8 tiles: pattern 1 [0, 11) (7 tiles), pattern 2 "),
            std::string::npos)
      << to_text(plan, 1);
}

TEST(ValidatePlan, FindsWhatIsWrongWithPatterns) {
  PlanOptions options;
  options.tile = {16, 16};
  options.columns = ColumnMode::scan;
  const AttentionPlan plan = plan_of(causal_periodic_case(12, 16, 80, 40), options);
  const auto pattern = [](AttentionPlan& p) -> PlanPattern& {
    for (PlanPattern& each : segments_of(p).patterns) {
      if (each.num_entries > 1) return each;
    }
    throw std::runtime_error("no pattern of several entries");
  };
  const auto segment = [](AttentionPlan& p) -> PlanSegment& {
    for (PlanSegment& each : segments_of(p).segments) {
      if (each.kind == PlanSegmentKind::pattern && each.step_end > 0) return each;
    }
    throw std::runtime_error("no pattern segment");
  };
  testing::expect_caught(
      plan, {{"no pattern", [](auto& p) { segments_of(p).patterns.pop_back(); }},
             {"first_entry", [&](auto& p) { pattern(p).first_entry = 1 << 30; }},
             {"negative first_entry", [&](auto& p) { pattern(p).first_entry = -1; }},
             {"no entries", [&](auto& p) { pattern(p).num_entries = 0; }},
             {"too many entries", [&](auto& p) { pattern(p).num_entries = 1 << 30; }},
             {"num_cols", [&](auto& p) { pattern(p).num_cols = 2; }},
             {"positive shift", [&](auto& p) { pattern(p).shift = 1; }},
             {"shift of a turn", [&](auto& p) { pattern(p).shift = -pattern(p).num_cols; }},
             {"columns do not ascend",
              [&](auto& p) {
                const auto second = static_cast<std::size_t>(pattern(p).first_entry) + 1;
                segments_of(p).pattern_entries[second].column = 0;
              }},
             {"negative column", [](auto& p) { segments_of(p).pattern_entries[0].column = -1; }},
             {"bitmap", [](auto& p) { segments_of(p).pattern_entries[0].bitmap = 1 << 20; }},
             {"negative bitmap", [](auto& p) { segments_of(p).pattern_entries[0].bitmap = -2; }},
             {"a tile before the first", [&](auto& p) { segment(p).first_tile = -1; }},
             {"a tile past the last", [&](auto& p) { segment(p).step_end *= 100; }},
             {"an end before the first", [&](auto& p) { segment(p).end_tile = -1; }},
             {"data index", [&](auto& p) { segment(p).data_index = 1 << 20; }},
             {"counts", [](auto& p) { p.counts.bitmap_tiles += 1; }}});
}

}  // namespace
}  // namespace fdma
