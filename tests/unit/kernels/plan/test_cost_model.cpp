// Tests the cost model and what the planner does by it: costs are those of the profile, the planner
// predicts what the estimates predict, other costs make other choices, and a plan's report names
// what was considered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "backend/scattered_cases.hpp"
#include "fdma/kernels/cost_model.hpp"
#include "fdma/kernels/estimate.hpp"
#include "fdma/kernels/plan.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "mask_suite.hpp"
#include "plan/plan_forms.hpp"
#include "plan/query_passes.hpp"
#include "plan/splits.hpp"

namespace fdma {
namespace {

using testing::closed_forms_of;
using ::testing::HasSubstr;
using testing::MaskCase;
using testing::segments_of;

constexpr BlockShape kTile{128, 128};

AttentionShape half_shape(const BlockMask& mask, std::int32_t heads_q, std::int32_t heads_kv,
                          std::int32_t head_dim = 128) {
  AttentionShape shape = testing::shape_for(mask, 1, heads_q, heads_kv);
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::bfloat16;
  shape.head_dim = shape.head_dim_v = head_dim;
  return shape;
}

AttentionPlan plan_by(const DeviceProfile& profile, const BlockMask& mask,
                      const AttentionShape& shape, PlanOptions options = {}) {
  options.backend = profile.backend;
  options.profile = std::make_shared<const DeviceProfile>(profile);
  auto plan = make_plan(mask, shape, {}, options);
  if (!plan) throw std::runtime_error(plan.error().message);
  return *std::move(plan);
}

KernelCosts& kernel_of(DeviceProfile& profile, Direction direction, std::int32_t head_dim) {
  for (KernelCosts& kernel : profile.kernels) {
    if (kernel.direction == direction && kernel.dtype == DType::bfloat16 &&
        kernel.head_dim == head_dim) {
      return kernel;
    }
  }
  throw std::runtime_error("the profile has no such kernel");
}

// What the planner leaves out: work tiles that are taken ahead, and a card at its power limit.
DeviceProfile at_full_clocks(DeviceProfile profile) {
  profile.burst_us = profile.sustained_us = 0;
  for (KernelCosts& kernel : profile.kernels) kernel.ahead_us = 0;
  return profile;
}

BlockMask compiled(const char* spec, std::int64_t q_len, std::int64_t kv_len) {
  suite::SuiteMask mask = suite::make_square(spec, spec, kv_len);
  mask.shape.q_lens = {q_len};
  return testing::compiled_case(mask, kTile).mask;
}

TEST(CostModel, TakesTheCostsOfTheProfile) {
  const DeviceProfile h200 = *shipped_profile("h200");
  AttentionShape shape;
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::bfloat16;
  const CostModel costs = *cost_model(h200, shape, Direction::forward);
  const KernelCosts kernel = *kernel_costs(h200, Direction::forward, DType::bfloat16, 128);
  const TileCosts& tile = kernel.tiles.front();
  EXPECT_EQ(costs.profile, "h200");
  EXPECT_EQ(costs.num_workers, 132);
  EXPECT_EQ(costs.tile, tile);
  EXPECT_EQ(costs.tile_us(PlanSegmentKind::full), tile.full.compute_us);
  // Masks are found while tiles are computed.
  EXPECT_EQ(costs.tile_us(PlanSegmentKind::rows), tile.rows.tile_us);
  EXPECT_DOUBLE_EQ(costs.tile_us(PlanSegmentKind::gather),
                   tile.gather.tile_us + tile.gather.compute_us);
  // 130 keys are an index tile of 128 and one of 32.
  EXPECT_DOUBLE_EQ(costs.us(costs.index_list(130)),
                   2 * tile.gather.tile_us + 1.25 * tile.gather.compute_us);
  EXPECT_DOUBLE_EQ(costs.work_tile_us(WorkCost{0, 7}), tile.item_us + 7);
  EXPECT_DOUBLE_EQ(costs.work_tile_us(WorkCost{9, 7}, true), tile.item_us + tile.split_us + 9);
  EXPECT_EQ(costs.combine_us(0), 0);
  EXPECT_DOUBLE_EQ(costs.combine_us(100), kernel.combine_us + 100 * kernel.combine_row_us);
  EXPECT_EQ(costs.move_us(0), 0);
  EXPECT_DOUBLE_EQ(costs.move_us(1000), kernel.move_us + 1000 * kernel.moved_key_us);
  EXPECT_DOUBLE_EQ(costs.lists_us(10, 100),
                   kernel.list_launch_us + 10 * kernel.list_us + 100 * kernel.list_entry_us);
}

TEST(CostModel, PartsOfAScoreAddTheirSharesToWhatTilesCompute) {
  for (const std::string_view name : shipped_profile_names()) {
    const DeviceProfile profile = *shipped_profile(name);
    const BlockMask mask = compiled("causal", 600, 600);
    const AttentionShape shape = half_shape(mask, 4, 2);
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      const CostModel plain = *cost_model(profile, shape, direction, {0, 0}, {});
      const KernelCosts& kernel = plain.kernel;
      const struct {
        ScoreSpec score;
        double share;
      } cases[] = {{{.softcap = true}, kernel.softcap_share},
                   {{.bias = true}, kernel.bias_share},
                   {{.alibi = true}, kernel.alibi_share},
                   {{.relative_table = true}, kernel.relative_table_share},
                   {{.dropout = true}, kernel.dropout_share},
                   {{.softcap = true, .alibi = true, .sink = true},
                    kernel.softcap_share + kernel.alibi_share}};
      for (const auto& [score, share] : cases) {
        const CostModel costs = *cost_model(profile, shape, direction, {0, 0}, score);
        EXPECT_GT(share, 0) << name << ", " << to_string(score);
        EXPECT_DOUBLE_EQ(costs.tile.full.compute_us, (1 + share) * plain.tile.full.compute_us);
        EXPECT_DOUBLE_EQ(costs.tile.bitmap.compute_us, (1 + share) * plain.tile.bitmap.compute_us);
        EXPECT_EQ(costs.tile.full.tile_us, plain.tile.full.tile_us);
        EXPECT_EQ(costs.tile.item_us, plain.tile.item_us);
      }
      for (const ScoreSpec score : {ScoreSpec{.key_bias = true}, ScoreSpec{.sink = true}}) {
        const CostModel costs = *cost_model(profile, shape, direction, {0, 0}, score);
        EXPECT_EQ(costs.tile.full, plain.tile.full) << to_string(score);
      }
    }
  }
}

TEST(CostModel, InterpolatesAndScalesAsTheEstimatesDo) {
  const DeviceProfile cpu = *shipped_profile("cpu");
  AttentionShape shape;
  shape.head_dim = shape.head_dim_v = 96;
  EXPECT_EQ(cost_model(cpu, shape, Direction::forward)->kernel,
            *kernel_costs(cpu, Direction::forward, DType::float32, 96));
  const CostModel whole = *cost_model(cpu, shape, Direction::forward);
  const CostModel half = *cost_model(cpu, shape, Direction::forward, {32, 64});
  EXPECT_FALSE(half.has_tile);
  EXPECT_DOUBLE_EQ(half.tile_us(PlanSegmentKind::full), whole.tile_us(PlanSegmentKind::full) / 8);
  shape.k_dtype = DType::bfloat16;
  EXPECT_TRUE(cost_model(cpu, shape, Direction::backward));
  DeviceProfile forward_only = cpu;
  std::erase_if(forward_only.kernels,
                [](const KernelCosts& each) { return each.direction == Direction::backward; });
  const auto refused = cost_model(forward_only, shape, Direction::backward);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, ErrorCode::unsupported);
}

TEST(MakePlan, RejectsAProfileWithoutCostsForTheCall) {
  const BlockMask mask = compiled("causal", 256, 256);
  PlanOptions options;
  options.profile = std::make_shared<const DeviceProfile>(*shipped_profile("h200"));
  const auto refused = make_plan(mask, testing::shape_for(mask, 1, 1, 1), {}, options);
  ASSERT_FALSE(refused);
  EXPECT_THAT(refused.error().message, HasSubstr("device profile 'h200' has no costs"));
  DeviceProfile damaged = *shipped_profile("cpu");
  damaged.kernels.front().tiles.front().item_us = -1;
  options.profile = std::make_shared<const DeviceProfile>(damaged);
  const auto invalid = make_plan(mask, testing::shape_for(mask, 1, 1, 1), {}, options);
  ASSERT_FALSE(invalid);
  EXPECT_THAT(invalid.error().message, HasSubstr("item_us"));
}

TEST(DefaultProfile, IsTheOneThatTheTraitsName) {
  EXPECT_EQ(default_profile(Backend::sm90)->name, "h200");
  EXPECT_EQ(default_profile(Backend::cpu)->name, "cpu");
  const BlockMask mask = compiled("causal", 256, 256);
  EXPECT_EQ(make_plan(mask, testing::shape_for(mask, 1, 1, 1))->report.profile, "cpu");
}

// The planner's predictions are those of the estimate for the same plan.
TEST(PlanCosts, AreThoseOfTheEstimate) {
  const DeviceProfile h200 = at_full_clocks(*shipped_profile("h200"));
  std::vector<MaskCase> masks = testing::scattered_cases(700, 2048, 12);
  for (const char* spec : {"causal", "causal & window(300)", "causal | global(64)"}) {
    masks.push_back({spec, compiled(spec, 1024, 2048), {}});
  }
  for (const MaskCase& mask : masks) {
    for (const std::int32_t head_dim : {64, 128}) {
      const AttentionShape shape = half_shape(mask.mask, 4, 4, head_dim);
      for (const ColumnMode columns :
           {ColumnMode::automatic, ColumnMode::scan, ColumnMode::gather, ColumnMode::reorder}) {
        PlanOptions options;
        options.columns = columns;
        options.split = SplitMode::never;
        const AttentionPlan whole = plan_by(h200, mask.mask, shape, options);
        const CostModel costs = *cost_model(h200, shape, Direction::forward, kTile);
        const PlanEstimate estimate = *estimate_plan(whole, h200);
        EXPECT_NEAR(predicted_us(whole, segments_of(whole), costs, 132),
                    estimate.schedule.makespan_us, 1e-9 * estimate.schedule.makespan_us)
            << mask.name;
        const PlanDecision* const decision = whole.report.find("columns");
        ASSERT_NE(decision, nullptr);
        const double items_us =
            costs.tile.item_us * static_cast<double>(estimate.schedule.num_work_tiles);
        const double wanted_us = (estimate.schedule.busy_us - items_us) / 132 + estimate.move_us;
        EXPECT_NEAR(*decision->alternatives[decision->taken].cost_us, wanted_us,
                    1e-9 * estimate.schedule.busy_us)
            << mask.name << " " << to_string(columns);
      }
      const AttentionPlan split = plan_by(h200, mask.mask, shape);
      const CostModel costs = *cost_model(h200, shape, Direction::forward, kTile);
      const PlanEstimate estimate = *estimate_plan(split, h200);
      // A part is taken to cost its share of the row.
      const double total_us = estimate.schedule.makespan_us + estimate.combine_us;
      EXPECT_NEAR(predicted_us(split, segments_of(split), costs, 132), total_us, 0.1 * total_us)
          << mask.name;
    }
  }
}

TEST(PlanCosts, OfKvWorklistsAreThoseOfTheEstimate) {
  const DeviceProfile h200 = at_full_clocks(*shipped_profile("h200"));
  std::vector<suite::SuiteMask> masks = suite::mask_suite(2048);
  int num_worklists = 0;
  for (const suite::SuiteMask& each : masks) {
    if (each.name != "random_eviction" && each.name != "zoh_topk") continue;
    const MaskCase mask = testing::compiled_case(each, kTile);
    for (const ColumnMode columns : {ColumnMode::automatic, ColumnMode::reorder}) {
      PlanOptions options;
      options.direction = Direction::backward;
      options.columns = columns;
      const AttentionPlan plan = plan_by(h200, mask.mask, half_shape(mask.mask, 8, 4), options);
      const PlanDecision* const decision = plan.report.find("kv worklist");
      ASSERT_NE(decision, nullptr);
      const PlanEstimate estimate = *estimate_plan(plan, h200);
      EXPECT_EQ(estimate.move_us, 0);
      const double keys_us = estimate.query_us - static_cast<double>(query_pass_bytes(plan.shape)) /
                                                     h200.memory_bytes_per_us;
      const double wanted_us = estimate.schedule.busy_us / 132 + keys_us;
      EXPECT_NEAR(*decision->alternatives[decision->taken].cost_us, wanted_us,
                  (testing::has_worklist(plan) ? 1e-9 : 0.01) * wanted_us)
          << each.name;
      num_worklists += testing::has_worklist(plan) ? 1 : 0;
    }
  }
  EXPECT_GE(num_worklists, 2);
}

TEST(PlanCosts, ThatCombineDearlyKeepRowsWhole) {
  const BlockMask mask = compiled("causal", 1, 65536);
  const AttentionShape shape = half_shape(mask, 8, 1);
  DeviceProfile profile = *shipped_profile("h200");
  const AttentionPlan split = plan_by(profile, mask, shape);
  EXPECT_FALSE(segments_of(split).split_rows.empty());
  const PlanDecision* decision = split.report.find("split");
  ASSERT_NE(decision, nullptr);
  EXPECT_EQ(decision->alternatives[decision->taken].name, "parts of rows");
  EXPECT_LT(*decision->alternatives[1].cost_us, *decision->alternatives[0].cost_us);
  EXPECT_NEAR(*decision->alternatives[1].cost_us,
              predicted_us(split, segments_of(split),
                           *cost_model(profile, shape, Direction::forward, kTile), 132),
              1e-9 * *decision->alternatives[1].cost_us);
  kernel_of(profile, Direction::forward, 128).combine_us = 1e6;
  const AttentionPlan whole = plan_by(profile, mask, shape);
  EXPECT_TRUE(segments_of(whole).split_rows.empty());
  decision = whole.report.find("split");
  ASSERT_NE(decision, nullptr);
  EXPECT_EQ(decision->alternatives[decision->taken].name, "whole rows");
  PlanOptions closed_form;
  closed_form.form = PlanForm::parametric;
  EXPECT_EQ(closed_forms_of(plan_by(profile, mask, shape, closed_form)).num_splits, 1);
  EXPECT_GT(closed_forms_of(plan_by(*shipped_profile("h200"), mask, shape, closed_form)).num_splits,
            1);
}

// Half of the keys of every tile are live.
TEST(PlanCosts, OfIndexTilesDecideWhatIsGathered) {
  const MaskCase mask = testing::case_of(
      "half",
      testing::make_cells(1024, 2048, [](auto q, auto k) { return (k * 7 + q / 512) % 2 == 0; }),
      kTile);
  const AttentionShape shape = half_shape(mask.mask, 4, 4);
  DeviceProfile profile = *shipped_profile("h200");
  const auto gathered = [&](double factor) {
    DeviceProfile changed = profile;
    StepCosts& gather = kernel_of(changed, Direction::forward, 128).tiles.front().gather;
    gather.tile_us *= factor;
    gather.compute_us *= factor;
    return plan_by(changed, mask.mask, shape).counts.gather_entries;
  };
  EXPECT_GT(gathered(0.1), 0);
  EXPECT_EQ(gathered(10), 0);
}

TEST(PlanCosts, OfMovingKeysDecideOnPermutations) {
  MaskCase mask;
  for (const suite::SuiteMask& each : suite::mask_suite(8192)) {
    if (each.name != "random_eviction") continue;
    mask.mask = *compile(*parse_mask(each.spec), each.bound_tables(), each.shape);
  }
  const AttentionShape shape = half_shape(mask.mask, 32, 8);
  DeviceProfile profile = *shipped_profile("h200");
  EXPECT_FALSE(segments_of(plan_by(profile, mask.mask, shape)).kv_permutations.empty());
  kernel_of(profile, Direction::forward, 128).move_us = 1e5;
  const AttentionPlan plan = plan_by(profile, mask.mask, shape);
  EXPECT_TRUE(segments_of(plan).kv_permutations.empty());
  const PlanDecision* const decision = plan.report.find("columns");
  ASSERT_NE(decision, nullptr);
  ASSERT_EQ(decision->alternatives.size(), 3U);
  EXPECT_GT(*decision->alternatives[2].cost_us, 1e5);
}

TEST(PlanReport, NamesWhatWasConsidered) {
  const MaskCase mask = testing::scattered_cases(300, 2000, 9).front();
  PlanOptions options;
  options.backend = Backend::sm90;
  const AttentionPlan forward = *make_plan(mask.mask, half_shape(mask.mask, 8, 2), {}, options);
  std::vector<std::string> subjects;
  for (const PlanDecision& decision : forward.report.decisions) {
    subjects.push_back(decision.subject);
    ASSERT_LT(decision.taken, decision.alternatives.size());
    for (const PlanAlternative& each : decision.alternatives) {
      EXPECT_TRUE(each.cost_us || !each.reason.empty() || decision.subject == "split")
          << decision.subject << ": " << each.name;
    }
  }
  EXPECT_EQ(subjects,
            (std::vector<std::string>{"heads of a tile", "columns", "split", "heads in L2"}));
  const PlanDecision* const columns = forward.report.find("columns");
  ASSERT_EQ(columns->alternatives.size(), 3U);
  EXPECT_EQ(columns->alternatives[0].name, "scan");
  EXPECT_EQ(columns->alternatives[1].name, "gather");
  EXPECT_EQ(columns->alternatives[2].name, "reorder");
  EXPECT_THAT(to_text(forward), HasSubstr(to_text(forward.report)));
  EXPECT_THAT(to_text(forward.report), HasSubstr("costs by h200, 132 workers\nchoice "));
  options.direction = Direction::backward;
  const AttentionPlan backward = *make_plan(mask.mask, half_shape(mask.mask, 8, 2), {}, options);
  EXPECT_NE(backward.report.find("kv worklist"), nullptr);
  EXPECT_EQ(backward.report.find("split"), nullptr);
}

TEST(PlanReport, IsNoPartOfWhatRuns) {
  const BlockMask mask = compiled("causal", 256, 256);
  const AttentionShape shape = testing::shape_for(mask, 1, 1, 1);
  AttentionPlan plan = *make_plan(mask, shape);
  EXPECT_FALSE(plan.report.decisions.empty());
  plan.report = {};
  EXPECT_EQ(plan, *make_plan(mask, shape));
}

TEST(PlanReportText, ShowsTheTakenWayFirst) {
  PlanReport report{.profile = "h200", .num_workers = 132, .decisions = {}};
  report.decisions.push_back({"columns",
                              {{"scan", 41.54, {}},
                               {"gather", 12.3, {}},
                               {"reorder", {}, "no keys with query intervals of their own"}},
                              1,
                              "gains at least 3 % of a row"});
  report.decisions.push_back({"heads of a tile", {{"1 head", 3, {}}}, 0, {}});
  EXPECT_EQ(to_text(report),
            "costs by h200, 132 workers\n"
            "choice columns: gather 12.3 us; not scan 41.54 us, reorder (no keys with query "
            "intervals of their own); rule: gains at least 3 % of a row\n"
            "choice heads of a tile: 1 head 3 us\n");
  EXPECT_EQ(to_text(PlanReport{}), "");
  report.is_assumed = true;
  EXPECT_THAT(to_text(report), HasSubstr("costs by h200, 132 workers, some assumed\n"));
}

}  // namespace
}  // namespace fdma
