// Attention on the GPU with head sizes that its kernels are compiled for, and with head sizes that
// they pad with zeros. In some cases head_dim_v differs from head_dim.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <utility>

#include "backend/backend_cases.hpp"
#include "gpu_fixture.hpp"

namespace fdma {
namespace {

using gpu_test::GpuFixture;
using testing::CaseChoice;
using testing::MaskCase;

struct HeadSizes {
  std::int32_t head_dim, head_dim_v;
};

class AttentionHeadSizesOnGpu : public ::testing::TestWithParam<HeadSizes> {
 protected:
  void SetUp() override { FDMA_SKIP_WITHOUT_HOPPER(); }

  static CaseChoice choice(DType dtype) {
    CaseChoice choice;
    choice.head_dim = GetParam().head_dim;
    choice.head_dim_v = GetParam().head_dim_v;
    choice.dtype = dtype;
    return choice;
  }
};

// Every kind of segment, tails, unequal lengths, every layout, with and without bias.
TEST_P(AttentionHeadSizesOnGpu, AreAccurateForEveryKindOfSegment) {
  GpuFixture fixture;
  std::mt19937 rng(7);
  int test_case = 0;
  for (const auto& [q_len, kv_len] : {std::pair{300, 700}, {257, 64}, {1, 1000}, {130, 129}}) {
    for (const bool is_columns : {false, true}) {
      const MaskCase mask = is_columns ? testing::column_case(rng, q_len, kv_len)
                                       : testing::tile_case(rng, q_len, kv_len);
      for (const DType dtype : {DType::bfloat16, DType::float16}) {
        CaseChoice each = choice(dtype);
        each.layout = static_cast<testing::Layout>(test_case % 3);
        each.has_bias = test_case % 4 >= 2;
        each.seed = static_cast<std::uint64_t>(++test_case);
        EXPECT_EQ(testing::check_case(fixture, mask, {2, 4, 2}, each), "");
      }
    }
  }
}

// Several work tiles for each block, of one tile and of many.
TEST_P(AttentionHeadSizesOnGpu, AreAccurateWithManyWorkTiles) {
  GpuFixture fixture;
  const MaskCase mask = testing::case_of(
      "causal", testing::make_cells(700, 700, [](auto q, auto k) { return k <= q; }), {128, 128});
  for (const bool has_bias : {false, true}) {
    CaseChoice each = choice(DType::bfloat16);
    each.has_bias = has_bias;
    each.rows_per_head = 30;
    EXPECT_EQ(testing::check_case(fixture, mask, {12, 8, 8}, each), "");
  }
}

// The mask suite with odd lengths.
TEST_P(AttentionHeadSizesOnGpu, AreAccurateForTheMaskSuite) {
  GpuFixture fixture;
  for (int index = 0; index < testing::kNumSuiteMasks; ++index) {
    for (const testing::BackendCase& test_case : testing::mask_suite_cases(index, 29)) {
      CaseChoice each = test_case.choice;
      each.head_dim = GetParam().head_dim;
      each.head_dim_v = GetParam().head_dim_v;
      EXPECT_EQ(testing::check_case(fixture, *test_case.mask, test_case.heads, each), "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, AttentionHeadSizesOnGpu,
    ::testing::Values(HeadSizes{8, 8}, HeadSizes{16, 16}, HeadSizes{80, 80}, HeadSizes{96, 96},
                      HeadSizes{112, 112}, HeadSizes{192, 192}, HeadSizes{256, 256},
                      HeadSizes{192, 128}, HeadSizes{64, 128}, HeadSizes{128, 64},
                      HeadSizes{40, 256}, HeadSizes{256, 72}, HeadSizes{136, 8}),
    [](const auto& sizes) {
      return fmt::format("{}and{}", sizes.param.head_dim, sizes.param.head_dim_v);
    });

}  // namespace
}  // namespace fdma
