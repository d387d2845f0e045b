// Attention on the GPU against float64: the masks of the zoo with every type, head size and group
// of heads, lengths and layouts in turn; long sequences by sampled rows.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "backend/backend_cases.hpp"
#include "gpu_fixture.hpp"
#include "mask_suite.hpp"

namespace fdma {
namespace {

using gpu_test::GpuMachine;
using testing::MaskCase;
using testing::TrialCase;
using testing::TrialChoice;

void expect_good(const std::vector<TrialCase>& trials, PlanCounts* counts = nullptr) {
  GpuMachine machine;
  for (const TrialCase& trial : trials) {
    ASSERT_EQ(testing::check_trial(machine, *trial.mask, trial.heads, trial.choice, counts), "");
  }
}

class AttentionZooOnGpu : public ::testing::TestWithParam<int> {};

TEST_P(AttentionZooOnGpu, IsAsAccurateAsAnExplicitProduct) {
  FDMA_SKIP_WITHOUT_HOPPER();
  expect_good(testing::zoo_trials(GetParam()));
}

// 4,096 tokens and odd ones, edges of tiles among the rows; cells from the compiled mask.
TEST_P(AttentionZooOnGpu, IsAccurateForLongSequences) {
  FDMA_SKIP_WITHOUT_HOPPER();
  zoo::ZooMask zoo_mask = zoo::mask_zoo(4096)[static_cast<std::size_t>(GetParam())];
  for (const auto& [q_len, kv_len] : {std::pair{4096, 4096}, {3001, 4096}}) {
    zoo_mask.shape.q_lens = {q_len};
    const MaskCase mask = testing::compiled_case(zoo_mask, {128, 128});
    GpuMachine machine;
    TrialChoice choice;
    choice.rows_per_head = 96;
    choice.head_dim = q_len == kv_len ? 128 : 64;
    choice.dtype = q_len == kv_len ? DType::bfloat16 : DType::float16;
    EXPECT_EQ(testing::check_trial(machine, mask, {2, 4, 2}, choice), "");
  }
}

INSTANTIATE_TEST_SUITE_P(Zoo, AttentionZooOnGpu, ::testing::Range(0, testing::kNumZooMasks),
                         [](const auto& index) { return testing::zoo_name(index.param); });

TEST(AttentionOnGpu, IsAccurateForEveryNumberOfTiles) {
  FDMA_SKIP_WITHOUT_HOPPER();
  expect_good(testing::tile_count_trials());
}

TEST(AttentionOnGpu, IsAccurateWithManyWorkTilesForEachBlock) {
  FDMA_SKIP_WITHOUT_HOPPER();
  expect_good(testing::many_work_tile_trials());
}

TEST(AttentionOnGpu, IsAccurateWithATailInEveryItem) {
  FDMA_SKIP_WITHOUT_HOPPER();
  expect_good(testing::tail_trials());
}

TEST(AttentionOnGpu, IsAccurateForRandomMasksOfEveryKindOfSegment) {
  FDMA_SKIP_WITHOUT_HOPPER();
  PlanCounts counts;
  expect_good(testing::random_trials(1, 60), &counts);
  EXPECT_GT(counts.full_tiles, 0);
  EXPECT_GT(counts.bitmap_tiles, 0);
  EXPECT_GT(counts.row_tiles, 0);
  EXPECT_GT(counts.column_tiles, 0);
  EXPECT_GT(counts.empty_items, 0);
}

TEST(AttentionOnGpu, IsAccurateForBlockSparseMasks) {
  FDMA_SKIP_WITHOUT_HOPPER();
  std::mt19937 rng(12);
  GpuMachine machine;
  for (int trial = 0; trial < 8; ++trial) {
    // From a few tiles to half of them; one mask for each of 8 heads in every other trial.
    std::vector<MaskCase> masks;
    const std::int64_t q_len = testing::pick(rng, 500, 1200),
                       kv_len = testing::pick(rng, 500, 2000);
    for (int h = 0; h < (trial % 2 == 0 ? 8 : 1); ++h)
      masks.push_back(testing::block_sparse_case(rng, q_len, kv_len, 0.06 * trial, 0.1));
    const MaskCase mask =
        testing::combined(fmt::format("block-sparse {}", trial), 1,
                          static_cast<std::int64_t>(masks.size()), masks, {128, 128});
    TrialChoice choice;
    choice.head_dim = trial % 4 < 2 ? 128 : 64;
    choice.dtype = trial < 4 ? DType::bfloat16 : DType::float16;
    choice.seed = static_cast<std::uint64_t>(trial) + 1;
    choice.rows_per_head = 200;
    EXPECT_EQ(testing::check_trial(machine, mask, {1, 8, 2}, choice), "");
  }
}

// The online maximum moves from tile to tile by more than the exponents of float32 hold.
TEST(AttentionOnGpu, IsAccurateWhereLogitsAreFarApart) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const MaskCase mask = testing::case_of(
      "wedge", testing::make_cells(200, 900, [](auto q, auto k) { return k <= 4 * q + 300; }),
      {128, 128});
  GpuMachine machine;
  for (const double scale : {1e-3, 30.0, 300.0}) {
    TrialChoice choice;
    choice.has_bias = true;
    choice.bias_scale = scale;
    EXPECT_EQ(testing::check_trial(machine, mask, {1, 2, 1}, choice), "") << scale;
  }
  for (const double step : {1.0, -1.0}) {
    TrialChoice choice;
    choice.has_bias = true;
    testing::AttentionTrial trial(machine, mask, {1, 2, 1}, choice);
    for (std::int64_t k = 0; k < 900; ++k)
      trial.bias().set(0, k, 0, 0, step * static_cast<double>(k - 450));
    trial.bias().upload();
    const auto ran = trial.run();
    ASSERT_TRUE(ran) << ran.error().message;
    EXPECT_EQ(trial.check(), "") << step;
  }
}

// Keys with a bias of -inf are masked; rows that have only those are rows without keys.
TEST(AttentionOnGpu, TakesABiasOfMinusInfinityForAMask) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const MaskCase mask = testing::case_of(
      "halves", testing::make_cells(140, 500, [](auto q, auto k) { return (k < 250) == (q < 70); }),
      {128, 128});
  GpuMachine machine;
  TrialChoice choice;
  choice.has_bias = true;
  testing::AttentionTrial trial(machine, mask, {1, 2, 1}, choice);
  for (std::int64_t k = 0; k < 350; ++k) {
    if (k < 250 || k % 2 == 0) trial.bias().set(0, k, 0, 0, -INFINITY);
  }
  trial.bias().upload();
  const auto ran = trial.run();
  ASSERT_TRUE(ran) << ran.error().message;
  EXPECT_EQ(trial.check(), "");
  EXPECT_EQ(trial.lse().get(0, 69, 0), -INFINITY);
  EXPECT_GT(trial.lse().get(0, 70, 0), -INFINITY);
}

}  // namespace
}  // namespace fdma
