// Tests backward plans: the cells of the transposed mask, groups of query heads, closed forms.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "backend/mask_cases.hpp"
#include "fdma/kernels/plan.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "mask_suite.hpp"
#include "named_masks.hpp"
#include "plan/plan_cells.hpp"
#include "plan/plan_forms.hpp"

namespace fdma {
namespace {

using testing::has_worklist;
using testing::MaskCase;
using testing::pick;
using testing::segments_of;

PlanOptions backward_options(Backend backend = Backend::cpu) {
  PlanOptions options;
  options.backend = backend;
  options.direction = Direction::backward;
  return options;
}

// Says which work tile does not stand beside the others of its group of query heads; empty if none
// does.
std::string order_error(const AttentionPlan& plan) {
  const auto group = static_cast<std::size_t>(plan.shape.group_size());
  if (segments_of(plan).work_tiles.size() % group != 0) return "groups are incomplete";
  for (std::size_t i = 0; i < segments_of(plan).work_tiles.size(); ++i) {
    const WorkTile& first = segments_of(plan).work_tiles[i - i % group];
    const WorkTile& work_tile = segments_of(plan).work_tiles[i];
    if (work_tile.batch != first.batch || work_tile.q_tile != first.q_tile ||
        work_tile.head != first.head + static_cast<std::int32_t>(i % group) ||
        first.head % plan.shape.group_size() != 0)
      return "work tile " + std::to_string(i) + " is not in its group";
  }
  return {};
}

std::string plan_error(const MaskCase& each, const AttentionShape& shape,
                       const PlanOptions& options) {
  const auto plan = make_plan(each.mask, shape, {}, options);
  if (!plan) return each.name + ": " + plan.error().message;
  if (const auto valid = validate(*plan); !valid) return each.name + ": " + valid.error().message;
  if (plan->heads_per_tile != 1) return each.name + ": is packed";
  if (has_worklist(*plan)) return testing::check_plan(*plan, each);
  if (!segments_of(*plan).split_rows.empty() || !segments_of(*plan).kv_index_lists.empty())
    return each.name + ": is split or gathers";
  const std::string error = order_error(*plan);
  return error.empty() ? testing::check_plan(*plan, each) : each.name + ": " + error;
}

AttentionShape shape_for(const MaskCase& each, Backend backend, std::int64_t batch,
                         std::int32_t heads_q, std::int32_t heads_kv) {
  AttentionShape shape = testing::shape_for(each.mask, batch, heads_q, heads_kv);
  if (backend == Backend::sm90)
    shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::bfloat16;
  return shape;
}

TEST(BackwardPlan, HasTheCellsOfTheMaskSuiteTransposed) {
  for (const BlockShape tile : {BlockShape{128, 128}, {16, 64}, {128, 32}, {48, 80}}) {
    PlanOptions options = backward_options();
    options.tile = tile;
    for (const auto& [q_len, kv_len] : {std::pair{300, 300}, {171, 290}, {290, 171}}) {
      for (const MaskCase& each : testing::suite_cases(q_len, kv_len, {64, 64})) {
        EXPECT_EQ(plan_error(each, shape_for(each, Backend::cpu, 1, 2, 1), options), "");
      }
    }
  }
}

TEST(BackwardPlan, HasBitmapsInTheOrderOfSm90) {
  for (const auto& [q_len, kv_len] : {std::pair{300, 300}, {171, 290}}) {
    for (const MaskCase& each : testing::suite_cases(q_len, kv_len, {128, 128})) {
      EXPECT_EQ(plan_error(each, shape_for(each, Backend::sm90, 1, 4, 2),
                           backward_options(Backend::sm90)),
                "");
    }
  }
}

TEST(BackwardPlan, HasTheCellsOfMasksPerHead) {
  for (const suite::SuiteMask& mask : suite::predicates(1024)) {
    if (mask.shape.num_heads == 1) continue;
    const MaskCase each = testing::suite_case(mask, {128, 128});
    EXPECT_EQ(plan_error(each, shape_for(each, Backend::cpu, 2, 8, 2), backward_options()), "");
  }
}

TEST(BackwardPlan, HasTheCellsOfRandomMasks) {
  EXPECT_TRUE(rc::check("plans", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const std::int64_t batch = pick(rng, 1, 3), group = pick(rng, 1, 3), heads_kv = pick(rng, 1, 2);
    const MaskCase each = testing::random_case(rng, pick(rng, 0, 1) == 0 ? 1 : batch,
                                               pick(rng, 0, 1) == 0 ? 1 : group * heads_kv, 200,
                                               testing::random_block(rng));
    PlanOptions options = backward_options(pick(rng, 0, 3) == 0 ? Backend::sm90 : Backend::cpu);
    if (options.backend == Backend::cpu) options.tile = testing::random_block(rng);
    options.l2_bytes = std::int64_t{1} << pick(rng, 0, 22);
    const AttentionShape shape =
        shape_for(each, options.backend, batch, static_cast<std::int32_t>(group * heads_kv),
                  static_cast<std::int32_t>(heads_kv));
    const std::string error = plan_error(each, shape, options);
    if (!error.empty()) RC_FAIL(error);
  }));
}

TEST(BackwardPlan, TakesTheLongestGroupsFirst) {
  const MaskCase each = testing::suite_case(suite::mask_suite(1024)[1], {128, 128});  // causal
  const auto plan =
      make_plan(each.mask, shape_for(each, Backend::cpu, 1, 2, 1), {}, backward_options());
  ASSERT_TRUE(plan);
  ASSERT_EQ(segments_of(*plan).work_tiles.size(), 16U);
  for (std::size_t i = 0; i < segments_of(*plan).work_tiles.size(); ++i) {
    EXPECT_EQ(segments_of(*plan).work_tiles[i].q_tile, static_cast<std::int32_t>(i / 2));
    EXPECT_EQ(segments_of(*plan).work_tiles[i].num_tiles, 8 - static_cast<std::int32_t>(i / 2));
  }
}

TEST(BackwardPlan, SaysItsDirectionInItsText) {
  const MaskCase each = testing::case_of(
      "", testing::make_cells(40, 50, [](auto q, auto k) { return k <= q + 10; }), {16, 16});
  PlanOptions options = backward_options();
  options.tile = {16, 16};
  const auto plan = make_plan(each.mask, testing::shape_for(each.mask, 1, 2, 1), {}, options);
  ASSERT_TRUE(plan);
  const std::string text = to_text(*plan, 1);
  EXPECT_EQ(text.find("plan cpu backward tile 16x16 score none\n"), 0U) << text;
  EXPECT_NE(text.find("work tile 0: batch 0 head 0 kv_tile 0, 3 tiles: "), std::string::npos)
      << text;
}

TEST(BackwardPlan, SaysWhatItDoesNotHave) {
  const MaskCase each = testing::suite_case(suite::mask_suite(256)[1], {128, 128});
  const AttentionShape shape = shape_for(each, Backend::cpu, 1, 1, 1);
  PlanOptions options = backward_options();
  options.columns = ColumnMode::gather;
  const auto gather = make_plan(each.mask, shape, {}, options);
  ASSERT_FALSE(gather);
  EXPECT_EQ(gather.error().message,
            "columns: backward plans have no kv index lists; use automatic or scan");
}

// The transposed plan keeps the closed form, and planning costs about as much as it does forward.
TEST(BackwardPlan, KeepsFewSegmentsForMasksThatMoveInStep) {
  constexpr std::int64_t kLen = 1048576;
  MaskShape mask_shape;
  mask_shape.q_lens = mask_shape.kv_lens = {kLen};
  AttentionShape shape;
  shape.q_lens = shape.kv_lens = {kLen};
  for (const char* spec :
       {"true", "causal", "causal & window(1024)", "causal & (window(4096) | sink(4))"}) {
    const auto plan =
        make_plan(*compile(*parse_mask(spec), {}, mask_shape), shape, {}, backward_options());
    ASSERT_TRUE(plan) << spec;
    EXPECT_LE(segments_of(*plan).segments.size(), 160U) << spec;
    EXPECT_LE(segments_of(*plan).num_bitmaps(plan->words_per_bitmap()), 8) << spec;
    EXPECT_EQ(segments_of(*plan).work_tiles.size(), std::size_t{kLen / 128}) << spec;
  }
}

TEST(BackwardPlan, IsRefusedWhereAnInvariantIsBroken) {
  const MaskCase each = testing::suite_case(suite::mask_suite(512)[1], {128, 128});
  const AttentionPlan plan =
      *make_plan(each.mask, shape_for(each, Backend::cpu, 1, 2, 1), {}, backward_options());
  AttentionPlan swapped = plan;
  std::swap(segments_of(swapped).work_tiles[0], segments_of(swapped).work_tiles[1]);
  EXPECT_NE(validate(swapped).error().message.find("work_tiles[0]: batch 0 head 1 kv_tile 0"),
            std::string::npos)
      << validate(swapped).error().message;
  AttentionPlan gathers = plan;
  segments_of(gathers).segments.front().kind = PlanSegmentKind::gather;
  EXPECT_NE(validate(gathers).error().message.find("in a backward plan"), std::string::npos);
}

}  // namespace
}  // namespace fdma
