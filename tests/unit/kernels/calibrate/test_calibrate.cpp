// Tests calibration: the fit, the synthetic masks, and a profile of this machine.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <random>
#include <vector>

#include "calibrate/fit.hpp"
#include "calibrate/masks.hpp"
#include "fdma/kernels/calibrate.hpp"
#include "fdma/kernels/estimate.hpp"

namespace fdma {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

double loss(const std::vector<Measurement>& measurements, const std::vector<double>& x) {
  double sum = 0;
  for (const Measurement& each : measurements) {
    double value = -each.value;
    for (std::size_t i = 0; i < x.size(); ++i) value += each.amounts[i] * x[i];
    sum += value * value / (each.value * each.value);
  }
  return sum;
}

TEST(FitNotNegative, FindsExactCoefficients) {
  const std::vector<double> exact =
      fit_not_negative({{{1, 0, 0}, 2}, {{1, 1, 0}, 5}, {{3, 1, 4}, 10}, {{0, 2, 1}, 6.25}});
  ASSERT_EQ(exact.size(), 3U);
  EXPECT_NEAR(exact[0], 2, 1e-6);
  EXPECT_NEAR(exact[1], 3, 1e-6);
  EXPECT_NEAR(exact[2], 0.25, 1e-6);
}

TEST(FitNotNegative, GivesZeroToWhatIsNotMeasuredOrWouldBeNegative) {
  EXPECT_THAT(fit_not_negative({{{2, 0}, 4}}), ElementsAre(2, 0));
  // Only a coefficient of -1 would fit exactly. The best fit without negative coefficients lies on
  // the bound.
  const std::vector<double> bound = fit_not_negative({{{1, 0}, 3}, {{1, 1}, 2}});
  EXPECT_EQ(bound[1], 0);
  EXPECT_TRUE(fit_not_negative({}).empty());
}

TEST(FitNotNegative, NoNeighbourIsBetter) {
  std::mt19937 rng(1);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<Measurement> measurements(12);
    for (Measurement& each : measurements) {
      each.value = 1 + rng() % 100;
      for (int i = 0; i < 5; ++i) each.amounts.push_back(rng() % 20);
    }
    const std::vector<double> best = fit_not_negative(measurements);
    for (std::size_t i = 0; i < best.size(); ++i) {
      EXPECT_GE(best[i], 0);
      for (const double step : {-1e-3, 1e-3}) {
        std::vector<double> near = best;
        near[i] = std::max(0.0, near[i] + step);
        EXPECT_GE(loss(measurements, near) * (1 + 1e-9), loss(measurements, best));
      }
    }
  }
}

TEST(CalibrationMasks, HoldEveryKindOfTile) {
  for (const BlockShape tile : CalibrateOptions().tiles) {
    PlanCounts sum;
    for (const CalibrationMask& each : calibration_masks(tile)) {
      AttentionShape shape;
      shape.q_lens = each.mask.shape.q_lens;
      shape.kv_lens = each.mask.shape.kv_lens;
      PlanOptions options;
      options.tile = tile;
      options.columns = each.columns;
      const Result<AttentionPlan> plan = make_plan(each.mask, shape, {}, options);
      ASSERT_TRUE(plan) << plan.error().message;
      sum.full_tiles += plan->counts.full_tiles;
      sum.bitmap_tiles += plan->counts.bitmap_tiles;
      sum.row_tiles += plan->counts.row_tiles;
      sum.column_tiles += plan->counts.column_tiles;
      sum.gather_chunks += plan->counts.gather_chunks;
    }
    EXPECT_GT(sum.full_tiles, 0);
    EXPECT_GT(sum.bitmap_tiles, 0);
    EXPECT_GT(sum.row_tiles, 0) << tile.block_q << "x" << tile.block_kv;
    EXPECT_GT(sum.column_tiles, 0) << tile.block_q << "x" << tile.block_kv;
    EXPECT_GT(sum.gather_chunks, 0);
  }
}

CalibrateOptions small_options() {
  CalibrateOptions options;
  options.head_dims = {8};
  options.dtypes = {DType::float16};
  options.tiles = {{64, 64}};
  options.num_threads = 1;
  options.quick = true;
  return options;
}

TEST(Calibrate, MeasuresAProfileThatPredicts) {
  CalibrateOptions options = small_options();
  int last = -1;
  options.progress = [&](int done, int total) {
    EXPECT_GT(done, last);
    EXPECT_EQ(total, 1);
    last = done;
  };
  const Result<DeviceProfile> profile = calibrate(options);
  ASSERT_TRUE(profile) << profile.error().message;
  EXPECT_EQ(last, 1);
  EXPECT_TRUE(validate(*profile));
  EXPECT_FALSE(profile->is_provisional);
  EXPECT_EQ(profile->num_workers, 1);
  ASSERT_EQ(profile->kernels.size(), 1U);
  EXPECT_EQ(profile->kernels[0].dtype, DType::float16);
  EXPECT_TRUE(profile->kernels[0].tiles[0].can_gather());
  EXPECT_GT(profile->kernels[0].tiles[0].full.compute_us, 0);
  EXPECT_EQ(*profile_from_json(to_json(*profile)), *profile);
}

TEST(Calibrate, MeasuresTheCorrectionPassOfGradients) {
  CalibrateOptions options = small_options();
  options.directions = {Direction::backward};
  const Result<DeviceProfile> profile = calibrate(options);
  ASSERT_TRUE(profile) << profile.error().message;
  ASSERT_EQ(profile->kernels.size(), 1U);
  // Two of five products once more. A busy machine scatters.
  EXPECT_GT(profile->kernels[0].correction_share, 0.1);
  EXPECT_LT(profile->kernels[0].correction_share, 1.5);
  EXPECT_FALSE(profile->kernels[0].is_assumed);
}

TEST(Calibrate, StopsWhenItIsCancelled) {
  CalibrateOptions options = small_options();
  const std::atomic<bool> is_cancelled = true;
  options.is_cancelled = &is_cancelled;
  const Result<DeviceProfile> profile = calibrate(options);
  ASSERT_FALSE(profile);
  EXPECT_EQ(profile.error().code, ErrorCode::io);
}

TEST(Calibrate, RejectsOptionsOutsideTheirRange) {
  struct Case {
    void (*damage)(CalibrateOptions&);
    const char* message;
  };
  const Case cases[] = {
      {[](CalibrateOptions& o) { o.head_dims.clear(); }, "head_dims: expected at least one"},
      {[](CalibrateOptions& o) { o.head_dims = {0}; }, "head_dims: expected 1 to 256, got 0"},
      {[](CalibrateOptions& o) {
         o.head_dims = {64, 64};
       },
       "head_dims: 64 is there twice"},
      {[](CalibrateOptions& o) { o.dtypes.clear(); }, "dtypes: expected at least one"},
      {[](CalibrateOptions& o) { o.dtypes = {DType::int8}; }, "dtypes: expected float32"},
      {[](CalibrateOptions& o) {
         o.dtypes = {DType::float32, DType::float32};
       },
       "dtypes: float32 is there twice"},
      {[](CalibrateOptions& o) { o.tiles.clear(); }, "tiles: expected at least one"},
      {[](CalibrateOptions& o) {
         o.tiles = {{100, 64}};
       },
       "100"},
      {[](CalibrateOptions& o) {
         o.tiles = {{64, 64}, {64, 64}};
       },
       "tiles: 64x64 is there twice"},
      {[](CalibrateOptions& o) { o.num_threads = -1; }, "num_threads: expected 0 to 4096, got -1"},
  };
  for (const Case& each : cases) {
    CalibrateOptions options = small_options();
    each.damage(options);
    const Result<DeviceProfile> profile = calibrate(options);
    ASSERT_FALSE(profile) << each.message;
    EXPECT_THAT(profile.error().message, HasSubstr(each.message));
  }
}

}  // namespace
}  // namespace fdma
