// Tests closed-form plans: closed forms, counts, text, estimates and refusals.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "backend/closed_form_cases.hpp"
#include "estimate/work_tile_counts.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/kernels/estimate.hpp"
#include "plan/closed_form.hpp"
#include "plan/plan_forms.hpp"
#include "plan/splits.hpp"

namespace fdma {
namespace {

using testing::closed_forms_of;
using ::testing::HasSubstr;
using testing::is_closed_form;
using testing::MaskCase;
using testing::pick;

PlanOptions parametric() {
  PlanOptions options;
  options.form = PlanForm::parametric;
  return options;
}

// Returns the cells of an element, in either direction, by its closed form.
testing::Cells cells_of_element(const ClosedFormElement& element) {
  const auto sees = [&](std::int64_t row, std::int64_t column) {
    const auto intervals = element.intervals(static_cast<std::int32_t>(row));
    return std::any_of(intervals.begin(), intervals.end(), [&](const ClosedFormRange& each) {
      return each.begin <= column && column < each.end;
    });
  };
  if (element.is_backward) {
    return testing::make_cells(element.num_columns, element.num_rows,
                               [&](std::int64_t q, std::int64_t k) { return sees(k, q); });
  }
  return testing::make_cells(element.num_rows, element.num_columns, sees);
}

TEST(MakeClosedFormPlan, HasTheCellsOfItsMask) {
  for (std::uint32_t seed = 0; seed < 400; ++seed) {
    std::mt19937 rng(seed);
    ParametricMask form = testing::random_form(rng, 120, 120);
    if (pick(rng, 0, 9) == 0) {  // farther than any key
      form.left = pick(rng, 0, 1) == 0 ? std::int64_t{1} << 40 : -(std::int64_t{1} << 40);
      form.right = std::int64_t{1} << 35;
    }
    if (pick(rng, 0, 9) == 0 && !form.cu_seqlens.empty()) {
      form.cu_seqlens.front() = -(std::int64_t{1} << 39);
    }
    const BlockMask mask = testing::block_mask_of(form);
    for (const Direction direction : {Direction::forward, Direction::backward}) {
      PlanOptions options = parametric();
      options.direction = direction;
      const auto plan = make_plan(mask, testing::shape_for(mask, 2, 2, 1), {}, options);
      ASSERT_TRUE(plan) << plan.error().message;
      ASSERT_TRUE(validate(*plan)) << validate(*plan).error().message;
      ASSERT_EQ(closed_forms_of(*plan).closed_forms.size(), 1u);
      for (const ClosedFormElement& element : closed_form_elements(*plan, closed_forms_of(*plan))) {
        ASSERT_EQ(cells_of_element(element), testing::cells_of(form))
            << closed_form_text(closed_forms_of(*plan), 0);
      }
    }
  }
}

// Elements that differ in their lengths alone share a closed form; others have one each.
TEST(MakeClosedFormPlan, SharesAClosedFormWhereElementsDifferInLengthOnly) {
  const auto mask_of = [](std::int64_t left_of_last) {
    std::vector<MaskCase> cases;
    for (const std::int64_t len : {90, 70, 50}) {
      ParametricMask form = testing::plain_forms(len, len)[1];
      form.left = len == 50 ? left_of_last : 20;
      cases.push_back(testing::case_of("", testing::cells_of(form), {16, 16}));
    }
    return testing::combined("", 3, 1, cases, {16, 16}).mask;
  };
  for (const auto& [left, num_closed_forms] : {std::pair{20, 1u}, {10, 3u}}) {
    const BlockMask mask = mask_of(left);
    const auto plan = make_plan(mask, testing::shape_for(mask, 3, 1, 1), {}, parametric());
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_EQ(closed_forms_of(*plan).closed_forms.size(), num_closed_forms);
    const std::vector<ClosedFormElement> elements =
        closed_form_elements(*plan, closed_forms_of(*plan));
    for (std::size_t b = 0; b < 3; ++b) {
      const std::int64_t len = mask.shape.q_lens[b];
      ParametricMask form = testing::plain_forms(len, len)[1];
      form.left = b == 2 ? left : 20;
      EXPECT_EQ(cells_of_element(elements[b]), testing::cells_of(form));
    }
  }
}

TEST(MakeClosedFormPlan, CountsTilesAndOrdersWorkTilesLongestFirst) {
  ParametricMask form = testing::plain_forms(512, 512)[1];
  const BlockMask mask = testing::block_mask_of(form);
  AttentionShape shape = testing::shape_for(mask, 2, 4, 2);
  PlanOptions options = parametric();
  options.l2_bytes = 0;  // one KV head a group
  const auto plan = make_plan(mask, shape, {}, options);
  ASSERT_TRUE(plan);
  PlanCounts counts;
  counts.full_tiles = 8 * 6;
  counts.formula_tiles = 8 * 4;
  EXPECT_EQ(plan->counts, counts);
  EXPECT_EQ(plan->num_work_tiles(), 32);
  EXPECT_TRUE(is_closed_form(*plan));
  const std::vector<WorkTile> work_tiles = closed_form_work_tiles(
      *plan, closed_forms_of(*plan), closed_form_elements(*plan, closed_forms_of(*plan)));
  ASSERT_EQ(work_tiles.size(), 32u);
  for (std::int32_t i = 0; i < 32; ++i) {
    const WorkTile& work_tile = work_tiles[static_cast<std::size_t>(i)];
    EXPECT_EQ(work_tile.batch, i / 16);
    EXPECT_EQ(work_tile.head, i / 8 % 2 * 2 + i % 2);
    EXPECT_EQ(work_tile.q_tile, 3 - i / 2 % 4);
    EXPECT_EQ(work_tile.num_tiles, 4 - i / 2 % 4);
  }
}

// The first keys of a causal mask have the most queries, and the heads of a group stay together.
TEST(MakeClosedFormPlan, OrdersKeyTilesOfABackwardPlanLongestFirst) {
  const BlockMask mask = testing::block_mask_of(testing::plain_forms(512, 384)[1]);
  AttentionShape shape = testing::shape_for(mask, 2, 4, 2);
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::bfloat16;
  PlanOptions options = parametric();
  options.backend = Backend::sm90;
  options.direction = Direction::backward;
  options.l2_bytes = 0;  // one KV head a group
  const auto plan = make_plan(mask, shape, {}, options);
  ASSERT_TRUE(plan) << plan.error().message;
  ASSERT_TRUE(validate(*plan)) << validate(*plan).error().message;
  EXPECT_EQ(plan->heads_per_tile, 1);
  EXPECT_EQ(closed_forms_of(*plan).num_splits, 1);
  PlanCounts counts;  // position of query q is q - 128: key tile i has queries from 128 (i + 1) on
  counts.full_tiles = 8 * 3;
  counts.formula_tiles = 8 * 3;
  EXPECT_EQ(plan->counts, counts);
  EXPECT_EQ(plan->num_work_tiles(), 24);
  const std::vector<WorkTile> work_tiles = closed_form_work_tiles(
      *plan, closed_forms_of(*plan), closed_form_elements(*plan, closed_forms_of(*plan)));
  ASSERT_EQ(work_tiles.size(), 24u);
  for (std::int32_t i = 0; i < 24; ++i) {
    const WorkTile& work_tile = work_tiles[static_cast<std::size_t>(i)];
    EXPECT_EQ(work_tile.batch, i / 12);
    EXPECT_EQ(work_tile.head, i / 6 % 2 * 2 + i % 2);
    EXPECT_EQ(work_tile.q_tile, i / 2 % 3);
    EXPECT_EQ(work_tile.num_tiles, 3 - i / 2 % 3);
  }
}

// Few long rows are split for 132 workers, and many rows are not.
TEST(MakeClosedFormPlan, SplitsRowsOfDecodeForSm90) {
  const auto plan_of = [](std::int64_t q_len, std::int64_t kv_len, std::int64_t batch) {
    const BlockMask mask = testing::block_mask_of(testing::plain_forms(q_len, kv_len)[1]);
    AttentionShape shape = testing::shape_for(mask, batch, 32, 4);
    shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::bfloat16;
    PlanOptions options = parametric();
    options.backend = Backend::sm90;
    auto plan = make_plan(mask, shape, {}, options);
    EXPECT_TRUE(plan) << plan.error().message;
    EXPECT_TRUE(validate(*plan)) << validate(*plan).error().message;
    return *std::move(plan);
  };
  const AttentionPlan decode = plan_of(1, 131072, 1);
  EXPECT_EQ(decode.heads_per_tile, 8);
  EXPECT_EQ(decode.tile.block_q, 16);
  EXPECT_EQ(closed_forms_of(decode).num_splits, 32);
  EXPECT_EQ(decode.num_work_tiles(), 4 * 32);
  EXPECT_EQ(num_partials(decode, closed_forms_of(decode)), 4 * 32);
  std::int64_t num_tiles = 0;
  for (const WorkTile& work_tile :
       closed_form_work_tiles(decode, closed_forms_of(decode),
                              closed_form_elements(decode, closed_forms_of(decode)))) {
    EXPECT_EQ(work_tile.first_tile, num_tiles % 1024);
    num_tiles += work_tile.num_tiles;
  }
  EXPECT_EQ(num_tiles, 4 * 1024);
  EXPECT_EQ(closed_forms_of(plan_of(8192, 8192, 4)).num_splits, 1);
}

TEST(MakeClosedFormPlan, HasItsText) {
  ParametricMask form = testing::plain_forms(300, 400)[9];
  form.pos_offset += 3;
  form.kv_begin = 5;
  form.prefix = 7;
  const BlockMask mask = testing::block_mask_of(form);
  const auto plan = make_plan(mask, testing::shape_for(mask, 2, 4, 2), {}, parametric());
  ASSERT_TRUE(plan);
  EXPECT_EQ(to_text(*plan),
            "plan cpu tile 128x128 score none form parametric\n"
            "shape batch 2 heads 4/2 q_len 300 kv_len 400 head_dim 128/128 dtypes float32 float32 "
            "float32 -> float32\n"
            "work tiles 24 (0 empty), 68 bytes\n"
            "tiles full 0 closed form 48\n"
            "rows 1 heads a tile, 1 splits, 2 KV heads in L2\n"
            "costs by cpu, 8 workers\n"
            "choice heads in L2: 2 of 2 KV heads 0 us; rule: what is read again fits in 33554432 "
            "bytes\n"
            "closed form 0: pos = q + kv_len - q_len +3 left inf right 0 prefix 7 sink 0 "
            "keys [5, kv_len) documents 5 at 0,80,80,133,300,400\n");
}

TEST(MakeClosedFormPlan, RejectsWhatHasNoClosedForm) {
  const auto expect_error = [](const BlockMask& mask, std::int32_t heads, const char* text) {
    const auto plan = make_plan(mask, testing::shape_for(mask, 1, heads, 1), {}, parametric());
    ASSERT_FALSE(plan) << text;
    EXPECT_EQ(plan.error().code, ErrorCode::unsupported);
    EXPECT_THAT(plan.error().message, HasSubstr(text));
  };
  const MaskCase strided = testing::case_of(
      "", testing::make_cells(90, 90, [](auto q, auto k) { return (q + k) % 3 == 0; }), {16, 16});
  expect_error(strided.mask, 1, "closed form");
  const auto causal =
      testing::case_of("", testing::cells_of(testing::plain_forms(60, 60)[1]), {16, 16});
  const auto window =
      testing::case_of("", testing::cells_of(testing::plain_forms(60, 60)[2]), {16, 16});
  expect_error(testing::combined("", 1, 2, {causal, window}, {16, 16}).mask, 2,
               "heads 0 and 1 differ");
  const MaskCase same = testing::combined("", 1, 2, {causal, causal}, {16, 16});
  EXPECT_TRUE(make_plan(same.mask, testing::shape_for(same.mask, 1, 2, 1), {}, parametric()));
  ParametricMask huge;
  huge.q_len = 1;
  huge.kv_len = huge.kv_end = std::int64_t{1} << 28;
  expect_error(testing::block_mask_of(huge), 1, "268435455");
  ParametricMask far = testing::plain_forms(60, 60)[1];
  far.pos_offset = std::int64_t{1} << 30;
  expect_error(testing::block_mask_of(far), 1, "pos_offset");
}

TEST(ValidatePlan, RejectsSplitsOfABackwardPlan) {
  const BlockMask mask = testing::block_mask_of(testing::plain_forms(200, 200)[1]);
  PlanOptions options = parametric();
  options.direction = Direction::backward;
  AttentionPlan plan = *make_plan(mask, testing::shape_for(mask, 1, 2, 2), {}, options);
  closed_forms_of(plan).num_splits = 2;
  const auto valid = validate(plan);
  ASSERT_FALSE(valid);
  EXPECT_THAT(valid.error().message, HasSubstr("num_splits: expected 1 in a backward plan, got 2"));
}

TEST(ValidatePlan, RejectsWrongClosedForms) {
  const BlockMask mask = testing::block_mask_of(testing::plain_forms(200, 200)[9]);
  const AttentionPlan plan = *make_plan(mask, testing::shape_for(mask, 1, 2, 2), {}, parametric());
  const auto expect_wrong = [&](const char* text, auto&& change) {
    AttentionPlan changed = plan;
    change(changed);
    const auto valid = validate(changed);
    ASSERT_FALSE(valid) << text;
    EXPECT_EQ(valid.error().code, ErrorCode::internal);
    EXPECT_THAT(valid.error().message, HasSubstr(text));
  };
  expect_wrong("closed_forms[0].left",
               [](auto& p) { closed_forms_of(p).closed_forms[0].left = kClosedFormUnbounded + 1; });
  expect_wrong("closed_forms[0].sink",
               [](auto& p) { closed_forms_of(p).closed_forms[0].sink = -1; });
  expect_wrong("closed_forms[0].pos_shift",
               [](auto& p) { closed_forms_of(p).closed_forms[0].pos_shift = 1 << 29; });
  expect_wrong("closed_forms[0].num_borders",
               [](auto& p) { closed_forms_of(p).closed_forms[0].num_borders = 1; });
  expect_wrong("closed_forms[0].num_borders",
               [](auto& p) { closed_forms_of(p).closed_forms[0].first_border = 1; });
  expect_wrong("borders[2]", [](auto& p) { closed_forms_of(p).borders[2] = 0; });
  expect_wrong("closed_forms: expected",
               [](auto& p) { closed_forms_of(p).closed_forms.resize(2); });
  expect_wrong("work_tiles", [](auto& p) { p.form = SegmentPlan(); });
  expect_wrong("num_splits", [](auto& p) { closed_forms_of(p).num_splits = 0; });
  expect_wrong("heads_in_l2", [](auto& p) { closed_forms_of(p).heads_in_l2 = 3; });
  expect_wrong("counts", [](auto& p) { ++p.counts.full_tiles; });
}

DeviceProfile plain_profile(bool skips_dead_keys) {
  DeviceProfile profile;
  profile.name = "test";
  profile.num_workers = 4;
  profile.memory_bytes_per_us = 1e12;
  profile.stripe_rows = skips_dead_keys ? 16 : 128;
  profile.skips_dead_keys = skips_dead_keys;
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    KernelCosts kernel;
    kernel.direction = direction;
    kernel.dtype = DType::float32;
    kernel.head_dim = 128;
    kernel.launch_us = 1;
    TileCosts costs;
    costs.tile = {128, 128};
    costs.item_us = 2;
    costs.full = costs.bitmap = costs.rows = costs.columns = costs.gather = {3, 50};
    kernel.tiles.push_back(costs);
    profile.kernels.push_back(kernel);
  }
  return profile;
}

// The prediction is the same if tiles are the same and every kind of tile has the same cost.
TEST(EstimatePlan, PredictsTheSameForBothForms) {
  for (const bool skips_dead_keys : {false, true}) {
    const DeviceProfile profile = plain_profile(skips_dead_keys);
    for (const auto& [q_len, kv_len] : {std::pair{1000, 1000}, {300, 1500}, {1, 700}}) {
      for (const ParametricMask& form : testing::plain_forms(q_len, kv_len)) {
        const BlockMask mask = testing::block_mask_of(form);
        const AttentionShape shape = testing::shape_for(mask, 1, 4, 2);
        for (const Direction direction : {Direction::forward, Direction::backward}) {
          PlanOptions options;
          options.direction = direction;
          const AttentionPlan segments = *make_plan(mask, shape, {}, options);
          const auto of_segments = estimate_plan(segments, profile);
          options.form = PlanForm::parametric;
          const auto of_closed_forms = estimate_plan(*make_plan(mask, shape, {}, options), profile);
          ASSERT_TRUE(of_segments && of_closed_forms);
          EXPECT_EQ(of_closed_forms->work.tiles(), of_segments->work.tiles());
          // In tiles of column intervals only live keys count; the rows that see them do not.
          if (segments.counts.column_tiles > 0 && skips_dead_keys) continue;
          EXPECT_EQ(of_closed_forms->work.cells(), of_segments->work.cells());
          EXPECT_NEAR(of_closed_forms->time_us / of_segments->time_us, 1, 1e-9);
        }
      }
    }
  }
}

// The tiles of the parts of a work tile are those of the work tile.
TEST(EstimatePlan, CountsPartsOfARow) {
  const BlockMask mask = testing::block_mask_of(testing::plain_forms(2000, 2000)[3]);
  const AttentionPlan plan = *make_plan(mask, testing::shape_for(mask, 1, 1, 1), {}, parametric());
  for (const bool skips_dead_keys : {false, true}) {
    const ClosedFormWorkCounter counter(plan, closed_forms_of(plan), 64, skips_dead_keys);
    for (const WorkTile& work_tile : closed_form_work_tiles(
             plan, closed_forms_of(plan), closed_form_elements(plan, closed_forms_of(plan)))) {
      const PlanWork whole = counter.of(work_tile);
      EXPECT_EQ(whole.tiles(), work_tile.num_tiles);
      PlanWork sum;
      for (std::int32_t at = 0; at < work_tile.num_tiles; at += 3) {
        WorkTile part = work_tile;
        part.partial = at / 3;
        part.first_tile = at;
        part.num_tiles = std::min(3, work_tile.num_tiles - at);
        const PlanWork work = counter.of(part);
        EXPECT_EQ(work.tiles(), part.num_tiles);
        for (std::size_t kind = 0; kind < sum.steps.size(); ++kind) {
          sum.steps[kind].tiles += work.steps[kind].tiles;
          sum.steps[kind].cells += work.steps[kind].cells;
        }
      }
      EXPECT_EQ(sum, whole);
    }
  }
}

}  // namespace
}  // namespace fdma
