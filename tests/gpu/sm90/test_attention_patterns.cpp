// Attention on the GPU with masks that have patterns: the bits are those of the mask written out,
// whole rows and split ones, forward and backward.
#include <gtest/gtest.h>

#include "backend/backend_backward_case.hpp"
#include "backend/pattern_cases.hpp"
#include "gpu_fixture.hpp"
#include "plan/plan_forms.hpp"

namespace fdma {
namespace {

using gpu_test::GpuFixture;
using testing::BackendAttentionCase;
using testing::BackendBackwardCase;
using testing::BackwardChoice;
using testing::CaseChoice;
using testing::CaseHeads;
using testing::MaskCase;

std::vector<MaskCase> pattern_cases() {
  return {testing::causal_periodic_case(23, 128, 10, 3),
          testing::causal_periodic_case(23, 128, 640, 300),
          testing::causal_periodic_case(9, 128, 128 * 37, 128 * 20),
          testing::window_periodic_case(23, 128, 768, 320, 100)};
}

TEST(AttentionOfPatternsOnGpu, IsThatOfTheMaskWrittenOut) {
  FDMA_SKIP_WITHOUT_HOPPER();
  bool has_splits = false;
  for (const MaskCase& each : pattern_cases()) {
    const MaskCase expanded = testing::written_out(each);
    for (const std::int32_t head_dim : {64, 128, 256}) {
      for (const CaseHeads heads : {CaseHeads{1, 2, 2}, CaseHeads{1, 24, 24}}) {
        for (const bool has_bias : {false, true}) {
          CaseChoice choice;
          choice.head_dim = head_dim;
          choice.has_bias = has_bias;
          choice.rows_per_head = 64;
          choice.columns = ColumnMode::scan;
          choice.pack = PackMode::never;
          GpuFixture fixture;
          BackendAttentionCase with(fixture, each, heads, choice);
          BackendAttentionCase without(fixture, expanded, heads, choice);
          EXPECT_FALSE(testing::segments_of(with.plan()).patterns.empty()) << each.name;
          has_splits |= !testing::segments_of(with.plan()).split_rows.empty();
          ASSERT_TRUE(with.run());
          ASSERT_TRUE(without.run());
          EXPECT_EQ(with.check(), "") << each.name;
          EXPECT_EQ(with.result_bytes(), without.result_bytes()) << each.name;
        }
      }
    }
  }
  EXPECT_TRUE(has_splits);
}

// Deterministic calls have the same bits where tiles come in the same order.
TEST(AttentionOfPatternsOnGpu, HasTheGradientsOfTheMaskWrittenOut) {
  FDMA_SKIP_WITHOUT_HOPPER();
  const CaseHeads heads{1, 4, 2};
  for (const MaskCase& each : pattern_cases()) {
    const MaskCase expanded = testing::written_out(each);
    for (const std::int32_t head_dim : {64, 128, 256}) {
      CaseChoice choice;
      choice.head_dim = head_dim;
      choice.rows_per_head = 64;
      choice.columns = ColumnMode::scan;
      choice.pack = PackMode::never;
      BackwardChoice backward;
      backward.deterministic = true;
      backward.columns = ColumnMode::scan;
      GpuFixture fixture;
      BackendBackwardCase with(fixture, each, heads, choice, backward);
      BackendBackwardCase without(fixture, expanded, heads, choice, backward);
      ASSERT_TRUE(with.run());
      ASSERT_TRUE(without.run());
      EXPECT_EQ(with.check(), "") << each.name;
      EXPECT_EQ(with.result_bytes(), without.result_bytes()) << each.name;
    }
  }
}

}  // namespace
}  // namespace fdma
