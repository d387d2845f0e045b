// Tests that a plan has the cells of its mask, each once, whatever the tiles and the formats.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "backend/mask_cases.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/kernels/plan.hpp"
#include "named_masks.hpp"
#include "plan/plan_cells.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::MaskCase;
using testing::pick;

constexpr BlockShape kTiles[] = {{16, 16}, {128, 64}, {64, 128}, {16, 256}, {128, 128}, {48, 80}};
constexpr ColumnMode kColumnModes[] = {ColumnMode::automatic, ColumnMode::scan, ColumnMode::gather,
                                       ColumnMode::reorder};

// Says what is wrong with the plan of a case; empty if nothing is.
std::string plan_error(const MaskCase& each, const AttentionShape& shape,
                       const PlanOptions& options) {
  const auto plan = make_plan(each.mask, shape, {}, options);
  if (!plan) return each.name + ": " + plan.error().message;
  if (const auto valid = validate(*plan); !valid) return each.name + ": " + valid.error().message;
  return testing::check_plan(*plan, each);
}

TEST(MakePlan, HasTheCellsOfTheMaskSuiteInEveryTileShape) {
  for (const BlockShape tile : kTiles) {
    PlanOptions options;
    options.tile = tile;
    for (const auto& [q_len, kv_len] : {std::pair{300, 300}, {171, 290}, {290, 171}}) {
      for (const MaskCase& each : testing::suite_cases(q_len, kv_len, {64, 64})) {
        EXPECT_EQ(plan_error(each, testing::shape_for(each.mask, 1, 1, 1), options), "");
      }
    }
  }
}

TEST(MakePlan, HasTheCellsOfEveryNameOfTheLanguage) {
  PlanOptions options;
  options.tile = {128, 64};
  for (const suite::SuiteMask& mask : suite::every_name(1024, 7)) {
    const MaskCase each = testing::suite_case(mask, {128, 128});
    EXPECT_EQ(plan_error(each, testing::shape_for(each.mask, 1, 1, 1), options), "");
  }
}

TEST(MakePlan, HasTheCellsOfMasksPerHead) {
  for (const suite::SuiteMask& mask : suite::predicates(1024)) {
    if (mask.shape.num_heads == 1) continue;
    const MaskCase each = testing::suite_case(mask, {128, 128});
    EXPECT_EQ(plan_error(each, testing::shape_for(each.mask, 2, 8, 2), {}), "");
  }
}

TEST(MakePlan, HasTheCellsOfRandomMasks) {
  EXPECT_TRUE(rc::check("plans", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const BlockShape block = testing::random_block(rng);
    const std::int64_t batch = pick(rng, 1, 3), group = pick(rng, 1, 3), heads_kv = pick(rng, 1, 2);
    const MaskCase each =
        testing::random_case(rng, pick(rng, 0, 1) == 0 ? 1 : batch,
                             pick(rng, 0, 1) == 0 ? 1 : group * heads_kv, 200, block);
    PlanOptions options;
    if (pick(rng, 0, 3) != 0) options.tile = testing::random_block(rng);
    options.columns = kColumnModes[pick(rng, 0, 3)];
    options.l2_bytes = std::int64_t{1} << pick(rng, 0, 22);
    const AttentionShape shape =
        testing::shape_for(each.mask, batch, static_cast<std::int32_t>(group * heads_kv),
                           static_cast<std::int32_t>(heads_kv));
    const std::string error = plan_error(each, shape, options);
    if (!error.empty()) RC_FAIL(error);
  }));
}

// Gathering is made for column masks. These have several intervals per key, are dense or thin, and
// run in every mode.
TEST(MakePlan, HasTheCellsOfColumnMasksInEveryMode) {
  EXPECT_TRUE(rc::check("columns", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const std::int64_t q_len = pick(rng, 1, 300), kv_len = pick(rng, 1, 300);
    Cells cells =
        testing::random_live_ranges(rng, q_len, kv_len, static_cast<int>(pick(rng, 1, 4)));
    if (pick(rng, 0, 1) == 0) {  // thin: few keys are ever seen
      for (std::int64_t k = 0; k < kv_len; ++k) {
        if (pick(rng, 0, 15) == 0) continue;
        for (std::int64_t q = 0; q < q_len; ++q) cells.at(q, k) = 0;
      }
    }
    const BlockShape block = testing::random_block(rng);
    MaskCase each = testing::case_of("columns", cells, block);
    const auto columns = convert(each.mask, MaskFormat::columns, block);
    RC_ASSERT(columns.has_value());
    each.mask = *columns;
    PlanOptions options;
    options.tile = testing::random_block(rng);
    for (const ColumnMode mode : kColumnModes) {
      options.columns = mode;
      const std::string error = plan_error(each, testing::shape_for(each.mask, 1, 1, 1), options);
      if (!error.empty()) RC_FAIL(fmt::format("{}: {}", to_string(mode), error));
    }
  }));
}

// No bitmap or row panel stores these live ranges in fewer bytes, so every kind of column step
// occurs. Without this test those above could pass without one.
TEST(MakePlan, ScansOrGathersColumnsAsAsked) {
  std::mt19937 rng(3);
  Cells cells(512, 1024);
  for (std::int64_t k = 0; k < 1024; k += 7) {
    const std::int64_t begin = pick(rng, 0, 511);
    for (std::int64_t q = begin; q < std::min<std::int64_t>(512, begin + 200); ++q)
      cells.at(q, k) = 1;
  }
  const MaskCase each = testing::case_of("live ranges", cells, {128, 128});
  const AttentionShape shape = testing::shape_for(each.mask, 1, 1, 1);
  PlanOptions options;
  options.columns = ColumnMode::scan;
  const auto scan = make_plan(each.mask, shape, {}, options);
  ASSERT_TRUE(scan);
  EXPECT_GT(scan->counts.column_tiles, 0);
  EXPECT_EQ(scan->counts.gather_chunks, 0);
  options.columns = ColumnMode::gather;
  const auto gather = make_plan(each.mask, shape, {}, options);
  ASSERT_TRUE(gather);
  EXPECT_EQ(gather->counts.column_tiles, 0);
  EXPECT_GT(gather->counts.gather_chunks, 0);
  EXPECT_EQ(scan->counts.column_entries, gather->counts.gather_entries);
  EXPECT_EQ(testing::check_plan(*scan, each), "");
  EXPECT_EQ(testing::check_plan(*gather, each), "");
}

TEST(MakePlan, KeepsOneWorkTilePerQueryTileWhereThereAreNoKeys) {
  for (const auto& [q_len, kv_len] : {std::pair{0, 0}, {0, 50}, {50, 0}, {1, 1}}) {
    const MaskCase each = testing::case_of(
        "none", testing::make_cells(q_len, kv_len, [](auto, auto) { return false; }), {16, 16});
    EXPECT_EQ(plan_error(each, testing::shape_for(each.mask, 2, 4, 2), {}), "");
  }
}

TEST(MakePlan, IsTheSameForEveryFormatOfAMask) {
  std::mt19937 rng(11);
  for (int trial = 0; trial < 20; ++trial) {
    const MaskCase each =
        testing::case_of("formats", testing::random_cells(rng, 150, 170), {32, 32});
    const AttentionShape shape = testing::shape_for(each.mask, 1, 2, 1);
    const auto plan = make_plan(each.mask, shape);
    ASSERT_TRUE(plan);
    for (const MaskFormat format : kMaskFormats) {
      const auto other = convert(each.mask, format, {32, 32});
      if (!other) continue;
      const auto same = make_plan(*other, shape);
      ASSERT_TRUE(same);
      EXPECT_EQ(*same, *plan) << to_string(format);
    }
  }
}

}  // namespace
}  // namespace fdma
