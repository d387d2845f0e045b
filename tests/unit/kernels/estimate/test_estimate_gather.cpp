// Tests estimates of index tiles: their cost beside full tiles, the effect of a power limit, and
// the cost of the last index tile of a list.
#include <gtest/gtest.h>

#include "fdma/formats/convert.hpp"
#include "fdma/kernels/estimate.hpp"

namespace fdma::testing {
namespace {

AttentionShape shape_of(std::int64_t q_len, std::int64_t kv_len, std::int32_t heads,
                        std::int32_t head_dim, DType dtype = DType::bfloat16) {
  AttentionShape shape;
  shape.heads_q = shape.heads_kv = heads;
  shape.q_lens = {q_len};
  shape.kv_lens = {kv_len};
  shape.head_dim = shape.head_dim_v = head_dim;
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = dtype;
  return shape;
}

/// Every query sees the first `num_full` keys, and one in `step` of the `num_others` keys after
/// them.
BlockMask scattered(std::int64_t q_len, std::int64_t num_full, std::int64_t num_others,
                    std::int64_t step) {
  ColumnIntervals columns{q_len, num_full + num_others, {0}, {}};
  for (std::int64_t key = 0; key < columns.kv_len; ++key) {
    if (key < num_full || (key - num_full) % step == 0) {
      columns.intervals.push_back({0, static_cast<std::int32_t>(q_len)});
    }
    columns.offsets.push_back(static_cast<std::int64_t>(columns.intervals.size()));
  }
  return make_block_mask({1, 1, {q_len}, {columns.kv_len}}, {128, 128},
                         {segment_from_columns(columns, {128, 128})});
}

AttentionPlan gathering_plan(const BlockMask& mask, const AttentionShape& shape,
                             const ScoreSpec& score = {}) {
  PlanOptions options;
  options.backend = Backend::sm90;
  options.columns = ColumnMode::gather;
  options.split = SplitMode::never;
  return *make_plan(mask, shape, score, options);
}

TEST(EstimateGather, IndexTilesOfTheH200sProfileCostMoreThanFullTiles) {
  const DeviceProfile h200 = *shipped_profile("h200");
  for (const KernelCosts& kernel : h200.kernels) {
    const TileCosts& tile = kernel.tiles.front();
    EXPECT_EQ(tile.can_gather(), kernel.direction == Direction::forward &&
                                     kernel.head_dim <= Backend::sm90.traits().max_gather_head_dim);
    if (!tile.can_gather()) continue;
    const double index_tile_us = tile.gather.tile_us + tile.gather.compute_us;
    EXPECT_NEAR(index_tile_us / tile.full.compute_us, 1.2, 0.05) << kernel.head_dim;
    EXPECT_LT(kernel.gather_slowdown, kernel.sustained_slowdown) << kernel.head_dim;
  }
}

TEST(EstimateGather, ThePowerLimitTakesOfTilesAndIndexTilesTheirOwnShares) {
  const AttentionPlan plan =
      gathering_plan(scattered(2048, 2048, 4096, 2), shape_of(2048, 6144, 32, 128));
  DeviceProfile device = *shipped_profile("h200");
  for (KernelCosts& kernel : device.kernels) {
    if (kernel.direction == Direction::backward) continue;
    TileCosts& tile = kernel.tiles.front();
    tile.gather = {0.5, 1.5};
    tile.full.compute_us = 2;
    tile.item_us = 0;
    kernel.sustained_slowdown = 0.25;
    kernel.gather_slowdown = 0.0625;
  }
  const PlanEstimate found = *estimate_plan(plan, device);
  ASSERT_EQ(found.work.of(PlanSegmentKind::full).tiles,
            found.work.of(PlanSegmentKind::gather).tiles);
  ASSERT_LT(found.schedule.makespan_us, device.burst_us);
  EXPECT_DOUBLE_EQ(found.sustained_time_us,
                   found.launch_us + (1 + (0.25 + 0.0625) / 2) * found.schedule.makespan_us);
}

// On sm90 terms of pairs are computed over tiles in the order of the keys.
TEST(EstimateGather, ScoresThatNeedPlacesAreScannedAndSayWhy) {
  ColumnIntervals keys{1024, 4096, {0}, {}};
  for (std::int64_t key = 0; key < keys.kv_len; ++key) {
    const auto begin = static_cast<std::int32_t>(key * 37 % 1000);
    if (key * key % 9973 % 8 == 0) keys.intervals.push_back({begin, 1024});
    keys.offsets.push_back(static_cast<std::int64_t>(keys.intervals.size()));
  }
  const BlockMask mask =
      make_block_mask({1, 1, {1024}, {4096}}, {128, 128}, {segment_from_columns(keys, {128, 128})});
  const AttentionShape shape = shape_of(1024, 4096, 4, 128);
  const DeviceProfile h200 = *shipped_profile("h200");
  EstimateOptions options;
  const SavingsReport plain = *estimate(mask, shape, h200, options);
  EXPECT_GT(plain.counts.gather_chunks, 0);
  options.score = {.alibi = true, .sink = true};
  const SavingsReport report = *estimate(mask, shape, h200, options);
  EXPECT_EQ(report.columns, ColumnMode::scan);
  EXPECT_EQ(report.counts.gather_chunks, 0);
  EXPECT_GT(report.masked.time_us, plain.masked.time_us);
  ASSERT_EQ(report.candidates.size(), 3U);
  for (const Candidate& each : report.candidates) {
    EXPECT_EQ(each.time_us.has_value(), each.columns == ColumnMode::scan);
    if (each.time_us) continue;
    EXPECT_EQ(each.reason, "the kernel computes alibi over tiles in the order of the keys");
  }
  options.score = {.sink = true};
  EXPECT_GT(estimate(mask, shape, h200, options)->counts.gather_chunks, 0);
}

TEST(EstimateGather, LastIndexTileOfAListCountsGroupsOf32Keys) {
  // The list has 43 keys of 128, or 128 + 43.
  const auto cells_of = [](std::int64_t keys, DType dtype, std::int32_t head_dim = 128,
                           const ScoreSpec& score = {}) {
    const AttentionPlan plan = gathering_plan(scattered(128, 0, 3 * keys, 3),
                                              shape_of(128, 3 * keys, 1, head_dim, dtype), score);
    const PlanEstimate estimate = *estimate_plan(plan, *shipped_profile("h200"));
    const StepWork& work = estimate.work.of(PlanSegmentKind::gather);
    EXPECT_EQ(work.tiles, (keys + 127) / 128);
    return work.cells;
  };
  EXPECT_EQ(cells_of(43, DType::bfloat16), 128 * 64);
  EXPECT_EQ(cells_of(128 + 43, DType::bfloat16), 128 * (128 + 64));
  EXPECT_EQ(cells_of(43, DType::bfloat16, 64, {.key_bias = true}), 128 * 64);
  EXPECT_EQ(cells_of(43, DType::bfloat16, 64), 128 * 128);
  EXPECT_EQ(cells_of(43, DType::bfloat16, 96), 128 * 128);
  EXPECT_EQ(cells_of(43, DType::float16), 128 * 128);
}

}  // namespace
}  // namespace fdma::testing
