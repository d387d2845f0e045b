// The checks know every part of a score: results of a call with all of them are right, and wrong by the
// definition that lacks or changes one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/progress.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "run/attention_check.hpp"
#include "run/gradient_check.hpp"
#include "run/gradient_run.hpp"
#include "run/score_definition.hpp"

namespace fdma::maskc {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr std::int64_t kLen = 90;

// There are two batch elements and four heads on two.
class ScoreCheckTest : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    const auto expr = parse_mask("k <= q & q - k < 60");
    ASSERT_TRUE(expr);
    MaskShape lengths;
    lengths.q_lens = lengths.kv_lens = {kLen};
    auto compiled = compile(*expr, Tables{}, lengths, LowerOptions{});
    ASSERT_TRUE(compiled);
    mask_ = *std::move(compiled);
    AttentionShape& shape = problem_.shape;
    shape.batch = 2;
    shape.heads_q = 4;
    shape.heads_kv = 2;
    shape.q_lens = shape.kv_lens = {kLen};
    shape.head_dim = shape.head_dim_v = 16;
    shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = GetParam();
    ProblemScore& score = problem_.score;
    score.parts = {true, true, true, true, true, true, true};
    score.softcap = 2;
    score.relative_left = 20;
    score.dropout.rate = 0.2;
    score.dropout.seed = 5;
    score.specs = {{{DType::float32, 3, {2, 2, kLen, 1}},
                    {GetParam(), 4, {1, 2, kLen, kLen}},
                    {DType::float32, 1, {4, 1, 1, 1}},
                    {DType::float32, 2, {1, 41, 1, 1}},
                    {GetParam(), 3, {2, 4, kLen, 1}}}};
    auto memory = fill_memory(problem_, 2);
    ASSERT_TRUE(memory);
    memory_ = *std::move(memory);
    auto gradients = GradientMemory::fill(problem_, 2);
    ASSERT_TRUE(gradients);
    gradients_ = *std::move(gradients);
    forward_ = memory_.tensors(problem_);
    backward_ = gradients_.tensors(problem_, forward_);
    auto plans = CallPlans::make(mask_, problem_, {}, {true, false});
    ASSERT_TRUE(plans) << plans.error().message;
    plans_ = *std::move(plans);
    options_.num_threads = 2;
    score.set_numbers(options_);
    ASSERT_TRUE(attention_forward(*plans_.forward, forward_, options_));
    BackwardOptions backward;
    score.set_numbers(backward);
    const auto done = attention_backward(plans_.timed(), backward_, backward);
    ASSERT_TRUE(done) << done.error().message;
  }

  AttentionCheck check(const AttentionTensors& tensors, const AttentionOptions& options) {
    Progress progress("checking", "rows", true);
    auto result = check_attention(mask_, *plans_.forward, tensors, options, 0, progress);
    EXPECT_TRUE(result);
    return *result;
  }
  GradientCheck check(const BackwardTensors& tensors, const AttentionOptions& options) {
    Progress progress("checking", "rows", true);
    auto result = check_gradients(mask_, plans_.timed(), tensors, options, 0, progress);
    EXPECT_TRUE(result);
    return *result;
  }

  BlockMask mask_;
  AttentionProblem problem_;
  AttentionMemory memory_;
  GradientMemory gradients_;
  AttentionTensors forward_;
  BackwardTensors backward_;
  CallPlans plans_;
  AttentionOptions options_;
};

TEST_P(ScoreCheckTest, AcceptsWhatIsRight) {
  const AttentionCheck results = check(forward_, options_);
  EXPECT_TRUE(results.is_right()) << complaint(results);
  const GradientCheck gradients = check(backward_, options_);
  EXPECT_TRUE(gradients.is_right()) << complaint(gradients);
  EXPECT_THAT(gradients.compares, ElementsAre(true, true, false, true, true));
}

TEST_P(ScoreCheckTest, FindsTensorsThatWereNotApplied) {
  for (const ScoreTensor& tensor : kScoreTensors) {
    AttentionTensors forward = forward_;
    forward.*tensor.view = {};
    EXPECT_FALSE(check(forward, options_).is_right()) << tensor.name;
    BackwardTensors backward = backward_;
    backward.*tensor.backward_view = {};
    if (tensor.gradient != nullptr) backward.*tensor.gradient_view = {};
    EXPECT_FALSE(check(backward, options_).is_right()) << tensor.name;
  }
}

TEST_P(ScoreCheckTest, FindsOtherNumbers) {
  AttentionOptions cap = options_, left = options_, seed = options_, offset = options_,
                   rate = options_;
  cap.softcap = 4;
  left.relative_left = 19;
  seed.dropout.seed = 6;
  offset.dropout.offset = std::uint64_t{1} << 32;
  rate.dropout.rate = 0.25;
  for (const AttentionOptions* wrong : {&cap, &left, &seed, &offset, &rate}) {
    EXPECT_FALSE(check(forward_, *wrong).out.is_right());
    EXPECT_FALSE(check(backward_, *wrong).is_right());
  }
}

TEST_P(ScoreCheckTest, FindsAWrongGradientOfEachTensor) {
  const GradientCheck right = check(backward_, options_);
  for (std::size_t i = 0; i < kScoreTensors.size(); ++i) {
    const ScoreTensor& tensor = kScoreTensors[i];
    if (tensor.gradient == nullptr) continue;
    const MutableTensorView& gradient = backward_.*tensor.gradient_view;
    if (gradient.dtype != DType::float32) continue;
    float& element = static_cast<float*>(gradient.data)[7];
    const float old = element;
    element += 2.5f * static_cast<float>(right.score[i].bound());
    EXPECT_THAT(complaint(check(backward_, options_)),
                HasSubstr(std::string(tensor.gradient) + ": "));
    element = old;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, ScoreCheckTest, ::testing::Values(DType::float32, DType::bfloat16));

// Known answers: Random123's vector for 7 rounds, all zeros and all ones.
TEST(Philox7, HasTheKnownAnswers) {
  EXPECT_THAT(philox7({0, 0, 0, 0}, {0, 0}),
              ElementsAre(0x5f6fb709u, 0x0d893f64u, 0x4f121f81u, 0x4f730a48u));
  EXPECT_THAT(philox7({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
              ElementsAre(0x5207ddc2u, 0x45165e59u, 0x4d8ee751u, 0x8c52f662u));
}

TEST(AlibiSlopes, AreAGeometricSequence) {
  EXPECT_THAT(alibi_slopes(1), ElementsAre(1.0f / 256));
  EXPECT_THAT(alibi_slopes(8), ElementsAre(0.5f, 0.25f, 0.125f, 0.0625f, 0.03125f, 0.015625f,
                                           0.0078125f, 0.00390625f));
  EXPECT_THAT(alibi_slopes(3), ElementsAre(0.0625f, 0.00390625f, 0.25f));
}

}  // namespace
}  // namespace fdma::maskc
