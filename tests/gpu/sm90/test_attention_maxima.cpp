// Rows whose largest logit rises from key to key. It rises by less than the amount at which kernels
// rescale to another maximum, by a little more, and by more than 2^x can represent. Other rows see
// their first key late, with logits of any size.
#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "backend/backend_cases.hpp"
#include "gpu_fixture.hpp"

namespace fdma {
namespace {

using gpu_test::GpuFixture;
using testing::BackendAttentionCase;
using testing::CaseChoice;
using testing::MaskCase;

constexpr std::int64_t kQLen = 200, kKvLen = 700, kTileKeys = 128;

// The level of each key tile: its largest logits, in powers of 2.
using Levels = std::vector<double>;
const std::vector<Levels> kLevels = {
    {0, 7.5, 15, 22.5, 30, 37.5},   {0, 9, 18, 27, 36, 45},        {0, 31, 62, 31, 0, 0},
    {0, 33, 66, 99, 132, 165},      {0, 140, 280, 420, 560, 700},  {-7, -7, -7, -7, -7, -7},
    {-31, -31, -31, -31, -31, -31}, {-33, -33, 33, 33, 66, 66},    {-200, -200, -200, 0, 200, 40},
    {200, -200, 200, -200, 210, 0}, {-7.5, 7.5, -7.5, 7.5, 15, 0}, {12, 0, 25, 0, 40, 0},
};

// One key in `step` is visible. Some rows see all of these, some begin late, and some begin with
// the last keys. One row sees nothing and one row sees a single key.
MaskCase mask_of(std::int64_t step) {
  return testing::case_of("late",
                          testing::make_cells(kQLen, kKvLen,
                                              [step](auto q, auto k) {
                                                if (q == 77 || k % step != 0) return false;
                                                if (q == 78) return k == 5 * step;
                                                if (q < 50) return true;
                                                if (q < 100) return k >= 2 * kTileKeys;
                                                if (q < 150) return k >= 300 + q;
                                                return k < 60 || k >= 500;
                                              }),
                          {kTileKeys, kTileKeys});
}

class AttentionMaximaOnGpu : public ::testing::TestWithParam<std::int32_t> {
 protected:
  void SetUp() override { FDMA_SKIP_WITHOUT_HOPPER(); }

  // Says what is wrong; empty if nothing is. With `by_bias` the levels are biases, otherwise they
  // are products of queries and keys.
  std::string wrong(const MaskCase& mask, ColumnMode columns, DType dtype, bool by_bias,
                    const Levels& levels) {
    constexpr float kLn2 = 0.6931471805599453F;
    CaseChoice choice;
    choice.dtype = dtype;
    choice.head_dim = GetParam();
    if (GetParam() == 192) choice.head_dim_v = 128;
    choice.columns = columns;
    choice.has_bias = by_bias;
    choice.softmax_scale = kLn2;
    choice.q_scale = 0.05;
    BackendAttentionCase test_case(fixture_, mask, {1, 2, 1}, choice);
    for (std::int64_t row = 0; row < kQLen; ++row) {
      for (std::int64_t h = 0; h < 2; ++h) test_case.q().set(0, row, h, 0, h == 0 ? 1 : 0.5);
    }
    for (std::int64_t key = 0; key < kKvLen; ++key) {
      // Some keys of a tile have its level, and the others have lower ones.
      const double level =
          levels[static_cast<std::size_t>(key / kTileKeys)] - static_cast<double>(key % 5 * 2);
      test_case.k().set(0, key, 0, 0, by_bias ? 0 : level);
      if (by_bias) test_case.bias().set(0, key, 0, 0, level * kLn2);
    }
    for (testing::BackendTensor* tensor : {&test_case.q(), &test_case.k(), &test_case.bias()})
      tensor->upload();
    const auto ran = test_case.run();
    return ran ? test_case.check() : ran.error().message;
  }

  GpuFixture fixture_;
};

TEST_P(AttentionMaximaOnGpu, RiseByAnyStepInTiles) {
  for (const std::int64_t step : {1, 3}) {
    const MaskCase mask = mask_of(step);
    for (const DType dtype : {DType::bfloat16, DType::float16}) {
      for (const bool by_bias : {false, true}) {
        for (const Levels& levels : kLevels) {
          EXPECT_EQ(wrong(mask, ColumnMode::scan, dtype, by_bias, levels), "")
              << ::testing::PrintToString(levels) << (by_bias ? " bias" : "")
              << (dtype == DType::float16 ? " float16" : "");
        }
      }
    }
  }
}

TEST_P(AttentionMaximaOnGpu, RiseByAnyStepInIndexTiles) {
  if (GetParam() > 128) GTEST_SKIP() << "heads of this size are not gathered";
  // Index tiles have keys of one tile, or of several tiles, and the last index tile is narrow.
  for (const std::int64_t step : {1, 2, 5}) {
    const MaskCase mask = mask_of(step);
    for (const DType dtype : {DType::bfloat16, DType::float16}) {
      for (const bool by_bias : {false, true}) {
        for (const Levels& levels : kLevels) {
          EXPECT_EQ(wrong(mask, ColumnMode::gather, dtype, by_bias, levels), "")
              << ::testing::PrintToString(levels) << (by_bias ? " bias" : "")
              << (dtype == DType::float16 ? " float16" : "");
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDim, AttentionMaximaOnGpu, ::testing::Values(64, 96, 128, 192, 256));

}  // namespace
}  // namespace fdma
