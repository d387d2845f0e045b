// The check of gradients finds what is wrong with them, and nothing if nothing is.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "cli/progress.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "run/element_values.hpp"
#include "run/gradient_check.hpp"
#include "run/gradient_run.hpp"

namespace fdma::maskc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::size_t kKeyBias = 0;  // of kScoreTensors

// There are two batch elements and four heads on two. Rows 0 and 1 see no key, and no row sees keys
// from 140 on.
class GradientCheckTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    const auto expr = parse_mask("q >= 2 & k <= q & q - k < 60 & k < 140");
    ASSERT_TRUE(expr);
    MaskShape lengths;
    lengths.q_lens = lengths.kv_lens = {150};
    auto compiled = compile(*expr, Tables{}, lengths, LowerOptions{});
    ASSERT_TRUE(compiled);
    mask_ = *std::move(compiled);
    AttentionShape& shape = problem_.shape;
    shape.batch = 2;
    shape.heads_q = 4;
    shape.heads_kv = 2;
    shape.q_lens = shape.kv_lens = {150};
    shape.head_dim = 32;
    shape.head_dim_v = 24;
    shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = GetParam();
    problem_.score.parts.key_bias = true;
    problem_.score.specs[kKeyBias] = {DType::float32, 3, {2, 2, 150, 1}};
    auto memory = fill_memory(problem_, 2);
    ASSERT_TRUE(memory);
    memory_ = *std::move(memory);
    auto gradients = GradientMemory::fill(problem_, 2);
    ASSERT_TRUE(gradients);
    gradients_ = *std::move(gradients);
    const AttentionTensors forward = memory_.tensors(problem_);
    tensors_ = gradients_.tensors(problem_, forward);
    BackwardChoice backward;
    backward.is_backward = true;
    auto plans = CallPlans::make(mask_, problem_, {}, backward);
    ASSERT_TRUE(plans) << plans.error().message;
    plans_ = *std::move(plans);
    ASSERT_TRUE(attention_forward(*plans_.forward, forward));
    const auto done = attention_backward(plans_.timed(), tensors_);
    ASSERT_TRUE(done) << done.error().message;
  }

  GradientCheck check(std::int64_t max_rows = 0) {
    Progress progress("checking", "rows", true);
    AttentionOptions options;
    options.num_threads = 2;
    auto result = check_gradients(mask_, plans_.timed(), tensors_, options, max_rows, progress);
    EXPECT_TRUE(result);
    return *result;
  }

  float get(const MutableTensorView& tensor, std::int64_t b, std::int64_t row, std::int64_t h,
            std::int64_t d) {
    float value = 0;
    load_elements(tensor.data, tensor.dtype, place(tensor, b, row, h) + d, 1, &value);
    return value;
  }
  void set(const MutableTensorView& tensor, std::int64_t b, std::int64_t row, std::int64_t h,
           std::int64_t d, float value) {
    store_elements(&value, 1, tensor.data, tensor.dtype, place(tensor, b, row, h) + d);
  }

  BlockMask mask_;
  AttentionProblem problem_;
  AttentionMemory memory_;
  GradientMemory gradients_;
  BackwardTensors tensors_;
  CallPlans plans_;

 private:
  static std::int64_t place(const MutableTensorView& tensor, std::int64_t b, std::int64_t row,
                            std::int64_t h) {
    return b * tensor.strides[0] + row * tensor.strides[1] + h * tensor.strides[2];
  }
};

TEST_P(GradientCheckTest, AcceptsWhatIsRight) {
  const GradientCheck all = check();
  EXPECT_TRUE(all.is_right()) << complaint(all);
  EXPECT_EQ(all.num_rows, 2 * 4 * 150);
  EXPECT_EQ(all.total_rows, all.num_rows);
  EXPECT_EQ(all.num_keys, 2 * 2 * 150);
  EXPECT_EQ(all.total_keys, all.num_keys);
  EXPECT_THAT(all.compares, ElementsAre(true, false, false, false, false));
  for (const TensorError* error : {&all.dq, &all.dk, &all.dv, &all.score[kKeyBias]}) {
    EXPECT_GT(error->max_reference, 0.1);
    EXPECT_GT(error->yardstick, 0);
  }
  EXPECT_EQ(complaint(all), "");
  const GradientCheck some = check(100);
  EXPECT_TRUE(some.is_right());
  EXPECT_LE(some.num_rows, 100);
  EXPECT_LE(some.num_keys, 100);
}

TEST_P(GradientCheckTest, FindsAnErrorJustAboveTheBound) {
  const GradientCheck right = check();
  struct Place {
    const char* name;
    const MutableTensorView& tensor;
    const TensorError GradientCheck::*error;
    const char* said;
  };
  for (const Place& each : {Place{"dq", tensors_.dq, &GradientCheck::dq, "dq: max abs error"},
                            Place{"dk", tensors_.dk, &GradientCheck::dk, "dk: max abs error"},
                            Place{"dv", tensors_.dv, &GradientCheck::dv, "dv: max abs error"}}) {
    const float old = get(each.tensor, 1, 77, 1, 5);
    const auto bound = static_cast<float>((right.*each.error).bound());
    set(each.tensor, 1, 77, 1, 5, old + 2 * bound + 0.01f * std::fabs(old));
    const GradientCheck wrong = check();
    EXPECT_FALSE((wrong.*each.error).is_right()) << each.name;
    EXPECT_EQ((wrong.*each.error).place, (TensorRow{1, 1, 77})) << each.name;
    EXPECT_THAT(complaint(wrong), HasSubstr(each.said));
    set(each.tensor, 1, 77, 1, 5, old);
  }
  auto* bias = static_cast<float*>(tensors_.dkey_bias.data);
  bias[150 + 9] += static_cast<float>(right.score[kKeyBias].bound()) * 2.5f;
  const GradientCheck wrong = check();
  EXPECT_THAT(complaint(wrong), HasSubstr("dkey_bias: max abs error"));
  EXPECT_THAT(complaint(wrong), HasSubstr("at batch 0, head 1, key 9"));
}

TEST_P(GradientCheckTest, WhatMeetsNothingIsExactlyZero) {
  set(tensors_.dq, 0, 1, 2, 3, 1e-6f);
  set(tensors_.dk, 1, 145, 0, 31, -1e-6f);
  const GradientCheck wrong = check();
  EXPECT_EQ(wrong.dq.num_wrong, 1);
  EXPECT_EQ(wrong.dk.num_wrong, 1);
  EXPECT_EQ(wrong.dv.num_wrong, 0);
  set(tensors_.dv, 1, 60, 0, 0, std::numeric_limits<float>::quiet_NaN());
  EXPECT_EQ(check().dv.num_wrong, 1);
}

INSTANTIATE_TEST_SUITE_P(Types, GradientCheckTest,
                         ::testing::Values(DType::float32, DType::bfloat16, DType::float16));

}  // namespace
}  // namespace fdma::maskc
