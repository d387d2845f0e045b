// Calibration on the GPU of this machine. The tests check the results for plausibility, not the
// times.
#include <gtest/gtest.h>

#include <atomic>

#include "calibrate/score_parts.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/kernels/calibrate.hpp"
#include "fdma/kernels/device_memory.hpp"
#include "fdma/kernels/estimate.hpp"
#include "gpu_fixture.hpp"

namespace fdma {
namespace {

class CalibrateSm90 : public ::testing::Test {
 protected:
  void SetUp() override {
    FDMA_SKIP_WITHOUT_HOPPER();
    options_ = calibrate_options(Backend::sm90);
    options_.head_dims = {64};
    options_.quick = true;
  }
  CalibrateOptions options_;
};

TEST_F(CalibrateSm90, GivesAWholeProfile) {
  int last = -1;
  options_.progress = [&](int done, int total) {
    EXPECT_GT(done, last);
    EXPECT_EQ(total, 1);
    last = done;
  };
  const Result<DeviceProfile> profile = calibrate(options_);
  ASSERT_TRUE(profile) << profile.error().message;
  EXPECT_EQ(last, 1);
  EXPECT_TRUE(validate(*profile));
  EXPECT_FALSE(profile->is_provisional);
  EXPECT_GT(profile->num_workers, 1);
  EXPECT_EQ(profile->stripe_rows, 128);
  EXPECT_FALSE(profile->skips_dead_keys);
  ASSERT_EQ(profile->kernels.size(), 1U);
  const KernelCosts& kernel = profile->kernels[0];
  EXPECT_EQ(kernel.dtype, DType::bfloat16);
  EXPECT_EQ(kernel.head_dim, 64);
  EXPECT_TRUE(kernel.overlaps_masks);
  EXPECT_GT(kernel.launch_us, 0);
  ASSERT_EQ(kernel.tiles.size(), 1U);
  EXPECT_EQ(kernel.tiles[0].tile, (BlockShape{128, 128}));
  const TileCosts& tile = kernel.tiles[0];
  for (const StepCosts& steps : {tile.full, tile.bitmap, tile.rows, tile.columns, tile.gather}) {
    EXPECT_GT(steps.compute_us, 0);
  }
  // An index tile of gathered keys is a tile that takes longer to load.
  const double full_us = tile.full.tile_us + tile.full.compute_us;
  const double index_tile_us = tile.gather.tile_us + tile.gather.compute_us;
  EXPECT_GT(tile.gather.tile_us, 0);
  EXPECT_GT(index_tile_us, 0.9 * full_us);
  EXPECT_LT(index_tile_us, 2 * full_us);
  EXPECT_EQ(*profile_from_json(to_json(*profile)), *profile);
  // What plans add to their work tiles.
  EXPECT_FALSE(kernel.is_assumed);
  EXPECT_GT(kernel.combine_us + kernel.combine_row_us + tile.split_us, 0);
  EXPECT_LT(kernel.combine_us, 50);
  EXPECT_GT(kernel.move_us + kernel.moved_key_us, 0);
  EXPECT_LT(kernel.move_us, 50);
  EXPECT_GT(kernel.list_launch_us, 1);
  EXPECT_LT(kernel.list_launch_us, 100);
}

TEST_F(CalibrateSm90, MeasuresTheSharesOfGradients) {
  options_.directions = {Direction::backward};
  const Result<DeviceProfile> profile = calibrate(options_);
  ASSERT_TRUE(profile) << profile.error().message;
  const KernelCosts& kernel = profile->kernels.front();
  EXPECT_FALSE(kernel.is_assumed);
  EXPECT_LT(kernel.ordered_share, 0.5);
  EXPECT_GT(kernel.correction_share, 0.2);
  EXPECT_LT(kernel.correction_share, 1);
}

TEST_F(CalibrateSm90, MeasuresTheSharesOfPartsOfAScore) {
  const BackendTraits& traits = Backend::sm90.traits();
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    options_.directions = {direction};
    const Result<DeviceProfile> profile = calibrate(options_);
    ASSERT_TRUE(profile) << profile.error().message;
    const KernelCosts& kernel = profile->kernels.front();
    for (const MeasuredPart& part : measured_parts(
             direction == Direction::forward ? traits.forward_score : traits.backward_score)) {
      const double share = kernel.*part.share;
      EXPECT_NE(share, KernelCosts().*part.share) << to_string(part.score);
      EXPECT_LT(share, 20) << to_string(part.score);
    }
  }
}

TEST_F(CalibrateSm90, StopsWhenItIsCancelled) {
  const std::atomic<bool> is_cancelled = true;
  options_.is_cancelled = &is_cancelled;
  const Result<DeviceProfile> profile = calibrate(options_);
  ASSERT_FALSE(profile);
  EXPECT_EQ(profile.error().code, ErrorCode::io);
}

TEST_F(CalibrateSm90, RejectsWhatTheKernelsDoNotDo) {
  options_.tiles = {{64, 64}};
  EXPECT_EQ(calibrate(options_).error().code, ErrorCode::unsupported);
  options_ = calibrate_options(Backend::sm90);
  options_.dtypes = {DType::float32};
  EXPECT_EQ(calibrate(options_).error().code, ErrorCode::unsupported);
}

}  // namespace
}  // namespace fdma
