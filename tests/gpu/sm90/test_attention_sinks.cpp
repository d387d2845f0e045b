// Tests sinks on the GPU: forward and backward, by every form of plan.
#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "backend/backend_cases.hpp"
#include "backend/closed_form_cases.hpp"
#include "gpu_fixture.hpp"
#include "sm90/parts_case.hpp"

namespace fdma {
namespace {

using gpu_test::GpuFixture;
using gpu_test::PartsCase;
using gpu_test::PartsChoice;
using testing::MaskCase;

constexpr std::int64_t kQLen = 290, kKvLen = 350;

// Ragged ends, a band, a row without keys and keys that no row sees.
MaskCase band_case(std::int64_t q_len = kQLen, std::int64_t kv_len = kKvLen) {
  return testing::case_of(
      "band",
      testing::make_cells(
          q_len, kv_len,
          [](auto q, auto k) { return q != 77 && k % 31 != 5 && k <= q + 60 && q - k < 150; }),
      {128, 128});
}

void expect_accurate(GpuFixture& fixture, const MaskCase& mask, const PartsChoice& choice) {
  PartsCase test_case(fixture, mask, choice);
  EXPECT_EQ(test_case.forward_error(), "");
  EXPECT_EQ(test_case.backward_error(), "");
}

TEST(Sinks, AreAccurateForEveryHeadSizeTypeAndShape) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase mask = band_case();
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    for (const std::int32_t head_dim : {64, 96, 128, 192, 256}) {
      for (const bool is_per_row : {false, true}) {
        PartsChoice choice;
        choice.dtype = dtype;
        choice.head_dim = head_dim;
        choice.sinks = {4};
        if (is_per_row) choice.sinks = {2, 4, kQLen};
        choice.sinks_dtype = is_per_row == (head_dim == 128) ? dtype : DType::float32;
        choice.has_dlse = head_dim != 96;
        choice.wants_out_low = head_dim == 192;
        expect_accurate(fixture, mask, choice);
      }
    }
  }
}

TEST(Sinks, AreAccurateBesideOtherParts) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase mask = band_case();
  for (const float softcap : {0.0F, 3.0F}) {
    for (const bool has_key_bias : {false, true}) {
      PartsChoice choice;
      choice.dtype = DType::bfloat16;
      choice.softcap = softcap;
      choice.has_key_bias = has_key_bias;
      choice.sinks = {4};
      choice.sinks_scale = 3;
      expect_accurate(fixture, mask, choice);
    }
  }
}

TEST(Sinks, AreAccurateHoweverDeltaIsComputed) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase mask = band_case();
  for (const DeltaSource source : {DeltaSource::output, DeltaSource::corrected}) {
    for (const bool wants_out_low : {false, true}) {
      for (const std::int32_t head_dim : {64, 128, 256}) {
        for (const bool deterministic : {false, true}) {
          PartsChoice choice;
          choice.head_dim = head_dim;
          choice.sinks = {4};
          choice.sinks_scale = 2;
          choice.delta_source = source;
          choice.wants_out_low = wants_out_low;
          choice.has_key_bias = source == DeltaSource::corrected;
          choice.deterministic = deterministic;
          expect_accurate(fixture, mask, choice);
        }
      }
    }
  }
}

// Lists, permutations, worklists, splits and packed heads.
TEST(Sinks, AreAccurateByEveryFormOfPlan) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  std::mt19937 rng(5);
  const MaskCase masks[] = {
      testing::column_case(rng, 500, 900), testing::tile_case(rng, 300, 700),
      testing::case_of("few rows", testing::make_cells(3, 9000, [](auto, auto k) { return k % 7; }),
                       {128, 128})};
  for (const MaskCase& mask : masks) {
    for (const ColumnMode columns :
         {ColumnMode::automatic, ColumnMode::scan, ColumnMode::gather, ColumnMode::reorder}) {
      for (const std::int32_t head_dim : {64, 128}) {
        PartsChoice choice;
        choice.batch = 1;
        choice.head_dim = head_dim;
        choice.columns = columns;
        choice.sinks = {4};
        if (head_dim == 64) choice.sinks = {1, 4, mask.mask.shape.q_lens[0]};
        expect_accurate(fixture, mask, choice);
      }
    }
  }
}

TEST(Sinks, AreAccurateByClosedForms) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  for (const ParametricMask& form : testing::plain_forms(300, 700)) {
    MaskCase mask = testing::case_at_call("form", form, {{300, 700}});
    mask.mask = testing::block_mask_of(form);
    PartsChoice choice;
    choice.form = PlanForm::parametric;
    choice.sinks = {4};
    expect_accurate(fixture, mask, choice);
  }
}

// A sink of -inf is none, one that is far larger than the logits leaves nothing of a row, and rows
// without keys stay 0.
TEST(Sinks, MayBeInfiniteOrLarge) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase mask = band_case();
  PartsChoice choice;
  choice.sinks = {2, 4, kQLen};
  PartsCase test_case(fixture, mask, choice);
  for (std::int64_t row = 0; row < kQLen; row += 3) {
    test_case.sinks().set({0, 1, row}, -std::numeric_limits<double>::infinity());
    test_case.sinks().set({1, 2, row}, 40);
    test_case.sinks().set({1, 3, row}, -40);
  }
  test_case.sinks().upload();
  EXPECT_EQ(test_case.forward_error(), "");
  EXPECT_EQ(test_case.backward_error(), "");
}

TEST(Sinks, HaveGradientsOfTheSameBitsInEveryRun) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase mask = band_case(700, 700);
  for (const std::int32_t head_dim : {64, 128, 256}) {
    PartsChoice choice;
    choice.head_dim = head_dim;
    choice.sinks = {4};
    choice.deterministic = true;
    PartsCase test_case(fixture, mask, choice);
    ASSERT_EQ(test_case.forward_error(), "");
    ASSERT_EQ(test_case.backward_error(), "");
    const auto bytes = test_case.gradient_bytes();
    for (int i = 0; i < 3; ++i) {
      ASSERT_EQ(test_case.backward_error(), "");
      EXPECT_EQ(test_case.gradient_bytes(), bytes) << head_dim;
    }
  }
}

}  // namespace
}  // namespace fdma
