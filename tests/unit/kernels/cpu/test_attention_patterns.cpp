// Attention on the CPU with masks that have patterns: as accurate as with others, and the bits are
// those of the mask written out.
#include <gtest/gtest.h>

#include "backend/backend_backward_case.hpp"
#include "backend/pattern_cases.hpp"
#include "plan/plan_forms.hpp"

namespace fdma {
namespace {

using testing::BackendAttentionCase;
using testing::BackendBackwardCase;
using testing::CaseChoice;
using testing::CaseHeads;
using testing::CpuFixture;
using testing::MaskCase;

CaseChoice small_choice() {
  CaseChoice choice;
  choice.dtype = DType::float32;
  choice.head_dim = 16;
  choice.columns = ColumnMode::scan;
  return choice;
}

std::vector<MaskCase> pattern_cases() {
  return {testing::causal_periodic_case(7, 128, 10, 3),
          testing::causal_periodic_case(7, 128, 640, 300),
          testing::window_periodic_case(7, 128, 384, 320, 100)};
}

TEST(AttentionForward, IsThatOfTheMaskWrittenOutForPatterns) {
  const CaseHeads heads{1, 2, 1};
  for (const MaskCase& each : pattern_cases()) {
    const MaskCase expanded = testing::written_out(each);
    CpuFixture fixture;
    BackendAttentionCase with(fixture, each, heads, small_choice());
    BackendAttentionCase without(fixture, expanded, heads, small_choice());
    EXPECT_FALSE(testing::segments_of(with.plan()).patterns.empty()) << each.name;
    EXPECT_TRUE(testing::segments_of(without.plan()).patterns.empty()) << each.name;
    ASSERT_TRUE(with.run());
    ASSERT_TRUE(without.run());
    EXPECT_EQ(with.check(), "") << each.name;
    EXPECT_EQ(with.result_bytes(), without.result_bytes()) << each.name;
  }
}

TEST(AttentionBackward, IsThatOfTheMaskWrittenOutForPatterns) {
  const CaseHeads heads{1, 2, 1};
  for (const MaskCase& each : pattern_cases()) {
    const MaskCase expanded = testing::written_out(each);
    CpuFixture fixture;
    BackendBackwardCase with(fixture, each, heads, small_choice());
    BackendBackwardCase without(fixture, expanded, heads, small_choice());
    ASSERT_TRUE(with.run());
    ASSERT_TRUE(without.run());
    EXPECT_EQ(with.check(), "") << each.name;
    EXPECT_EQ(with.result_bytes(), without.result_bytes()) << each.name;
  }
}

}  // namespace
}  // namespace fdma
