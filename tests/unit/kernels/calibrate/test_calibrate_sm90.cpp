// Tests the calibration of the GPU kernel without a GPU: its masks, and fits on the times of a
// known device.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "calibrate/inputs.hpp"
#include "calibrate/masks.hpp"
#include "calibrate/sm90_fit.hpp"
#include "fdma/formats/set_algebra.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/kernels/calibrate.hpp"
#include "fdma/kernels/estimate.hpp"
#include "plan/plan_forms.hpp"

namespace fdma {
namespace {

using ::testing::HasSubstr;
using testing::segments_of;

constexpr BlockShape kTile{128, 128};
constexpr int kWorkers = 132;

/// Plans the mask. A backward plan gets it transposed, so that the plan has its rows.
AttentionPlan plan_of(const OverlapMask& mask, Direction direction = Direction::forward,
                      std::int32_t head_dim = 128) {
  const int heads = kWorkers / std::gcd(kWorkers, static_cast<int>(kOverlapTileRows));
  PlanOptions options;
  options.direction = direction;
  options.backend = Backend::sm90;
  options.split = SplitMode::never;
  options.pack = PackMode::never;
  options.columns = mask.kind == PlanSegmentKind::gather ? ColumnMode::gather : ColumnMode::scan;
  const BlockMask called = direction == Direction::forward ? mask.mask : *transpose(mask.mask);
  return *make_plan(called, calibration_shape(called, DType::bfloat16, head_dim, heads), {},
                    options);
}

EvenCall call_of(const AttentionPlan& plan, const OverlapMask& mask) {
  return even_call(plan, segments_of(plan), kWorkers, mask.is_all);
}

class OverlapMasks : public ::testing::TestWithParam<Direction> {};

TEST_P(OverlapMasks, AreOfTheirKindAndEvenOverTheirRows) {
  for (const OverlapMask& mask : overlap_masks()) {
    const AttentionPlan plan = plan_of(mask, GetParam());
    EXPECT_EQ(segments_of(plan).work_tiles.size() % kWorkers, 0U);
    for (const WorkTile& work_tile : segments_of(plan).work_tiles) {
      EXPECT_EQ(work_tile.num_tiles, segments_of(plan).work_tiles.front().num_tiles);
    }
    const EvenCall call = call_of(plan, mask);
    const double all = std::accumulate(call.tiles.begin(), call.tiles.end(), 0.0);
    EXPECT_DOUBLE_EQ(all, call.work_tiles * segments_of(plan).work_tiles.front().num_tiles);
    if (mask.kind == PlanSegmentKind::full) {
      EXPECT_EQ(call.of(PlanSegmentKind::full), all);
    } else {
      EXPECT_NEAR(1 - call.of(PlanSegmentKind::full) / all, mask.is_all ? 1 : 0.25, 0.01);
      EXPECT_GT(call.of(mask.kind) / all, mask.is_all ? 0.95 : 0.1) << static_cast<int>(mask.kind);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Both, OverlapMasks,
                         ::testing::Values(Direction::forward, Direction::backward));

TEST(GatherMasks, AreListsAloneAndEvenOverTheirRows) {
  std::vector<double> last_keys[2];  // of lists without masks, and with
  for (const OverlapMask& mask : gather_masks()) {
    const AttentionPlan plan = plan_of(mask);
    EXPECT_EQ(segments_of(plan).work_tiles.size() % kWorkers, 0U);
    ASSERT_EQ(segments_of(plan).kv_index_lists.size(), static_cast<std::size_t>(kOverlapTileRows));
    const KvIndexList& first = segments_of(plan).kv_index_lists.front();
    for (const KvIndexList& list : segments_of(plan).kv_index_lists) {
      EXPECT_EQ(list.num_entries, first.num_entries);
      EXPECT_EQ(list.num_full, first.num_full);
    }
    const bool needs_masks = first.num_full < first.num_entries;
    EXPECT_EQ(first.num_full, needs_masks ? 3 * first.num_entries / 4 : first.num_entries);
    const EvenCall call = call_of(plan, mask);
    EXPECT_EQ(std::accumulate(call.tiles.begin(), call.tiles.end(), 0.0), 0);
    EXPECT_DOUBLE_EQ(call.index_tiles,
                     call.work_tiles * segments_of(plan).work_tiles.front().num_tiles);
    EXPECT_DOUBLE_EQ(call.full_index_tiles, call.work_tiles * first.num_entries / 128);
    last_keys[needs_masks ? 1 : 0].push_back((first.num_entries - 1) % 128 + 1);
  }
  for (const std::vector<double>& each : last_keys) {
    for (const double keys : {32, 64, 96, 128}) EXPECT_THAT(each, ::testing::Contains(keys));
  }
}

/// Returns a device on which the masks of rows take longer than their computation.
DeviceProfile known_device() {
  DeviceProfile profile;
  profile.name = "known";
  profile.num_workers = kWorkers;
  profile.memory_bytes_per_us = 1e12;
  profile.stripe_rows = 128;
  KernelCosts kernel{Direction::forward, DType::bfloat16, 128, 7, {}};
  kernel.tiles.push_back(
      {kTile, {0, 1.5}, {0, 1.6}, {2.25, 1.625}, {0, 1.75}, {0.875, 0.75}, 1.375, 0});
  kernel.overlaps_masks = true;
  kernel.ahead_us = 5;
  profile.kernels.push_back(kernel);
  return profile;
}

/// Returns the calls of `masks` on a device with one kernel, of its head size.
std::vector<EvenCall> calls_of(const std::vector<OverlapMask>& masks, const DeviceProfile& device) {
  std::vector<EvenCall> calls;
  for (const OverlapMask& mask : masks) {
    const AttentionPlan plan = plan_of(mask, Direction::forward, device.kernels.front().head_dim);
    EvenCall call = call_of(plan, mask);
    call.us = estimate_plan(plan, device)->time_us;
    calls.push_back(call);
  }
  return calls;
}

TEST(FitEvenCalls, FindsWhatTheEstimatorWasGiven) {
  const DeviceProfile known = known_device();
  std::vector<OverlapMask> masks = overlap_masks();
  for (OverlapMask& each : gather_masks()) masks.push_back(std::move(each));
  const EvenCosts fitted = fit_even_calls(calls_of(masks, known), kTile);
  const TileCosts& exact = known.kernels[0].tiles[0];
  EXPECT_NEAR(fitted.launch_us, 7, 1e-3);
  EXPECT_NEAR(fitted.tile.item_us, exact.item_us, 1e-3);
  EXPECT_NEAR(fitted.tile.full.compute_us, exact.full.compute_us, 1e-3);
  EXPECT_NEAR(fitted.tile.bitmap.compute_us, exact.bitmap.compute_us, 1e-3);
  EXPECT_NEAR(fitted.tile.rows.compute_us, exact.rows.compute_us, 0.01);
  EXPECT_NEAR(fitted.tile.columns.compute_us, exact.columns.compute_us, 1e-3);
  EXPECT_NEAR(fitted.tile.rows.tile_us, exact.rows.tile_us, 0.05);
  EXPECT_EQ(fitted.tile.bitmap.tile_us, 0);
  EXPECT_EQ(fitted.tile.columns.tile_us, 0);
  EXPECT_NEAR(fitted.tile.gather.tile_us, exact.gather.tile_us, 1e-3);
  EXPECT_NEAR(fitted.tile.gather.compute_us, exact.gather.compute_us, 1e-3);
}

TEST(FitEvenCalls, IndexTilesCostNothingWhereNoCallGathers) {
  EXPECT_FALSE(fit_even_calls(calls_of(overlap_masks(), known_device()), kTile).tile.can_gather());
}

// Kernels of head size 64 compute whole index tiles, so no call shows what part of one would save.
TEST(FitEvenCalls, FindsWhatWholeIndexTilesCost) {
  DeviceProfile known = known_device();
  known.kernels[0].head_dim = 64;
  std::vector<OverlapMask> masks = overlap_masks();
  for (OverlapMask& each : gather_masks()) masks.push_back(std::move(each));
  const StepCosts gather = fit_even_calls(calls_of(masks, known), kTile).tile.gather;
  EXPECT_NEAR(gather.tile_us + gather.compute_us, 0.875 + 0.75, 1e-3);
  EXPECT_GT(gather.tile_us, 0);
  EXPECT_GT(gather.compute_us, 0);
}

TEST(FitEvenCalls, KindsThatNoCallHoldsCostWhatOthersDo) {
  std::vector<EvenCall> calls(3);
  for (std::size_t i = 0; i < calls.size(); ++i) {
    calls[i].work_tiles = 8;
    calls[i].of(PlanSegmentKind::full) = 10.0 * static_cast<double>(i * i + 1);
    calls[i].us = 5 + 8 * 0.5 + 2 * calls[i].of(PlanSegmentKind::full);
  }
  const EvenCosts fitted = fit_even_calls(calls, kTile);
  EXPECT_NEAR(fitted.tile.full.compute_us, 2, 1e-6);
  for (const StepCosts& steps : {fitted.tile.bitmap, fitted.tile.rows, fitted.tile.columns}) {
    EXPECT_EQ(steps, fitted.tile.full);
  }
}

TEST(FitSlowdown, FindsBurstAndShares) {
  std::vector<LongCall> calls;
  for (const double us : {1e3, 3e3, 1e4, 3e4, 1e5, 3e5}) {
    const double part = us <= 4e3 ? 0 : std::log(us / 4e3) / std::log(3e5 / 4e3);
    calls.push_back({0, us, 0.16 * part});
    calls.push_back({1, us, 0.08 * part});
  }
  const Slowdown slowdown = fit_slowdown(calls, 2);
  EXPECT_NEAR(slowdown.burst_us, 4e3, 120);
  EXPECT_EQ(slowdown.sustained_us, 3e5);
  EXPECT_NEAR(slowdown.shares[0], 0.16, 0.002);
  EXPECT_NEAR(slowdown.shares[1], 0.08, 0.001);
}

TEST(FitSlowdown, IsNoneWhereCallsDoNotBecomeSlower) {
  const Slowdown slowdown = fit_slowdown({{0, 1e3, 0}, {0, 1e5, 0}, {0, 3e5, -0.01}}, 1);
  EXPECT_EQ(slowdown.burst_us, 0);
  EXPECT_EQ(slowdown.sustained_us, 0);
  EXPECT_EQ(slowdown.shares, std::vector<double>{0});
  EXPECT_EQ(fit_slowdown({}, 0).sustained_us, 0);
}

TEST(CalibrateSm90, RejectsWhatItCannotMeasure) {
  CalibrateOptions options = calibrate_options(Backend::sm90);
  EXPECT_EQ(options.dtypes, std::vector<DType>{DType::bfloat16});
  const Result<void> backend = check_backend(Backend::sm90);
  if (!backend) {
    const Result<DeviceProfile> profile = calibrate(options);
    ASSERT_FALSE(profile);
    EXPECT_EQ(profile.error().code, ErrorCode::unsupported);
    EXPECT_EQ(profile.error().message, backend.error().message);
  }
}

}  // namespace
}  // namespace fdma
