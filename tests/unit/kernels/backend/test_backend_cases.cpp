// Runs some of the cases of GPU backends (tests/gpu) on the CPU. A defect of masks, reference or
// comparison is then found here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "backend/backend_cases.hpp"
#include "plan/plan_forms.hpp"

namespace fdma {
namespace {

using testing::BackendAttentionCase;
using testing::BackendCase;
using testing::CaseChoice;
using testing::CpuFixture;
using ::testing::HasSubstr;
using testing::Layout;
using testing::MaskCase;

// Runs every `every`-th of the cases. It compares few rows, since the references are slow here.
void expect_good(const std::vector<BackendCase>& test_cases, std::size_t every,
                 PlanCounts* counts = nullptr) {
  CpuFixture fixture;
  for (std::size_t i = 0; i < test_cases.size(); i += every) {
    CaseChoice choice = test_cases[i].choice;
    choice.rows_per_head = 24;
    EXPECT_EQ(
        testing::check_case(fixture, *test_cases[i].mask, test_cases[i].heads, choice, counts), "");
  }
}

TEST(BackendAttentionCase, MaskSuiteIsAccurateOnTheCpu) {
  for (int index = 0; index < testing::kNumSuiteMasks; ++index)
    expect_good(testing::mask_suite_cases(index, 11), 1);
}

TEST(BackendAttentionCase, EveryNumberOfTilesIsAccurateOnTheCpu) {
  expect_good(testing::tile_count_cases(), 4);
  expect_good({testing::tail_cases().front()}, 1);
}

TEST(BackendAttentionCase, RandomMasksAreAccurateOnTheCpu) {
  expect_good(testing::random_backend_cases(1, 4), 1);
  expect_good(testing::small_cases(), 3);
}

TEST(BackendAttentionCase, OutAndOutLowAreFloat32OnTheCpu) {
  CpuFixture fixture;
  const MaskCase mask = testing::case_of(
      "causal", testing::make_cells(70, 150, [](auto q, auto k) { return k <= q + 20; }), {64, 64});
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    CaseChoice choice;
    choice.dtype = dtype;
    choice.wants_out_low = true;
    choice.layout = Layout::padded;
    BackendAttentionCase test_case(fixture, mask, {2, 4, 2}, choice);
    ASSERT_TRUE(test_case.run());
    EXPECT_EQ(test_case.check(), "");
    EXPECT_LT(test_case.error_with_out_low(), testing::kOutLowError);
  }
}

// The cases of GPU backends rely on masks that have every kind of segment, and several intervals in
// rows and keys.
TEST(BackendAttentionCase, MasksHaveEveryKindOfSegment) {
  std::mt19937 rng(5);
  const MaskCase mask = testing::combined(
      "both", 1, 2, {testing::tile_case(rng, 500, 1500), testing::column_case(rng, 500, 1500)},
      {128, 128});
  AttentionShape shape = testing::shape_for(mask.mask, 1, 2, 1);
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = DType::float16;
  PlanOptions options;
  options.backend = Backend::sm90;
  const auto plan = make_plan(mask.mask, shape, {}, options);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_GT(plan->counts.full_tiles, 0);
  EXPECT_GT(plan->counts.bitmap_tiles, 0);
  EXPECT_GT(plan->counts.row_tiles, 0);
  EXPECT_GT(plan->counts.column_tiles, 0);
  const auto most = [](const std::vector<std::int64_t>& offsets) {
    std::int64_t result = 0;
    for (std::size_t i = 1; i < offsets.size(); ++i)
      result = std::max(result, offsets[i] - offsets[i - 1]);
    return result;
  };
  EXPECT_GT(most(testing::segments_of(*plan).row_offsets), 1);
  EXPECT_GT(most(testing::segments_of(*plan).column_offsets), 1);
}

TEST(BackendAttentionCase, RandomAndSmallCasesHaveEveryKindOfSegment) {
  for (const auto& test_cases : {testing::random_backend_cases(1, 12), testing::small_cases()}) {
    PlanCounts sum;
    for (const BackendCase& test_case : test_cases) {
      AttentionShape shape = testing::shape_for(test_case.mask->mask, test_case.heads.batch,
                                                test_case.heads.heads_q, test_case.heads.heads_kv);
      const auto plan = make_plan(test_case.mask->mask, shape);
      ASSERT_TRUE(plan) << plan.error().message;
      sum.full_tiles += plan->counts.full_tiles;
      sum.bitmap_tiles += plan->counts.bitmap_tiles;
      sum.row_tiles += plan->counts.row_tiles;
      sum.column_tiles += plan->counts.column_tiles + plan->counts.gather_chunks;
    }
    EXPECT_GT(sum.full_tiles, 0);
    EXPECT_GT(sum.bitmap_tiles, 0);
    EXPECT_GT(sum.row_tiles, 0);
    EXPECT_GT(sum.column_tiles, 0);
  }
}

TEST(BackendAttentionCase, ManyWorkTilesAreMoreThanThreeForEachWorker) {
  for (const BackendCase& test_case : testing::many_work_tile_cases()) {
    std::int64_t work_tiles = 0;
    for (const std::int64_t q_len : test_case.mask->mask.shape.q_lens)
      work_tiles += ceil_div(q_len, 128) * test_case.heads.heads_q;
    EXPECT_GT(work_tiles, 3 * 132);
  }
}

// Puts defects into results and checks that BackendAttentionCase finds them.
class BackendAttentionCaseDefects : public ::testing::Test {
 protected:
  static MaskCase causal() {
    return testing::case_of(
        "causal", testing::make_cells(40, 50, [](auto q, auto k) { return k <= q && q != 7; }),
        {16, 16});
  }
  static CaseChoice small(Layout layout) {
    CaseChoice choice;
    choice.head_dim = 64;
    choice.layout = layout;
    choice.wants_out_low = true;
    return choice;
  }

  // The message of the check after `change`.
  static std::string defect(void (*change)(BackendAttentionCase&)) {
    CpuFixture fixture;
    const MaskCase mask = causal();
    BackendAttentionCase test_case(fixture, mask, {2, 2, 1}, small(Layout::padded));
    EXPECT_TRUE(test_case.run());
    EXPECT_EQ(test_case.check(), "");
    change(test_case);
    return test_case.check();
  }
};

TEST_F(BackendAttentionCaseDefects, AreNoticed) {
  EXPECT_THAT(defect([](BackendAttentionCase& t) {
                t.out().set(1, 20, 1, 5, t.out().get(1, 20, 1, 5) + 0.05);
              }),
              HasSubstr("b 1, h 1, row 20"));
  EXPECT_THAT(defect([](BackendAttentionCase& t) { t.out().set(0, 39, 0, 63, std::nan("")); }),
              HasSubstr("b 0, h 0, row 39"));
  EXPECT_THAT(
      defect([](BackendAttentionCase& t) { t.lse().set(1, 0, 1, 0, t.lse().get(1, 0, 1) + 1e-3); }),
      HasSubstr("lse"));
  EXPECT_THAT(defect([](BackendAttentionCase& t) { t.out().set(0, 7, 1, 3, 1e-7); }),
              HasSubstr("no keys"));
  EXPECT_THAT(defect([](BackendAttentionCase& t) {
                t.out_low().set(1, 20, 1, 5, t.out().get(1, 20, 1, 5) / 100);
              }),
              HasSubstr("residual"));
  // The element after the last one of a head is in the gap.
  EXPECT_THAT(defect([](BackendAttentionCase& t) { t.out().set(0, 3, 0, 64, 1); }),
              HasSubstr("out: byte"));
  EXPECT_THAT(defect([](BackendAttentionCase& t) { t.lse().set(0, 3, 2, 0, 1); }),
              HasSubstr("lse: byte"));
  EXPECT_THAT(defect([](BackendAttentionCase& t) { t.out().set(0, 0, 0, -1, 1); }),
              HasSubstr("out: byte -2"));
  EXPECT_THAT(defect([](BackendAttentionCase& t) { t.k().set(0, 3, 0, 0, 9); }),
              HasSubstr("k: byte"));
}

TEST_F(BackendAttentionCaseDefects, LayoutsGiveTheSameBytes) {
  CpuFixture fixture;
  const MaskCase mask = causal();
  std::vector<unsigned char> bytes;
  for (const Layout layout : {Layout::rows, Layout::head_major, Layout::padded}) {
    BackendAttentionCase test_case(fixture, mask, {2, 2, 1}, small(layout));
    ASSERT_TRUE(test_case.run());
    EXPECT_EQ(test_case.check(), "");
    if (bytes.empty()) bytes = test_case.result_bytes();
    EXPECT_EQ(test_case.result_bytes(), bytes);
  }
}

}  // namespace
}  // namespace fdma
