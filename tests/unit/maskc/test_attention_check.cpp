// Results are made wrong in one place each, because a check that never fails proves nothing.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cli/progress.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "run/attention_check.hpp"
#include "run/attention_input.hpp"
#include "run/element_values.hpp"

namespace fdma::maskc {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

// There are two batch elements and four heads on two; rows 0 and 1 see no key.
class AttentionCheckTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    const auto expr = parse_mask("q >= 2 & k <= q & q - k < 60");
    ASSERT_TRUE(expr);
    MaskShape lengths;
    lengths.q_lens = lengths.kv_lens = {150};
    auto compiled = compile(*expr, Tables{}, lengths, LowerOptions{});
    ASSERT_TRUE(compiled);
    mask_ = *std::move(compiled);
    problem_.shape.batch = 2;
    problem_.shape.heads_q = 4;
    problem_.shape.heads_kv = 2;
    problem_.shape.q_lens = problem_.shape.kv_lens = {150};
    problem_.shape.head_dim = 32;
    problem_.shape.head_dim_v = 24;
    problem_.shape.q_dtype = problem_.shape.k_dtype = problem_.shape.v_dtype =
        problem_.shape.out_dtype = GetParam();
    auto memory = fill_memory(problem_, 2);
    ASSERT_TRUE(memory);
    memory_ = *std::move(memory);
    tensors_ = memory_.tensors(problem_);
    auto plan = make_plan(mask_, problem_.shape, problem_.score.parts);
    ASSERT_TRUE(plan) << plan.error().message;
    plan_ = *std::move(plan);
    const auto done = attention_forward(plan_, tensors_);
    ASSERT_TRUE(done) << done.error().message;
  }

  AttentionCheck check(std::int64_t max_rows = 0) {
    Progress progress("checking", "rows", true);
    AttentionOptions options;
    options.num_threads = 2;
    auto result = check_attention(mask_, plan_, tensors_, options, max_rows, progress);
    EXPECT_TRUE(result);
    return *result;
  }

  void set_out(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t d, float value) {
    const MutableTensorView& out = tensors_.out;
    store_elements(&value, 1, out.data, out.dtype,
                   b * out.strides[0] + q * out.strides[1] + h * out.strides[2] + d);
  }
  float get_out(std::int64_t b, std::int64_t h, std::int64_t q, std::int64_t d) {
    const MutableTensorView& out = tensors_.out;
    float value = 0;
    load_elements(out.data, out.dtype,
                  b * out.strides[0] + q * out.strides[1] + h * out.strides[2] + d, 1, &value);
    return value;
  }
  float& lse(std::int64_t b, std::int64_t h, std::int64_t q) {
    return static_cast<float*>(tensors_.lse.data)[(b * 4 + h) * 150 + q];
  }

  BlockMask mask_;
  AttentionProblem problem_;
  AttentionMemory memory_;
  AttentionTensors tensors_;
  AttentionPlan plan_;
};

TEST_P(AttentionCheckTest, AcceptsWhatIsRight) {
  const AttentionCheck all = check();
  EXPECT_TRUE(all.is_right()) << complaint(all);
  EXPECT_EQ(all.num_rows, 2 * 4 * 150);
  EXPECT_EQ(all.total_rows, all.num_rows);
  EXPECT_GT(all.out.max_reference, 0.5);
  EXPECT_EQ(complaint(all), "");
  const AttentionCheck some = check(100);
  EXPECT_TRUE(some.is_right());
  EXPECT_LE(some.num_rows, 100);
  EXPECT_GE(some.num_rows, 64);  // equal choices count once
  EXPECT_EQ(some.total_rows, all.total_rows);
}

TEST_P(AttentionCheckTest, FindsAnErrorJustAboveTheBound) {
  const AttentionCheck right = check();
  // Each of 1200 rows has 24 elements, and one is wrong.
  const float old = get_out(1, 2, 77, 5);
  const auto off = static_cast<float>(right.out.bound() * 2 + 0.01 * std::fabs(old));
  set_out(1, 2, 77, 5, old + off);
  const AttentionCheck wrong = check();
  EXPECT_FALSE(wrong.out.is_right());
  EXPECT_TRUE(wrong.lse.is_right());
  EXPECT_EQ(wrong.out.place.batch, 1);
  EXPECT_EQ(wrong.out.place.head, 2);
  EXPECT_EQ(wrong.out.place.row, 77);
  EXPECT_THAT(complaint(wrong), HasSubstr("at batch 1, head 2, row 77"));
  set_out(1, 2, 77, 5, old);
  lse(0, 3, 149) += static_cast<float>(right.lse.bound()) * 1.5f;
  EXPECT_FALSE(check().lse.is_right());
}

TEST_P(AttentionCheckTest, RowsWithoutKeysAreExact) {
  EXPECT_EQ(lse(0, 0, 1), -kInfinity);
  lse(0, 0, 1) = -1e30f;
  EXPECT_EQ(check().lse.num_wrong, 1);
  lse(0, 0, 1) = -kInfinity;
  set_out(1, 3, 0, 23, 1e-4f);
  const AttentionCheck wrong = check();
  EXPECT_EQ(wrong.out.num_wrong, 1);
  EXPECT_FALSE(wrong.is_right());
  EXPECT_THAT(complaint(wrong), HasSubstr("out: 1 element not as"));
}

TEST_P(AttentionCheckTest, NanIsWrongWhereTheReferenceHasANumber) {
  set_out(0, 1, 9, 0, kNan);
  lse(1, 1, 10) = kNan;
  lse(1, 1, 11) = kInfinity;
  const AttentionCheck wrong = check();
  EXPECT_EQ(wrong.out.num_wrong, 1);
  EXPECT_EQ(wrong.lse.num_wrong, 2);
  EXPECT_EQ(wrong.lse.place.row, 10);
}

TEST_P(AttentionCheckTest, ANumberIsWrongWhereTheReferenceHasNan) {
  const std::int64_t position = 0 * 150 * 4 * 32 + 50 * 4 * 32 + 3 * 32 + 7;  // b 0, q 50, h 3
  store_elements(&kNan, 1, memory_.q.data(), GetParam(), position);
  const AttentionCheck wrong = check();
  EXPECT_EQ(wrong.out.num_wrong, 24);
  EXPECT_EQ(wrong.lse.num_wrong, 1);
  EXPECT_EQ(wrong.out.place.head, 3);
  EXPECT_EQ(wrong.out.place.row, 50);
}

TEST_P(AttentionCheckTest, AKeyTooManyIsFound) {
  // The result is as if row 100 of every head had the window of row 101.
  for (std::int64_t b = 0; b < 2; ++b) {
    for (std::int64_t h = 0; h < 4; ++h) {
      for (std::int64_t d = 0; d < 24; ++d) set_out(b, h, 100, d, get_out(b, h, 101, d));
    }
  }
  EXPECT_FALSE(check().out.is_right());
}

INSTANTIATE_TEST_SUITE_P(Types, AttentionCheckTest,
                         ::testing::Values(DType::float32, DType::float16, DType::bfloat16),
                         [](const auto& tested) { return std::string(to_string(tested.param)); });

}  // namespace
}  // namespace fdma::maskc
