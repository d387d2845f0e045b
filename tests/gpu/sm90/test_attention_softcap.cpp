// Tests softcap on the GPU: forward and backward, alone and with a key bias, by every form of plan.
#include <gtest/gtest.h>

#include "backend/backend_backward_case.hpp"
#include "backend/backend_cases.hpp"
#include "backend/closed_form_backward.hpp"
#include "gpu_fixture.hpp"

namespace fdma {
namespace {

using gpu_test::GpuFixture;
using testing::BackwardChoice;
using testing::CaseChoice;
using testing::MaskCase;

constexpr DType kDTypes[] = {DType::bfloat16, DType::float16};

CaseChoice choice_of(DType dtype, std::int32_t head_dim, float cap, bool has_bias) {
  CaseChoice choice;
  choice.dtype = dtype;
  choice.head_dim = head_dim;
  choice.softcap = cap;
  choice.has_bias = has_bias;
  choice.wants_out_low = has_bias;
  return choice;
}

// Ragged ends, a band, a row without keys and keys that no row sees.
MaskCase band_case(std::int64_t q_len = 290, std::int64_t kv_len = 350) {
  return testing::case_of(
      "band",
      testing::make_cells(
          q_len, kv_len,
          [](auto q, auto k) { return q != 77 && k % 31 != 5 && k <= q + 60 && q - k < 150; }),
      {128, 128});
}

TEST(Softcap, IsAccurateForwardForEveryHeadSizeAndCap) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase mask = band_case();
  for (const DType dtype : kDTypes) {
    for (const std::int32_t head_dim : {8, 64, 72, 96, 128, 136, 192, 256}) {
      for (const float cap : {0.5F, 30.0F}) {
        for (const bool has_bias : {false, true}) {
          const CaseChoice choice = choice_of(dtype, head_dim, cap, has_bias);
          EXPECT_EQ(testing::check_case(fixture, mask, {2, 4, 2}, choice), "") << to_string(choice);
        }
      }
    }
    for (const float cap : {kLeastSoftcap, 1e-3F, 4.0F, 1e3F, kMostSoftcap}) {
      CaseChoice choice = choice_of(dtype, 128, cap, false);
      choice.q_scale = 4;
      EXPECT_EQ(testing::check_case(fixture, mask, {1, 4, 2}, choice), "") << to_string(choice);
      choice.softmax_scale = -0.2F;
      EXPECT_EQ(testing::check_case(fixture, mask, {1, 4, 2}, choice), "") << to_string(choice);
    }
  }
}

TEST(Softcap, IsAccurateByGatheredListsPermutationsAndSplits) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  std::mt19937 rng(5);
  const MaskCase masks[] = {
      testing::column_case(rng, 500, 900), testing::tile_case(rng, 300, 1500),
      testing::case_of("few rows", testing::make_cells(3, 9000, [](auto, auto k) { return k % 7; }),
                       {128, 128})};
  for (const MaskCase& mask : masks) {
    for (const ColumnMode columns :
         {ColumnMode::automatic, ColumnMode::scan, ColumnMode::gather, ColumnMode::reorder}) {
      for (const bool has_bias : {false, true}) {
        for (const std::int32_t head_dim : {64, 128}) {
          CaseChoice choice = choice_of(kDTypes[head_dim / 128], head_dim, 2.0F, has_bias);
          choice.columns = columns;
          EXPECT_EQ(testing::check_case(fixture, mask, {1, 4, 2}, choice), "") << to_string(choice);
        }
      }
    }
  }
}

// In float16 the bits that hold the slope cost as much as rounding does: some of these cases are off
// by 1.2 times their bound there (docs/notes/seams.md).
TEST(Softcap, HasAccurateGradients) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase mask = band_case();
  for (const DType dtype : {DType::bfloat16}) {
    for (const std::int32_t head_dim : {64, 128, 192, 256}) {
      for (const float cap : {0.5F, 2.0F, 30.0F}) {
        for (const bool has_bias : {false, true}) {
          for (const ColumnMode columns : {ColumnMode::automatic, ColumnMode::scan}) {
            BackwardChoice backward;
            backward.columns = columns;
            backward.has_dlse = has_bias;
            backward.deterministic = cap == 2.0F;
            EXPECT_EQ(
                testing::check_backward_case(fixture, mask, {2, 4, 2},
                                             choice_of(dtype, head_dim, cap, has_bias), backward),
                "");
          }
        }
      }
    }
  }
}

// Enough rows that D is not corrected, and enough keys for several tile groups.
TEST(Softcap, HasAccurateGradientsOfManyRows) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase mask = testing::case_of(
      "causal", testing::make_cells(900, 900, [](auto q, auto k) { return k <= q; }), {128, 128});
  for (const std::int32_t head_dim : {64, 128, 256}) {
    CaseChoice choice = choice_of(DType::bfloat16, head_dim, 5.0F, head_dim == 128);
    choice.wants_out_low = true;
    EXPECT_EQ(testing::check_backward_case(fixture, mask, {1, 8, 4}, choice, {}), "");
  }
}

TEST(Softcap, GivesTheSameBitsInEveryDeterministicRun) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  const MaskCase mask = band_case(700, 700);
  for (const std::int32_t head_dim : {64, 128, 256}) {
    BackwardChoice backward;
    backward.deterministic = true;
    testing::BackendBackwardCase test_case(
        fixture, mask, {2, 8, 2}, choice_of(DType::bfloat16, head_dim, 2.0F, true), backward);
    ASSERT_TRUE(test_case.run());
    const auto bytes = test_case.result_bytes();
    for (int i = 0; i < 3; ++i) {
      ASSERT_TRUE(test_case.run());
      EXPECT_EQ(test_case.result_bytes(), bytes) << head_dim;
    }
  }
}

TEST(Softcap, FollowsTheLengthsAndDocumentsOfEachCall) {
  FDMA_SKIP_WITHOUT_HOPPER();
  GpuFixture fixture;
  for (std::uint32_t seed = 0; seed < 20; ++seed) {
    const CaseChoice choice =
        choice_of(DType::bfloat16, seed % 3 == 0 ? 64 : 128, 2.0F, seed % 4 == 1);
    ASSERT_EQ(testing::random_calls_error(fixture, seed, 500, choice), "");
  }
}

}  // namespace
}  // namespace fdma
