// Compares the gradients of ZOH scores with float64, within the error bound that the header states.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "fdma/select/zoh_backward.hpp"
#include "zoh_backward_case.hpp"

namespace fdma {
namespace {

using select_test::Bounded;
using select_test::expect_near;
using select_test::Gradient;
using select_test::Inputs;
using select_test::make_tensor;
using select_test::Outputs;
using select_test::rounding_error;
using select_test::Tensor;
using select_test::widened;
using select_test::ZohProblem;
using ::testing::HasSubstr;
constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

void check_case(const ZohShape& shape, DType dtype, DType weight_dtype, ZohMode mode,
                bool in_float32, std::mt19937& random) {
  SCOPED_TRACE(::testing::Message()
               << shape.num_batches << " " << shape.kv_len << " " << shape.num_heads_kv << " "
               << shape.head_dim << " " << shape.is_per_head << " " << to_string(dtype) << " "
               << to_string(mode));
  const Inputs inputs(shape, dtype, weight_dtype, random);
  Outputs outputs(inputs, in_float32);
  const Result<void> result = outputs.run(inputs.tensors(), {mode});
  ASSERT_TRUE(result) << result.error().message;
  const auto expected = zoh_gradients(inputs.problem(mode));
  expect_near(outputs.dvalues, expected.dvalues, "dvalues");
  expect_near(outputs.ddt_proj, expected.ddt_proj, "ddt_proj");
  expect_near(outputs.da_coef, expected.da_coef, "da_coef");
}

constexpr DType kDTypes[] = {DType::float32, DType::float16, DType::bfloat16};

TEST(ZohBackward, AreTheDerivativesWithinTheirBound) {
  std::mt19937 random(1);
  for (const auto& [batch, kv_len, heads, dim] :
       std::vector<std::array<std::int64_t, 4>>{{1, 1, 1, 1},
                                                {2, 65, 3, 7},
                                                {1, 130, 2, 128},
                                                {3, 64, 5, 33},
                                                {1, 7, 32, 16},
                                                {2, 129, 4, 256},
                                                {1, 5000, 2, 8}}) {
    for (const DType dtype : kDTypes) {
      for (const bool is_wide : {false, true}) {
        for (const ZohMode mode : {ZohMode::exp, ZohMode::log}) {
          check_case({batch, kv_len, heads, dim, !is_wide || heads == 1}, dtype,
                     is_wide ? dtype : DType::float32, mode, is_wide, random);
          if (HasFatalFailure()) return;
        }
      }
    }
  }
}

TEST(ZohBackward, EveryInstructionSetOfThisMachine) {
  std::mt19937 random(2);
  for (std::int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
    hwy::SetSupportedTargetsForTest(rest);
    for (const DType dtype : kDTypes) {
      check_case({1, 70, 3, 37, true}, dtype, dtype, ZohMode::exp, false, random);
      check_case({1, 70, 3, 37, false}, dtype, dtype, ZohMode::log, false, random);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
}

// The oracle itself is compared with differences of the loss in float64.
TEST(ZohBackward, OracleIsTheFiniteDifference) {
  std::mt19937 random(3);
  for (const bool is_per_head : {true, false}) {
    for (const ZohMode mode : {ZohMode::exp, ZohMode::log}) {
      const Inputs inputs({2, 5, 3, 4, is_per_head}, DType::float32, DType::float32, random);
      ZohProblem problem = inputs.problem(mode);
      const auto gradients = zoh_gradients(problem);
      const auto check = [&](std::vector<double>& input, const Bounded& gradient) {
        for (std::size_t i = 0; i < input.size(); ++i) {
          const double at = input[i], step = 1e-5;
          input[i] = at + step;
          const double above = zoh_loss(problem);
          input[i] = at - step;
          const double below = zoh_loss(problem);
          input[i] = at;
          EXPECT_NEAR(gradient.exact[i], (above - below) / (2 * step), 1e-8) << i;
        }
      };
      check(problem.values, gradients.dvalues);
      check(problem.dt_proj, gradients.ddt_proj);
      check(problem.a_coef, gradients.da_coef);
    }
  }
}

TEST(ZohBackward, TheSameBitsForAnyNumberOfThreads) {
  std::mt19937 random(4);
  for (const bool is_per_head : {true, false}) {
    const Inputs inputs({2, 7000, 4, 16, is_per_head}, DType::bfloat16, DType::float32, random);
    Outputs one(inputs);
    ASSERT_TRUE(one.run(inputs.tensors(), {ZohMode::exp, 1}));
    for (const int num_threads : {2, 3, 8}) {
      Outputs many(inputs);
      ASSERT_TRUE(many.run(inputs.tensors(), {ZohMode::exp, num_threads}));
      EXPECT_EQ(many.dvalues.bytes, one.dvalues.bytes) << num_threads;
      EXPECT_EQ(many.ddt_proj.bytes, one.ddt_proj.bytes) << num_threads;
      EXPECT_EQ(many.da_coef.bytes, one.da_coef.bytes) << num_threads;
    }
  }
}

TEST(ZohBackward, ExampleOfTheHeader) {
  std::mt19937 random(5);
  for (const ZohMode mode : {ZohMode::exp, ZohMode::log}) {
    Inputs inputs({1, 1, 1, 1, true}, DType::float32, DType::float32, random, 1);
    inputs.values.floats = {0};
    inputs.dt_proj.floats = {1};
    inputs.a_coef.floats = {-1};
    inputs.dscores.floats = {1};
    Outputs outputs(inputs);
    ASSERT_TRUE(outputs.run(inputs.tensors(), {mode}));
    const float scale = mode == ZohMode::log ? 1.0F : 0.5F;
    EXPECT_FLOAT_EQ(outputs.dvalues[0], -0.5F * scale);
    EXPECT_EQ(outputs.ddt_proj[0], 0);
    EXPECT_FLOAT_EQ(outputs.da_coef[0], 0.693147181F * scale);
  }
}

// Each gradient alone is what it is beside the others, and a gradient that is not wanted is not
// written.
TEST(ZohBackward, GradientsThatAreNotWanted) {
  std::mt19937 random(6);
  for (const bool is_per_head : {true, false}) {
    const Inputs inputs({1, 90, 2, 20, is_per_head}, DType::float16, DType::float16, random);
    Outputs all(inputs);
    ASSERT_TRUE(all.run(inputs.tensors()));
    for (int wanted = 0; wanted < 8; ++wanted) {
      Outputs some(inputs);
      ZohBackwardTensors tensors = inputs.tensors();
      if ((wanted & 1) != 0) tensors.dvalues = some.dvalues.view();
      if ((wanted & 2) != 0) tensors.ddt_proj = some.ddt_proj.view();
      if ((wanted & 4) != 0) tensors.da_coef = some.da_coef.view();
      ASSERT_TRUE(zoh_scores_backward(tensors));
      const Outputs none(inputs);
      EXPECT_EQ(some.dvalues.bytes, ((wanted & 1) != 0 ? all : none).dvalues.bytes);
      EXPECT_EQ(some.ddt_proj.bytes, ((wanted & 2) != 0 ? all : none).ddt_proj.bytes);
      EXPECT_EQ(some.da_coef.bytes, ((wanted & 4) != 0 ? all : none).da_coef.bytes);
    }
  }
}

TEST(ZohBackward, AddsToAnotherGradientOfValues) {
  std::mt19937 random(7);
  for (const DType dtype : kDTypes) {
    for (const DType other_dtype : {DType::float32, dtype}) {
      for (const bool is_per_head : {true, false}) {
        const Inputs inputs({2, 70, 3, 20, is_per_head}, dtype, dtype, random, 0.1);
        const Tensor other = make_tensor(other_dtype, inputs.values.extents, random);
        auto expected = zoh_gradients(inputs.problem(ZohMode::exp));
        for (std::size_t i = 0; i < other.exact.size(); ++i) {
          expected.dvalues.exact[i] += other.exact[i];
          expected.dvalues.error[i] += rounding_error(expected.dvalues.exact[i], DType::float32);
        }
        Outputs outputs(inputs);
        ZohBackwardTensors tensors = inputs.tensors();
        tensors.other_dvalues = other.view();
        ASSERT_TRUE(outputs.run(tensors));
        expect_near(outputs.dvalues, expected.dvalues, "dvalues");
        // In place the bits are the same, and keys without a dscore keep theirs.
        Outputs in_place(inputs);
        in_place.dvalues = Gradient(inputs.values, other_dtype);
        std::memcpy(in_place.dvalues.bytes.data(), other.view().data,
                    in_place.dvalues.bytes.size());
        tensors.other_dvalues = in_place.dvalues.view().view();
        ASSERT_TRUE(in_place.run(tensors));
        if (other_dtype == dtype) {
          EXPECT_EQ(in_place.dvalues.bytes, outputs.dvalues.bytes);
        }
        expect_near(in_place.dvalues, expected.dvalues, "dvalues in place");
        EXPECT_EQ(in_place.ddt_proj.bytes, outputs.ddt_proj.bytes);
      }
    }
  }
}

// values [batch, heads, kv_len, head_dim + 5], dt_proj transposed, dscores [kv_len, batch, heads],
// gradients alike.
TEST(ZohBackward, AnyStridesButTheLast) {
  std::mt19937 random(8);
  for (const bool is_per_head : {true, false}) {
    const Inputs inputs({2, 70, 3, 20, is_per_head}, DType::float32, DType::float32, random);
    Outputs expected(inputs);
    ASSERT_TRUE(expected.run(inputs.tensors()));
    const std::array<std::int64_t, 4> value_strides{3 * 70 * 25, 25, 70 * 25, 1};
    const std::array<std::int64_t, 4> weight_strides{1, 3, 0, 0}, score_strides{3, 1, 6, 0};
    const auto moved = [](const TensorView& from, const std::array<std::int64_t, 4>& strides,
                          std::size_t size) {
      std::vector<float> to(size, 99.0F);
      const auto* data = static_cast<const float*>(from.data);
      std::array<std::int64_t, 4> at{};
      for (std::int64_t i = 0; i < from.num_elements(); ++i) {
        std::int64_t rest = i, offset = 0;
        for (int d = from.rank - 1; d >= 0; --d) {
          const auto axis = static_cast<std::size_t>(d);
          at[axis] = rest % from.extents[axis];
          rest /= from.extents[axis];
          offset += at[axis] * strides[axis];
        }
        to[static_cast<std::size_t>(offset)] = data[i];
      }
      return to;
    };
    const auto with_strides = [](auto view, auto* data,
                                 const std::array<std::int64_t, 4>& strides) {
      view.data = data;
      view.strides = strides;
      return view;
    };
    const std::vector<float> values = moved(inputs.values.view(), value_strides, 2 * 3 * 70 * 25);
    const std::vector<float> weights =
        moved(inputs.dt_proj.view(), weight_strides, inputs.dt_proj.floats.size());
    const std::vector<float> dscores =
        moved(inputs.dscores.view(), score_strides, inputs.dscores.floats.size());
    std::vector<float> dvalues(values.size(), 99.0F), dweights(weights.size());
    ZohBackwardTensors tensors = inputs.tensors();
    tensors.values = with_strides(tensors.values, values.data(), value_strides);
    tensors.dt_proj = with_strides(tensors.dt_proj, weights.data(), weight_strides);
    tensors.dscores = with_strides(tensors.dscores, dscores.data(), score_strides);
    tensors.dvalues = with_strides(expected.dvalues.view(), dvalues.data(), value_strides);
    tensors.ddt_proj = with_strides(expected.ddt_proj.view(), dweights.data(), weight_strides);
    ASSERT_TRUE(zoh_scores_backward(tensors));
    EXPECT_EQ(dvalues, moved(expected.dvalues.view().view(), value_strides, dvalues.size()));
    EXPECT_EQ(dweights, moved(expected.ddt_proj.view().view(), weight_strides, dweights.size()));
  }
}

TEST(ZohBackward, NoKeysGiveZeros) {
  std::mt19937 random(9);
  const Inputs inputs({2, 0, 2, 8, true}, DType::float32, DType::float32, random);
  Outputs outputs(inputs);
  ASSERT_TRUE(outputs.run(inputs.tensors()));
  EXPECT_EQ(outputs.ddt_proj.bytes, std::vector<std::uint8_t>(64, 0));
  EXPECT_EQ(outputs.da_coef.bytes, std::vector<std::uint8_t>(8, 0));
}

/// The gradients of one number as the only term of dt, its weight 1.
struct Slopes {
  float dvalue, dweight, da;
};
Slopes slopes_of_number(float dt, float a, ZohMode mode, float dscore = 1) {
  std::mt19937 random(10);
  Inputs inputs({1, 1, 1, 1, true}, DType::float32, DType::float32, random, 1);
  inputs.values.floats = {dt};
  inputs.dt_proj.floats = {1};
  inputs.a_coef.floats = {a};
  inputs.dscores.floats = {dscore};
  Outputs outputs(inputs);
  EXPECT_TRUE(outputs.run(inputs.tensors(), {mode}));
  return {outputs.dvalues[0], outputs.ddt_proj[0], outputs.da_coef[0]};
}

TEST(ZohBackward, SlopesAreStable) {
  for (const float dt : {-100.0F, -85.0F, -20.0F, -1e-3F, 0.0F, 1e-3F, 20.0F, 80.0F, 1e3F, 1e30F}) {
    const double exact = dt;
    const double softplus = std::max(exact, 0.0) + std::log1p(std::exp(-std::abs(exact)));
    const double sigmoid = 1 / (1 + std::exp(-exact)), score = std::exp(-softplus);
    const Slopes log = slopes_of_number(dt, -1, ZohMode::log);
    EXPECT_NEAR(log.dvalue, -sigmoid, sigmoid * 1e-6 + 1e-44) << dt;
    EXPECT_NEAR(log.da, softplus, softplus * 1e-6 + 1e-44) << dt;
    const Slopes exp = slopes_of_number(dt, -1, ZohMode::exp);
    const double relative = 1e-6 * (1 + softplus);
    EXPECT_NEAR(exp.dvalue, -score * sigmoid, score * sigmoid * relative + 1e-44) << dt;
    EXPECT_NEAR(exp.da, score * softplus, score * softplus * relative + 1e-44) << dt;
  }
}

TEST(ZohBackward, SlopesOfScoresThatVanishOverflowOrAreNot) {
  const auto are_zero = [](const Slopes& slopes) {
    return slopes.dvalue == 0 && slopes.dweight == 0 && slopes.da == 0;
  };
  for (const ZohMode mode : {ZohMode::exp, ZohMode::log}) {
    // A key without a dscore adds nothing.
    for (const float dt : {kNan, kInfinity, -kInfinity, 1000.0F}) {
      for (const float a : {1.0F, -1.0F, kNan, kInfinity, 0.0F}) {
        EXPECT_TRUE(are_zero(slopes_of_number(dt, a, mode, 0))) << dt << " " << a;
      }
    }
    EXPECT_TRUE(are_zero(slopes_of_number(-kInfinity, -1, mode)));
    const Slopes nan = slopes_of_number(kNan, -1, mode);
    EXPECT_TRUE(std::isnan(nan.dvalue) && std::isnan(nan.dweight) && std::isnan(nan.da));
    EXPECT_TRUE(std::isnan(slopes_of_number(1, -1, mode, kNan).dvalue));
  }
  EXPECT_TRUE(are_zero(slopes_of_number(kInfinity, -1, ZohMode::exp)));
  EXPECT_TRUE(are_zero(slopes_of_number(1000, -1, ZohMode::exp)));
  EXPECT_EQ(slopes_of_number(1000, 1, ZohMode::exp).dvalue, kInfinity);
  EXPECT_EQ(slopes_of_number(kInfinity, -1, ZohMode::log).dvalue, -1);
  EXPECT_EQ(slopes_of_number(kInfinity, -1, ZohMode::log).dweight, -kInfinity);
  EXPECT_EQ(slopes_of_number(kInfinity, -1, ZohMode::log).da, kInfinity);
  const Slopes flat = slopes_of_number(3, 0, ZohMode::exp);  // A = 0: score 1 whatever dt
  EXPECT_EQ(flat.dvalue, 0);
  EXPECT_FLOAT_EQ(flat.da, 3.0485873F);
}

// NaN in keys that nobody keeps stays there, with both shapes of dt_proj.
TEST(ZohBackward, KeysWithoutADscoreAreNotRead) {
  std::mt19937 random(11);
  for (const bool is_per_head : {true, false}) {
    Inputs inputs({1, 100, 3, 20, is_per_head}, DType::float32, DType::float32, random, 1);
    for (std::size_t k = 0; k < 100; k += 3) {
      for (std::size_t h = 0; h < 3; ++h) inputs.dscores.floats[h * 100 + k] = 0;
    }
    inputs.dscores.exact.assign(inputs.dscores.floats.begin(), inputs.dscores.floats.end());
    const auto expected = zoh_gradients(inputs.problem(ZohMode::exp));
    for (std::size_t k = 0; k < 100; k += 3) {
      for (std::size_t i = 0; i < 60; ++i) {
        inputs.values.floats[k * 60 + i] = i % 2 == 0 ? kNan : kInfinity;
      }
    }
    Outputs outputs(inputs);
    ASSERT_TRUE(outputs.run(inputs.tensors()));
    expect_near(outputs.dvalues, expected.dvalues, "dvalues");
    expect_near(outputs.ddt_proj, expected.ddt_proj, "ddt_proj");
    expect_near(outputs.da_coef, expected.da_coef, "da_coef");
  }
}

// Every 16-bit number between two of its neighbours, and what is beyond them all.
TEST(ZohBackward, GradientsAreRoundedToNearestEven) {
  std::mt19937 random(12);
  for (const DType dtype : {DType::float16, DType::bfloat16}) {
    std::vector<float> sums;
    for (std::uint32_t bits = 0; bits < 0x7C00; bits += 3) {
      const float low = widened(static_cast<std::uint16_t>(bits), dtype);
      const float high = widened(static_cast<std::uint16_t>(bits + 1), dtype);
      const float middle = low + (high - low) / 2;
      if (!std::isfinite(high) || middle < std::numeric_limits<float>::min()) continue;
      for (const float x :
           {low, middle, std::nextafter(middle, low), std::nextafter(middle, high)}) {
        sums.push_back(bits % 2 == 0 ? x : -x);
      }
    }
    sums.insert(sums.end(), {0.0F, 65519.0F, 65520.0F, 1e30F});
    const auto count = static_cast<std::int64_t>(sums.size());
    const Inputs inputs({1, 1, 1, count, true}, dtype, DType::float32, random, 1);
    Inputs given = inputs;
    given.values = make_tensor(dtype, inputs.values.extents, random, 0);
    given.a_coef.floats = {1};
    given.dscores.floats = {2};
    given.dt_proj.floats = sums;  // dt is 0, the sigmoid 1/2
    Outputs exact(given, true), rounded(given);
    ASSERT_TRUE(exact.run(given.tensors(), {ZohMode::log}));
    ASSERT_TRUE(rounded.run(given.tensors(), {ZohMode::log}));
    for (std::size_t i = 0; i < sums.size(); ++i) {
      const float x = exact.dvalues[i], y = rounded.dvalues[i];
      ASSERT_EQ(x, given.dt_proj.floats[i]);
      if (dtype == DType::float16 && std::abs(x) >= 65520) {
        ASSERT_EQ(std::abs(y), kInfinity) << x;
        continue;
      }
      std::uint16_t bits = 0;
      std::memcpy(&bits, rounded.dvalues.bytes.data() + 2 * i, 2);
      const float below = widened(static_cast<std::uint16_t>(bits - 1), dtype);
      const float above = widened(static_cast<std::uint16_t>(bits + 1), dtype);
      if ((bits & 0x7FFF) != 0) {
        ASSERT_LE(std::abs(double{x} - y), std::abs(double{x} - below)) << x;
      }
      ASSERT_LE(std::abs(double{x} - y), std::abs(double{x} - above)) << x;
      const bool is_tie = std::abs(double{x} - y) == std::abs(double{x} - above) ||
                          std::abs(double{x} - y) == std::abs(double{x} - below);
      ASSERT_TRUE(!is_tie || x == y || bits % 2 == 0) << x;
    }
  }
}

TEST(ZohBackward, RejectsTensorsThatDoNotFit) {
  std::mt19937 random(13);
  const Inputs inputs({1, 5, 2, 8, false}, DType::float32, DType::float32, random);
  Outputs outputs(inputs);
  ZohBackwardTensors good = inputs.tensors();
  good.dvalues = outputs.dvalues.view();
  good.ddt_proj = outputs.ddt_proj.view();
  good.da_coef = outputs.da_coef.view();
  ASSERT_TRUE(zoh_scores_backward(good));
  const auto fails = [](const ZohBackwardTensors& tensors, ErrorCode code, const std::string& text,
                        ZohOptions options = {}) {
    const Result<void> result = zoh_scores_backward(tensors, options);
    ASSERT_FALSE(result) << text;
    EXPECT_EQ(result.error().code, code) << result.error().message;
    EXPECT_THAT(result.error().message, HasSubstr(text));
  };
  ZohBackwardTensors wrong = good;
  wrong.values.rank = 3;
  fails(wrong, ErrorCode::shape_mismatch, "values: expected");
  wrong = good;
  wrong.dscores.extents[2] = 4;
  fails(wrong, ErrorCode::shape_mismatch,
        "dscores: expected [batch, heads_kv, kv_len] = [1, 2, 5], got [1, 2, 4]");
  wrong = good;
  wrong.dscores.dtype = DType::bfloat16;
  fails(wrong, ErrorCode::unsupported, "dscores: expected float32, got bfloat16");
  wrong = good;
  wrong.dscores.data = nullptr;
  fails(wrong, ErrorCode::invalid_argument, "dscores: data is null");
  wrong = good;
  wrong.dscores.device = Device::cuda;
  fails(wrong, ErrorCode::unsupported, "dscores: expected the device of values");
  wrong = good;
  wrong.dvalues.extents[1] = 4;
  fails(wrong, ErrorCode::shape_mismatch,
        "dvalues: expected [1, 5, 2, 8], the shape of values, got [1, 4, 2, 8]");
  wrong = good;
  wrong.dvalues.dtype = DType::float16;
  fails(wrong, ErrorCode::unsupported, "dvalues: expected float32, got float16");
  wrong = good;
  wrong.dvalues.strides[3] = 2;
  fails(wrong, ErrorCode::invalid_argument, "dvalues: expected a last stride of 1, got 2");
  wrong = good;
  wrong.ddt_proj.extents[1] = 8;
  fails(wrong, ErrorCode::shape_mismatch, "ddt_proj: expected [2, 16]");
  wrong = good;
  wrong.da_coef.data = outputs.da_coef.bytes.data() + 1;
  fails(wrong, ErrorCode::invalid_argument, "da_coef: data is not aligned");
  wrong = good;
  wrong.other_dvalues = good.values;
  wrong.other_dvalues.extents[0] = 2;
  fails(wrong, ErrorCode::shape_mismatch, "other_dvalues: expected [1, 5, 2, 8]");
  wrong = good;
  wrong.dvalues = {};
  wrong.other_dvalues = good.values;
  fails(wrong, ErrorCode::invalid_argument, "other_dvalues: given, but dvalues is not");
  fails(good, ErrorCode::invalid_argument, "num_threads", {ZohMode::exp, -1});
}

}  // namespace
}  // namespace fdma
