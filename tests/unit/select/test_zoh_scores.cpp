// Compares ZOH scores with their formula in float64, within the error bound that the header states.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "fdma/select/zoh_scores.hpp"
#include "zoh_tensor.hpp"

namespace fdma {
namespace {

using select_test::make_tensor;
using select_test::Tensor;
using ::testing::HasSubstr;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

struct Expected {
  double score;
  double tolerance;
};

// Returns the formula of the header in float64, and its bound.
Expected expected_score(const Tensor& values, const Tensor& dt_proj, const Tensor& a_coef,
                        std::int64_t b, std::int64_t h, std::int64_t k, ZohMode mode) {
  const std::int64_t kv_len = values.extents[1], heads = values.extents[2], dim = values.extents[3];
  const bool is_per_head = dt_proj.extents[1] == dim;
  const std::int64_t terms = dt_proj.extents[1];
  const double* row =
      values.exact.data() + ((b * kv_len + k) * heads + (is_per_head ? h : 0)) * dim;
  const double* weights = dt_proj.exact.data() + h * terms;
  double dt = 0, magnitude = 0;
  for (std::int64_t i = 0; i < terms; ++i) {
    dt += row[i] * weights[i];
    magnitude += std::abs(row[i] * weights[i]);
  }
  const double a = a_coef.exact[static_cast<std::size_t>(h)];
  const double softplus = std::max(dt, 0.0) + std::log1p(std::exp(-std::abs(dt)));
  const double u = 0x1p-24;
  const double dt_error = (static_cast<double>(terms) / 4 + 8) * u * magnitude;
  const double log = a * softplus;
  const double log_error = std::abs(a) * dt_error + 8 * u * std::abs(log);
  if (mode == ZohMode::log) return {log, log_error + 1e-45};
  const double score = std::exp(log);
  return {score, score * (std::expm1(log_error) + 8 * u) + 2e-45};
}

std::vector<float> run(const Tensor& values, const Tensor& dt_proj, const Tensor& a_coef,
                       ZohMode mode, int num_threads = 0) {
  const std::vector<std::int64_t> extents{values.extents[0], values.extents[2], values.extents[1]};
  std::vector<float> scores(static_cast<std::size_t>(extents[0] * extents[1] * extents[2]), -7.0F);
  const Result<void> result =
      zoh_scores(values.view(), dt_proj.view(), a_coef.view(),
                 make_contiguous_mutable_view(scores.data(), DType::float32, 3, extents.data()),
                 {mode, num_threads});
  EXPECT_TRUE(result) << result.error().message;
  return scores;
}

struct Case {
  std::int64_t batch, kv_len, heads, dim;
};

void check_case(const Case& c, DType dtype, DType weight_dtype, bool is_wide, ZohMode mode,
                std::mt19937& random) {
  const Tensor values = make_tensor(dtype, {c.batch, c.kv_len, c.heads, c.dim}, random);
  const Tensor dt_proj =
      make_tensor(weight_dtype, {c.heads, is_wide ? c.heads * c.dim : c.dim}, random, 0.3);
  const Tensor a_coef = make_tensor(weight_dtype, {c.heads}, random, 1.5);
  const std::vector<float> scores = run(values, dt_proj, a_coef, mode);
  for (std::int64_t b = 0, at = 0; b < c.batch; ++b) {
    for (std::int64_t h = 0; h < c.heads; ++h) {
      for (std::int64_t k = 0; k < c.kv_len; ++k, ++at) {
        const Expected expected = expected_score(values, dt_proj, a_coef, b, h, k, mode);
        const float score = scores[static_cast<std::size_t>(at)];
        if (expected.score > std::numeric_limits<float>::max()) {
          ASSERT_EQ(score, kInfinity);
        } else {
          ASSERT_NEAR(score, expected.score, expected.tolerance)
              << to_string(dtype) << " b " << b << " h " << h << " k " << k << " dim " << c.dim
              << (is_wide ? " wide " : " per head ") << to_string(mode);
        }
      }
    }
  }
}

TEST(ZohScores, AreTheFormulaWithinItsBound) {
  std::mt19937 random(1);
  for (const Case& c : std::vector<Case>{{1, 1, 1, 1},
                                         {2, 65, 3, 7},
                                         {1, 130, 2, 128},
                                         {3, 64, 5, 33},
                                         {1, 63, 8, 64},
                                         {1, 7, 32, 16},
                                         {2, 129, 4, 256}}) {
    for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
      for (const bool is_wide : {false, true}) {
        for (const ZohMode mode : {ZohMode::exp, ZohMode::log}) {
          check_case(c, dtype, is_wide ? dtype : DType::float32, is_wide, mode, random);
        }
      }
    }
  }
}

TEST(ZohScores, EveryInstructionSetOfThisMachine) {
  std::mt19937 random(2);
  for (std::int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest);
    for (const DType dtype : {DType::float32, DType::float16, DType::bfloat16}) {
      check_case({1, 70, 3, 37}, dtype, DType::float32, false, ZohMode::exp, random);
      check_case({1, 70, 3, 37}, dtype, dtype, true, ZohMode::log, random);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

TEST(ZohScores, TheSameBitsForAnyNumberOfThreads) {
  std::mt19937 random(3);
  const Tensor values = make_tensor(DType::bfloat16, {2, 700, 4, 48}, random);
  const Tensor a_coef = make_tensor(DType::float32, {4}, random);
  for (const std::int64_t width : {48, 192}) {
    const Tensor dt_proj = make_tensor(DType::float32, {4, width}, random, 0.2);
    const std::vector<float> one = run(values, dt_proj, a_coef, ZohMode::exp, 1);
    for (const int num_threads : {2, 3, 8}) {
      EXPECT_EQ(run(values, dt_proj, a_coef, ZohMode::exp, num_threads), one) << num_threads;
    }
  }
}

TEST(ZohScores, ExampleOfTheHeader) {
  const std::vector<float> zeros(4, 0.0F), minus_one{-1};
  const std::int64_t values_extents[] = {1, 1, 1, 4}, proj_extents[] = {1, 4}, one[] = {1},
                     out_extents[] = {1, 1, 1};
  float score = 0;
  const TensorView values = make_contiguous_view(zeros.data(), DType::float32, 4, values_extents);
  const TensorView dt_proj = make_contiguous_view(zeros.data(), DType::float32, 2, proj_extents);
  const TensorView a_coef = make_contiguous_view(minus_one.data(), DType::float32, 1, one);
  const MutableTensorView out =
      make_contiguous_mutable_view(&score, DType::float32, 3, out_extents);
  ASSERT_TRUE(zoh_scores(values, dt_proj, a_coef, out));
  EXPECT_FLOAT_EQ(score, 0.5F);
  ASSERT_TRUE(zoh_scores(values, dt_proj, a_coef, out, {ZohMode::log}));
  EXPECT_FLOAT_EQ(score, -0.693147181F);
}

// One number as the only term of dt.
float score_of_number(float dt, float a, ZohMode mode) {
  const std::int64_t values_extents[] = {1, 1, 1, 1}, proj_extents[] = {1, 1}, one[] = {1},
                     out_extents[] = {1, 1, 1};
  const float weight = 1;
  float score = 0;
  const Result<void> result =
      zoh_scores(make_contiguous_view(&dt, DType::float32, 4, values_extents),
                 make_contiguous_view(&weight, DType::float32, 2, proj_extents),
                 make_contiguous_view(&a, DType::float32, 1, one),
                 make_contiguous_mutable_view(&score, DType::float32, 3, out_extents), {mode});
  EXPECT_TRUE(result);
  return score;
}

TEST(ZohScores, SoftplusIsStable) {
  for (const float dt :
       {-200.0F, -104.0F, -88.0F, -20.0F, -1e-3F, 0.0F, 1e-3F, 20.0F, 88.0F, 200.0F, 1e30F}) {
    const double softplus = std::max(double{dt}, 0.0) + std::log1p(std::exp(-std::abs(double{dt})));
    EXPECT_NEAR(score_of_number(dt, 1, ZohMode::log), softplus, softplus * 4e-7 + 1e-45) << dt;
    const double exp = std::exp(-softplus);
    EXPECT_NEAR(score_of_number(dt, -1, ZohMode::exp), exp, exp * (4e-7 + softplus * 6e-7) + 2e-45)
        << dt;
  }
}

TEST(ZohScores, ScoresThatVanishOverflowOrAreNot) {
  EXPECT_EQ(score_of_number(1000, -1, ZohMode::exp), 0);
  EXPECT_EQ(score_of_number(1000, 1, ZohMode::exp), kInfinity);
  EXPECT_EQ(score_of_number(90, 1, ZohMode::exp), kInfinity);
  EXPECT_GT(score_of_number(95, -1, ZohMode::exp), 0);  // subnormal
  EXPECT_EQ(score_of_number(1000, -1, ZohMode::log), -1000);
  EXPECT_EQ(score_of_number(kInfinity, -1, ZohMode::exp), 0);
  EXPECT_EQ(score_of_number(-kInfinity, -1, ZohMode::exp), 1);
  EXPECT_EQ(score_of_number(3, 0, ZohMode::exp), 1);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const ZohMode mode : {ZohMode::exp, ZohMode::log}) {
    EXPECT_TRUE(std::isnan(score_of_number(nan, -1, mode)));
    EXPECT_TRUE(std::isnan(score_of_number(1, nan, mode)));
    EXPECT_TRUE(std::isnan(score_of_number(kInfinity, 0, mode)));
  }
}

TEST(ZohScores, AnyStridesButTheLast) {
  std::mt19937 random(5);
  const Tensor values = make_tensor(DType::float32, {2, 70, 3, 20}, random);
  const Tensor a_coef = make_tensor(DType::float32, {3}, random);
  for (const std::int64_t width : {20, 60}) {
    const Tensor dt_proj = make_tensor(DType::float32, {3, width}, random);
    const std::vector<float> expected = run(values, dt_proj, a_coef, ZohMode::exp);
    // values [batch, heads, kv_len, head_dim + 5]; dt_proj transposed; scores [kv_len, batch,
    // heads].
    std::vector<float> moved(2 * 3 * 70 * 25, 99.0F), transposed(dt_proj.floats.size()),
        out(expected.size());
    TensorView values_view = values.view(), dt_proj_view = dt_proj.view();
    values_view.strides = {3 * 70 * 25, 25, 70 * 25, 1};
    for (std::int64_t b = 0, at = 0; b < 2; ++b) {
      for (std::int64_t k = 0; k < 70; ++k) {
        for (std::int64_t h = 0; h < 3; ++h) {
          for (std::int64_t d = 0; d < 20; ++d, ++at) {
            moved[static_cast<std::size_t>(((b * 3 + h) * 70 + k) * 25 + d)] =
                values.floats[static_cast<std::size_t>(at)];
          }
        }
      }
    }
    values_view.data = moved.data();
    for (std::int64_t h = 0; h < 3; ++h) {
      for (std::int64_t i = 0; i < width; ++i) {
        transposed[static_cast<std::size_t>(i * 3 + h)] =
            dt_proj.floats[static_cast<std::size_t>(h * width + i)];
      }
    }
    dt_proj_view.data = transposed.data();
    dt_proj_view.strides = {1, 3, 0, 0};
    const std::int64_t extents[] = {2, 3, 70};
    MutableTensorView out_view =
        make_contiguous_mutable_view(out.data(), DType::float32, 3, extents);
    out_view.strides = {3, 1, 6, 0};
    ASSERT_TRUE(zoh_scores(values_view, dt_proj_view, a_coef.view(), out_view));
    for (std::int64_t b = 0, at = 0; b < 2; ++b) {
      for (std::int64_t h = 0; h < 3; ++h) {
        for (std::int64_t k = 0; k < 70; ++k, ++at) {
          EXPECT_EQ(out[static_cast<std::size_t>(k * 6 + b * 3 + h)],
                    expected[static_cast<std::size_t>(at)]);
        }
      }
    }
  }
}

TEST(ZohScores, OneHeadMakesBothShapesTheSame) {
  std::mt19937 random(6);
  const Tensor values = make_tensor(DType::float32, {1, 9, 1, 24}, random);
  const Tensor dt_proj = make_tensor(DType::float32, {1, 24}, random);
  const Tensor a_coef = make_tensor(DType::float32, {1}, random);
  const auto shape = zoh_shape(values.view(), dt_proj.view(), a_coef.view());
  ASSERT_TRUE(shape);
  EXPECT_TRUE(shape->is_per_head);
}

TEST(ZohScores, NoKeysWriteNothing) {
  std::mt19937 random(7);
  EXPECT_TRUE(run(make_tensor(DType::float32, {2, 0, 2, 8}, random),
                  make_tensor(DType::float32, {2, 8}, random),
                  make_tensor(DType::float32, {2}, random), ZohMode::exp)
                  .empty());
}

TEST(ZohScores, RejectsTensorsThatDoNotFit) {
  std::mt19937 random(8);
  const Tensor values = make_tensor(DType::float32, {1, 5, 2, 8}, random);
  const Tensor dt_proj = make_tensor(DType::float32, {2, 16}, random);
  const Tensor a_coef = make_tensor(DType::float32, {2}, random);
  std::vector<float> out(10);
  const std::int64_t extents[] = {1, 2, 5};
  const MutableTensorView good =
      make_contiguous_mutable_view(out.data(), DType::float32, 3, extents);
  const auto fails = [&](const TensorView& v, const TensorView& d, const TensorView& a,
                         const MutableTensorView& s, ErrorCode code, const std::string& text,
                         ZohOptions options = {}) {
    const Result<void> result = zoh_scores(v, d, a, s, options);
    ASSERT_FALSE(result) << text;
    EXPECT_EQ(result.error().code, code) << result.error().message;
    EXPECT_THAT(result.error().message, HasSubstr(text));
  };
  ASSERT_TRUE(zoh_scores(values.view(), dt_proj.view(), a_coef.view(), good));
  TensorView wrong = values.view();
  wrong.rank = 3;
  fails(wrong, dt_proj.view(), a_coef.view(), good, ErrorCode::shape_mismatch, "values: expected");
  wrong = values.view();
  wrong.dtype = DType::float64;
  fails(wrong, dt_proj.view(), a_coef.view(), good, ErrorCode::unsupported, "got float64");
  wrong = values.view();
  wrong.data = nullptr;
  fails(wrong, dt_proj.view(), a_coef.view(), good, ErrorCode::invalid_argument, "data is null");
  wrong = values.view();
  wrong.data = reinterpret_cast<const char*>(values.floats.data()) + 1;
  fails(wrong, dt_proj.view(), a_coef.view(), good, ErrorCode::invalid_argument, "not aligned");
  wrong = values.view();
  wrong.strides[3] = 2;
  fails(wrong, dt_proj.view(), a_coef.view(), good, ErrorCode::invalid_argument, "last stride");
  wrong = values.view();
  wrong.device = Device::cuda;
  fails(wrong, dt_proj.view(), a_coef.view(), good, ErrorCode::unsupported, "device");
  wrong = dt_proj.view();
  wrong.extents[1] = 15;
  fails(values.view(), wrong, a_coef.view(), good, ErrorCode::shape_mismatch,
        "[2, 16] or [heads_kv, head_dim] = [2, 8], got [2, 15]");
  wrong = a_coef.view();
  wrong.extents[0] = 3;
  fails(values.view(), dt_proj.view(), wrong, good, ErrorCode::shape_mismatch, "a_coef: expected");
  MutableTensorView out_wrong = good;
  out_wrong.extents[2] = 4;
  fails(values.view(), dt_proj.view(), a_coef.view(), out_wrong, ErrorCode::shape_mismatch,
        "scores: expected [batch, heads_kv, kv_len] = [1, 2, 5], got [1, 2, 4]");
  out_wrong = good;
  out_wrong.dtype = DType::float16;
  fails(values.view(), dt_proj.view(), a_coef.view(), out_wrong, ErrorCode::unsupported, "float32");
  fails(values.view(), dt_proj.view(), a_coef.view(), good, ErrorCode::invalid_argument,
        "num_threads", {ZohMode::exp, -1});
}

TEST(ZohScores, ModesHaveNames) {
  EXPECT_EQ(parse_zoh_mode("exp"), ZohMode::exp);
  EXPECT_EQ(parse_zoh_mode("log"), ZohMode::log);
  EXPECT_EQ(parse_zoh_mode("tanh"), std::nullopt);
}

}  // namespace
}  // namespace fdma
