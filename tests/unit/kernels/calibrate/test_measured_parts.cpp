// Tests which parts of a score calibration measures, and the tensors of their calls.
#include <gtest/gtest.h>

#include <vector>

#include "calibrate/inputs.hpp"
#include "calibrate/score_parts.hpp"
#include "fdma/kernels/calibrate.hpp"
#include "plan/full_mask.hpp"

namespace fdma {
namespace {

TEST(MeasuredParts, AreThoseWithAShareThatABackendComputes) {
  EXPECT_TRUE(measured_parts({}).empty());
  EXPECT_TRUE(measured_parts({.key_bias = true, .sink = true}).empty());
  const std::vector<MeasuredPart> parts =
      measured_parts({.softcap = true, .alibi = true, .sink = true, .dropout = true});
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].score, ScoreSpec{.softcap = true});
  EXPECT_EQ(parts[0].share, &KernelCosts::softcap_share);
  EXPECT_EQ(parts[1].score, ScoreSpec{.alibi = true});
  EXPECT_EQ(parts[1].share, &KernelCosts::alibi_share);
  EXPECT_EQ(parts[2].score, ScoreSpec{.dropout = true});
  EXPECT_EQ(parts[2].share, &KernelCosts::dropout_share);
}

TEST(MeasuredParts, HaveTensorsAndNumbersOfTheirOwnAlone) {
  AttentionShape lengths;
  lengths.q_lens = {64};
  lengths.kv_lens = {96};
  const BlockMask mask = full_mask(lengths, {32, 32});
  const AttentionShape shape = calibration_shape(mask, DType::float16, 32, 4);
  std::vector<std::uint16_t> bias(64 * 96);
  std::vector<float> numbers(static_cast<std::size_t>(part_numbers(shape))), gradient(numbers);
  const PartMemory memory{bias.data(), numbers.data(), gradient.data(), Device::cpu};
  for (const MeasuredPart& part :
       measured_parts({true, true, true, true, true, true, true})) {  // every part
    BackwardTensors tensors;
    BackwardOptions options;
    set_part(part.score, shape, memory, tensors);
    set_numbers(part.score, options);
    EXPECT_EQ(tensors.bias.data != nullptr, part.score.bias);
    EXPECT_EQ(tensors.alibi_slopes.data != nullptr, part.score.alibi);
    EXPECT_EQ(tensors.relative.data != nullptr, part.score.relative_table);
    EXPECT_EQ(tensors.drelative.data != nullptr, part.score.relative_table);
    EXPECT_EQ(options.softcap != 0, part.score.softcap);
    EXPECT_EQ(options.relative_left, part.score.relative_table ? kMeasuredLeft : 0);
    EXPECT_EQ(options.dropout.rate > 0, part.score.dropout);
    if (part.score.bias) {
      EXPECT_EQ(tensors.bias.dtype, DType::float16);
      EXPECT_EQ(tensors.bias.extents[2] * tensors.bias.extents[3], std::ssize(bias));
    }
    if (part.score.relative_table) {
      EXPECT_LE(tensors.relative.extents[1], part_numbers(shape));
      EXPECT_LT(options.relative_left, tensors.relative.extents[1]);
    }
  }
}

TEST(Calibrate, MeasuresTheSharesOfPartsThatTheCpuComputes) {
  const BackendTraits& traits = Backend::cpu.traits();
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    CalibrateOptions options;
    options.directions = {direction};
    options.dtypes = {DType::float32};
    options.head_dims = {32};
    options.tiles = {{64, 64}};
    options.num_threads = 1;
    options.quick = true;
    const Result<DeviceProfile> profile = calibrate(options);
    ASSERT_TRUE(profile) << profile.error().message;
    const KernelCosts& kernel = profile->kernels.front();
    const std::vector<MeasuredPart> parts = measured_parts(
        direction == Direction::forward ? traits.forward_score : traits.backward_score);
    EXPECT_FALSE(parts.empty());
    for (const MeasuredPart& part : parts) {
      const double share = kernel.*part.share;
      EXPECT_NE(share, KernelCosts().*part.share) << to_string(part.score);
      EXPECT_LT(share, 5) << to_string(part.score);  // a busy machine scatters
    }
  }
}

}  // namespace
}  // namespace fdma
