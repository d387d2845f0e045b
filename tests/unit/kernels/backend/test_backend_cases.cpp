// The trials that GPU backends pass (tests/gpu), on the CPU: a part of them, so that a defect of
// masks, reference or comparison is found here.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "backend/backend_cases.hpp"

namespace fdma {
namespace {

using testing::AttentionTrial;
using testing::CpuMachine;
using ::testing::HasSubstr;
using testing::Layout;
using testing::MaskCase;
using testing::TrialCase;
using testing::TrialChoice;

// Runs every `every`-th of the trials; the references are slow here, so that few rows are compared.
void expect_good(const std::vector<TrialCase>& trials, std::size_t every,
                 PlanCounts* counts = nullptr) {
  CpuMachine machine;
  for (std::size_t i = 0; i < trials.size(); i += every) {
    TrialChoice choice = trials[i].choice;
    choice.rows_per_head = 24;
    EXPECT_EQ(testing::check_trial(machine, *trials[i].mask, trials[i].heads, choice, counts), "");
  }
}

TEST(AttentionTrial, ZooIsAccurateOnTheCpu) {
  for (int index = 0; index < testing::kNumZooMasks; ++index)
    expect_good(testing::zoo_trials(index, 11), 1);
}

TEST(AttentionTrial, EveryNumberOfTilesIsAccurateOnTheCpu) {
  expect_good(testing::tile_count_trials(), 4);
  expect_good({testing::tail_trials().front()}, 1);
}

TEST(AttentionTrial, RandomMasksAreAccurateOnTheCpu) {
  expect_good(testing::random_trials(1, 4), 1);
  expect_good(testing::small_trials(), 3);
}

TEST(AttentionTrial, OutAndOutLowAreFloat32OnTheCpu) {
  CpuMachine machine;
  const MaskCase mask = testing::case_of(
      "causal", testing::make_cells(70, 150, [](auto q, auto k) { return k <= q + 20; }), {64, 64});
  for (const DType dtype : {DType::bfloat16, DType::float16}) {
    TrialChoice choice;
    choice.dtype = dtype;
    choice.wants_out_low = true;
    choice.layout = Layout::padded;
    AttentionTrial trial(machine, mask, {2, 4, 2}, choice);
    ASSERT_TRUE(trial.run());
    EXPECT_EQ(trial.check(), "");
    EXPECT_LT(trial.error_with_out_low(), testing::kOutLowError);
  }
}

// What the GPU's trials rely on: every kind of segment comes, rows and keys have several intervals.
TEST(AttentionTrial, MasksHaveEveryKindOfSegment) {
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
  EXPECT_GT(most(plan->row_offsets), 1);
  EXPECT_GT(most(plan->column_offsets), 1);
}

TEST(AttentionTrial, RandomAndSmallTrialsHaveEveryKindOfSegment) {
  for (const auto& trials : {testing::random_trials(1, 12), testing::small_trials()}) {
    PlanCounts sum;
    for (const TrialCase& trial : trials) {
      AttentionShape shape = testing::shape_for(trial.mask->mask, trial.heads.batch,
                                                trial.heads.heads_q, trial.heads.heads_kv);
      const auto plan = make_plan(trial.mask->mask, shape);
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

TEST(AttentionTrial, ManyItemsAreMoreThanThreeForEachWorker) {
  for (const TrialCase& trial : testing::many_work_tile_trials()) {
    std::int64_t work_tiles = 0;
    for (const std::int64_t q_len : trial.mask->mask.shape.q_lens)
      work_tiles += ceil_div(q_len, 128) * trial.heads.heads_q;
    EXPECT_GT(work_tiles, 3 * 132);
  }
}

// The harness sees what it looks for.
class AttentionTrialDefects : public ::testing::Test {
 protected:
  static MaskCase causal() {
    return testing::case_of(
        "causal", testing::make_cells(40, 50, [](auto q, auto k) { return k <= q && q != 7; }),
        {16, 16});
  }
  static TrialChoice small(Layout layout) {
    TrialChoice choice;
    choice.head_dim = 64;
    choice.layout = layout;
    choice.wants_out_low = true;
    return choice;
  }

  // What the check says after `change`.
  static std::string defect(void (*change)(AttentionTrial&)) {
    CpuMachine machine;
    const MaskCase mask = causal();
    AttentionTrial trial(machine, mask, {2, 2, 1}, small(Layout::padded));
    EXPECT_TRUE(trial.run());
    EXPECT_EQ(trial.check(), "");
    change(trial);
    return trial.check();
  }
};

TEST_F(AttentionTrialDefects, AreNoticed) {
  EXPECT_THAT(
      defect([](AttentionTrial& t) { t.out().set(1, 20, 1, 5, t.out().get(1, 20, 1, 5) + 0.05); }),
      HasSubstr("b 1, h 1, row 20"));
  EXPECT_THAT(defect([](AttentionTrial& t) { t.out().set(0, 39, 0, 63, std::nan("")); }),
              HasSubstr("b 0, h 0, row 39"));
  EXPECT_THAT(
      defect([](AttentionTrial& t) { t.lse().set(1, 0, 1, 0, t.lse().get(1, 0, 1) + 1e-3); }),
      HasSubstr("lse"));
  EXPECT_THAT(defect([](AttentionTrial& t) { t.out().set(0, 7, 1, 3, 1e-7); }),
              HasSubstr("no keys"));
  EXPECT_THAT(defect([](AttentionTrial& t) {
                t.out_low().set(1, 20, 1, 5, t.out().get(1, 20, 1, 5) / 100);
              }),
              HasSubstr("residual"));
  // One element after the last of a head lies in the gap.
  EXPECT_THAT(defect([](AttentionTrial& t) { t.out().set(0, 3, 0, 64, 1); }),
              HasSubstr("out: byte"));
  EXPECT_THAT(defect([](AttentionTrial& t) { t.lse().set(0, 3, 2, 0, 1); }),
              HasSubstr("lse: byte"));
  EXPECT_THAT(defect([](AttentionTrial& t) { t.out().set(0, 0, 0, -1, 1); }),
              HasSubstr("out: byte -2"));
  EXPECT_THAT(defect([](AttentionTrial& t) { t.k().set(0, 3, 0, 0, 9); }), HasSubstr("k: byte"));
}

TEST_F(AttentionTrialDefects, LayoutsGiveTheSameBytes) {
  CpuMachine machine;
  const MaskCase mask = causal();
  std::vector<unsigned char> bytes;
  for (const Layout layout : {Layout::rows, Layout::head_major, Layout::padded}) {
    AttentionTrial trial(machine, mask, {2, 2, 1}, small(layout));
    ASSERT_TRUE(trial.run());
    EXPECT_EQ(trial.check(), "");
    if (bytes.empty()) bytes = trial.result_bytes();
    EXPECT_EQ(trial.result_bytes(), bytes);
  }
}

}  // namespace
}  // namespace fdma
