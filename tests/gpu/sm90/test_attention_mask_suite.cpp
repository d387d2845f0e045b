// Attention on the GPU against float64. The masks of the mask suite run with every type, head size
// and group of heads, and with lengths and layouts in turn. Long sequences are checked by sampled
// rows.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "backend/backend_cases.hpp"
#include "gpu_fixture.hpp"
#include "mask_suite.hpp"

namespace fdma {
namespace {

using gpu_test::GpuFixture;
using testing::BackendCase;
using testing::CaseChoice;
using testing::MaskCase;

void expect_good(const std::vector<BackendCase>& test_cases, PlanCounts* counts = nullptr) {
  GpuFixture fixture;
  for (const BackendCase& test_case : test_cases) {
    ASSERT_EQ(
        testing::check_case(fixture, *test_case.mask, test_case.heads, test_case.choice, counts),
        "");
  }
}

class AttentionMaskSuiteOnGpu : public ::testing::TestWithParam<int> {};

TEST_P(AttentionMaskSuiteOnGpu, IsAsAccurateAsAnExplicitProduct) {
  FDMA_SKIP_WITHOUT_HOPPER();
  expect_good(testing::mask_suite_cases(GetParam()));
}

// 4,096 tokens and odd lengths. The compared rows include edges of tiles, and the cells are those
// of the compiled mask.
TEST_P(AttentionMaskSuiteOnGpu, IsAccurateForLongSequences) {
  FDMA_SKIP_WITHOUT_HOPPER();
  suite::SuiteMask suite_mask = suite::mask_suite(4096)[static_cast<std::size_t>(GetParam())];
  for (const auto& [q_len, kv_len] : {std::pair{4096, 4096}, {3001, 4096}}) {
    suite_mask.shape.q_lens = {q_len};
    const MaskCase mask = testing::compiled_case(suite_mask, {128, 128});
    GpuFixture fixture;
    CaseChoice choice;
    choice.rows_per_head = 96;
    choice.head_dim = q_len == kv_len ? 128 : 64;
    choice.dtype = q_len == kv_len ? DType::bfloat16 : DType::float16;
    EXPECT_EQ(testing::check_case(fixture, mask, {2, 4, 2}, choice), "");
  }
}

INSTANTIATE_TEST_SUITE_P(MaskSuite, AttentionMaskSuiteOnGpu,
                         ::testing::Range(0, testing::kNumSuiteMasks),
                         [](const auto& index) { return testing::suite_name(index.param); });

TEST(AttentionOnGpu, IsAccurateForEveryNumberOfTiles) {
  FDMA_SKIP_WITHOUT_HOPPER();
  expect_good(testing::tile_count_cases());
}

TEST(AttentionOnGpu, IsAccurateWithManyWorkTilesForEachBlock) {
  FDMA_SKIP_WITHOUT_HOPPER();
  expect_good(testing::many_work_tile_cases());
}

TEST(AttentionOnGpu, IsAccurateWithATailInEveryWorkTile) {
  FDMA_SKIP_WITHOUT_HOPPER();
  expect_good(testing::tail_cases());
}

TEST(AttentionOnGpu, IsAccurateForRandomMasksOfEveryKindOfSegment) {
  FDMA_SKIP_WITHOUT_HOPPER();
  PlanCounts counts;
  expect_good(testing::random_backend_cases(1, 60), &counts);
  EXPECT_GT(counts.full_tiles, 0);
  EXPECT_GT(counts.bitmap_tiles, 0);
  EXPECT_GT(counts.row_tiles, 0);
  EXPECT_GT(counts.column_tiles, 0);
  EXPECT_GT(counts.empty_items, 0);
}

TEST(AttentionOnGpu, IsAccurateForBlockSparseMasks) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 rng(12);
  GpuFixture fixture;
  for (int test_case = 0; test_case < 8; ++test_case) {
    // From a few tiles to half of them; one mask for each of 8 heads in every other case.
    std::vector<MaskCase> masks;
    const std::int64_t q_len = testing::pick(rng, 500, 1200),
                       kv_len = testing::pick(rng, 500, 2000);
    for (int h = 0; h < (test_case % 2 == 0 ? 8 : 1); ++h)
      masks.push_back(testing::block_sparse_case(rng, q_len, kv_len, 0.06 * test_case, 0.1));
    const MaskCase mask =
        testing::combined(fmt::format("block-sparse {}", test_case), 1,
                          static_cast<std::int64_t>(masks.size()), masks, {128, 128});
    CaseChoice choice;
    choice.head_dim = test_case % 4 < 2 ? 128 : 64;
    choice.dtype = test_case < 4 ? DType::bfloat16 : DType::float16;
    choice.seed = static_cast<std::uint64_t>(test_case) + 1;
    choice.rows_per_head = 200;
    EXPECT_EQ(testing::check_case(fixture, mask, {1, 8, 2}, choice), "");
  }
}

// The online maximum moves from tile to tile by more than the exponents of float32 hold.
TEST(AttentionOnGpu, IsAccurateWhereLogitsAreFarApart) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const MaskCase mask = testing::case_of(
      "wedge", testing::make_cells(200, 900, [](auto q, auto k) { return k <= 4 * q + 300; }),
      {128, 128});
  GpuFixture fixture;
  for (const double scale : {1e-3, 30.0, 300.0}) {
    CaseChoice choice;
    choice.has_bias = true;
    choice.bias_scale = scale;
    EXPECT_EQ(testing::check_case(fixture, mask, {1, 2, 1}, choice), "") << scale;
  }
  for (const double step : {1.0, -1.0}) {
    CaseChoice choice;
    choice.has_bias = true;
    testing::BackendAttentionCase test_case(fixture, mask, {1, 2, 1}, choice);
    for (std::int64_t k = 0; k < 900; ++k)
      test_case.bias().set(0, k, 0, 0, step * static_cast<double>(k - 450));
    test_case.bias().upload();
    const auto ran = test_case.run();
    ASSERT_TRUE(ran) << ran.error().message;
    EXPECT_EQ(test_case.check(), "") << step;
  }
}

// Keys with a bias of -inf are masked; rows that have only those are rows without keys.
TEST(AttentionOnGpu, TakesABiasOfMinusInfinityForAMask) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const MaskCase mask = testing::case_of(
      "halves", testing::make_cells(140, 500, [](auto q, auto k) { return (k < 250) == (q < 70); }),
      {128, 128});
  GpuFixture fixture;
  CaseChoice choice;
  choice.has_bias = true;
  testing::BackendAttentionCase test_case(fixture, mask, {1, 2, 1}, choice);
  for (std::int64_t k = 0; k < 350; ++k) {
    if (k < 250 || k % 2 == 0) test_case.bias().set(0, k, 0, 0, -INFINITY);
  }
  test_case.bias().upload();
  const auto ran = test_case.run();
  ASSERT_TRUE(ran) << ran.error().message;
  EXPECT_EQ(test_case.check(), "");
  EXPECT_EQ(test_case.lse().get(0, 69, 0), -INFINITY);
  EXPECT_GT(test_case.lse().get(0, 70, 0), -INFINITY);
}

}  // namespace
}  // namespace fdma
