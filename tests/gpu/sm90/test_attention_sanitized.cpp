// A few small cases for compute-sanitizer, whose tools slow a kernel down a hundredfold. They have
// every kind of segment, gathered and permuted keys, tails, key bias and both head sizes. Gradients
// are computed for the same, in accumulation order or not, by kv worklists, with fp32 accumulators
// of keys and with out_low. References are computed on the host, so that attention is the only
// kernel.
#include <gtest/gtest.h>

#include "backend/backend_backward_case.hpp"
#include "backend/backend_cases.hpp"
#include "backend/scattered_cases.hpp"
#include "gpu_fixture.hpp"
#include "plan/plan_forms.hpp"

namespace fdma {
namespace {

using testing::worklist_of;

TEST(AttentionSanitized, EveryKindOfSegment) {
  FDMA_SKIP_WITHOUT_HOPPER();
  gpu_test::GpuFixture fixture(gpu_test::ReferenceOn::host);
  PlanCounts counts;
  for (const testing::BackendCase& test_case : testing::small_cases()) {
    EXPECT_EQ(
        testing::check_case(fixture, *test_case.mask, test_case.heads, test_case.choice, &counts),
        "");
  }
  EXPECT_GT(counts.full_tiles, 0);
  EXPECT_GT(counts.bitmap_tiles, 0);
  EXPECT_GT(counts.row_tiles, 0);
  EXPECT_GT(counts.column_tiles, 0);
}

TEST(AttentionSanitized, GatheredKeys) {
  FDMA_SKIP_WITHOUT_HOPPER();
  gpu_test::GpuFixture fixture(gpu_test::ReferenceOn::host);
  PlanCounts counts;
  const std::vector<testing::MaskCase> masks = testing::scattered_cases(200, 600, 5);
  for (std::size_t i = 0; i < masks.size(); i += 3) {
    testing::CaseChoice choice;
    choice.columns = ColumnMode::gather;
    choice.head_dim = i % 2 == 0 ? 128 : 64;
    choice.has_bias = i % 4 == 2;
    choice.rows_per_head = 24;
    EXPECT_EQ(testing::check_case(fixture, masks[i], {1, 2, 1}, choice, &counts), "");
  }
  EXPECT_GT(counts.gather_chunks, 0);
}

TEST(AttentionSanitized, ReorderedKeys) {
  FDMA_SKIP_WITHOUT_HOPPER();
  gpu_test::GpuFixture fixture(gpu_test::ReferenceOn::host);
  PlanCounts counts;
  const std::vector<testing::MaskCase> masks = testing::scattered_cases(200, 600, 6);
  for (std::size_t i = 1; i < masks.size(); i += 3) {
    testing::CaseChoice choice;
    choice.columns = ColumnMode::reorder;
    choice.head_dim = i % 2 == 0 ? 128 : 256;
    choice.has_bias = i % 4 == 3;
    choice.rows_per_head = 24;
    EXPECT_EQ(testing::check_case(fixture, masks[i], {1, 2, 1}, choice, &counts), "");
  }
  EXPECT_GT(counts.moved_keys, 0);
}

TEST(AttentionSanitized, LengthsAtTheEdgesOfTiles) {
  FDMA_SKIP_WITHOUT_HOPPER();
  gpu_test::GpuFixture fixture(gpu_test::ReferenceOn::host);
  const std::vector<testing::BackendCase> test_cases = testing::tile_count_cases();
  for (std::size_t i = 0; i < test_cases.size(); i += 6) {
    testing::CaseChoice choice = test_cases[i].choice;
    choice.rows_per_head = 16;
    EXPECT_EQ(testing::check_case(fixture, *test_cases[i].mask, test_cases[i].heads, choice), "");
  }
}

TEST(AttentionSanitized, Gradients) {
  FDMA_SKIP_WITHOUT_HOPPER();
  gpu_test::GpuFixture fixture(gpu_test::ReferenceOn::host);
  PlanCounts counts;
  const std::vector<testing::BackendCase> test_cases = testing::small_cases();
  for (std::size_t i = 0; i < test_cases.size(); ++i) {
    for (const bool is_deterministic : {false, true}) {
      testing::CaseChoice choice = test_cases[i].choice;
      if (i % 3 == 0 && choice.head_dim == 64) choice.head_dim = 256;
      choice.wants_out_low = i % 2 == 0;
      testing::BackwardChoice backward;
      backward.deterministic = is_deterministic;
      EXPECT_EQ(testing::check_backward_case(fixture, *test_cases[i].mask, test_cases[i].heads,
                                             choice, backward, &counts),
                "");
    }
  }
  EXPECT_GT(counts.full_tiles, 0);
  EXPECT_GT(counts.bitmap_tiles, 0);
  EXPECT_GT(counts.row_tiles + counts.column_tiles, 0);
}

// Half tiles of queries without a step, for which the dQ semaphore must advance too.
TEST(AttentionSanitized, GradientsInOrderOfHalfTiles) {
  FDMA_SKIP_WITHOUT_HOPPER();
  gpu_test::GpuFixture fixture(gpu_test::ReferenceOn::host);
  const testing::MaskCase mask = testing::case_of(
      "halves of tiles in turn",
      testing::make_cells(500, 300, [](auto q, auto k) { return (q / 64 + k / 128) % 2 == 0; }),
      {128, 128});
  testing::CaseChoice choice;
  choice.head_dim = 128;
  choice.wants_out_low = true;
  testing::BackwardChoice backward;
  backward.deterministic = true;
  EXPECT_EQ(testing::check_backward_case(fixture, mask, {1, 8, 4}, choice, backward), "");
}

// Keys that become visible again, in 16 heads. Tiles of keys are cut, and their gradients are
// added.
TEST(AttentionSanitized, GradientsOverListedKeys) {
  FDMA_SKIP_WITHOUT_HOPPER();
  gpu_test::GpuFixture fixture(gpu_test::ReferenceOn::host);
  const testing::MaskCase mask = testing::case_of(
      "come back",
      testing::make_cells(700, 160,
                          [](auto q, auto k) { return k % 3 != 1 && (q + 7 * k) % 300 < 150; }),
      {128, 128});
  for (const std::int32_t head_dim : {64, 128, 256}) {
    for (const bool is_deterministic : {false, true}) {
      testing::CaseChoice choice;
      choice.head_dim = head_dim;
      choice.has_bias = choice.wants_out_low = head_dim == 128;
      testing::BackwardChoice backward;
      backward.columns = ColumnMode::reorder;
      backward.deterministic = is_deterministic;
      testing::BackendBackwardCase test_case(fixture, mask, {1, 16, 1}, choice, backward);
      EXPECT_FALSE(worklist_of(test_case.plan()).accum_keys.empty());
      const auto ran = test_case.run();
      ASSERT_TRUE(ran) << ran.error().message;
      EXPECT_EQ(test_case.check(), "") << head_dim;
    }
  }
}

TEST(AttentionSanitized, RowSumsOfKeysAndOutLow) {
  FDMA_SKIP_WITHOUT_HOPPER();
  gpu_test::GpuFixture fixture(gpu_test::ReferenceOn::host);
  for (const std::int32_t head_dim : {64, 128}) {
    testing::CaseChoice choice;
    choice.head_dim = head_dim;
    testing::BackwardChoice backward;
    backward.deterministic = head_dim == 64;
    EXPECT_EQ(testing::delta_error(fixture, choice, backward), "") << head_dim;
  }
}

}  // namespace
}  // namespace fdma
