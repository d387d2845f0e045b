// Compares the reference gradients with finite differences of the reference attention, in float64.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "attention_reference.hpp"
#include "backend/mask_cases.hpp"

namespace fdma {
namespace {

using reference::HeadGradients;
using reference::HeadProblem;
using testing::Cells;

// The loss whose gradients are tested.
double loss(const HeadProblem& problem, const std::vector<double>& dout,
            const std::vector<double>& dlse) {
  const reference::HeadResult result = reference::attention_float64(problem);
  double sum = 0;
  for (std::size_t i = 0; i < dout.size(); ++i) sum += dout[i] * result.out[i];
  for (std::size_t i = 0; i < dlse.size(); ++i)
    if (std::isfinite(result.lse[i])) sum += dlse[i] * result.lse[i];
  return sum;
}

class GradientReference : public ::testing::Test {
 protected:
  std::vector<double> values(std::int64_t count, double scale = 1) {
    std::normal_distribution<double> normal(0, scale);
    std::vector<double> result(static_cast<std::size_t>(count));
    for (double& each : result) each = normal(rng_);
    return result;
  }

  HeadProblem problem(const Cells& cells, std::int64_t head_dim, std::int64_t head_dim_v) {
    HeadProblem head;
    head.q_len = cells.q_len;
    head.kv_len = cells.kv_len;
    head.head_dim = head_dim;
    head.head_dim_v = head_dim_v;
    head.q = values(cells.q_len * head_dim);
    head.k = values(cells.kv_len * head_dim);
    head.v = values(cells.kv_len * head_dim_v);
    head.softmax_scale = 0.4;
    head.cells = cells.values.data();
    return head;
  }

  // Moves every element of `input` to both sides, and compares the change of the loss with
  // `gradient`.
  static void expect_slope(HeadProblem& head, std::vector<double>& input,
                           const std::vector<double>& gradient, const std::vector<double>& dout,
                           const std::vector<double>& dlse, const char* name) {
    constexpr double kStep = 1e-5;
    ASSERT_EQ(gradient.size(), input.size()) << name;
    for (std::size_t i = 0; i < input.size(); ++i) {
      const double value = input[i];
      input[i] = value + kStep;
      const double above = loss(head, dout, dlse);
      input[i] = value - kStep;
      const double below = loss(head, dout, dlse);
      input[i] = value;
      EXPECT_NEAR((above - below) / (2 * kStep), gradient[i], 1e-8) << name << " " << i;
    }
  }

  std::mt19937 rng_{7};
};

TEST_F(GradientReference, IsTheSlopeOfTheLoss) {
  // Row 4 sees no key, row 6 sees one key, and no row sees key 2.
  const Cells cells = testing::make_cells(9, 11, [](auto q, auto k) {
    if (q == 4 || k == 2) return false;
    return q == 6 ? k == 3 : (q * 7 + k * 5) % 3 != 0;
  });
  for (const bool has_bias : {false, true}) {
    for (const bool has_dlse : {false, true}) {
      HeadProblem head = problem(cells, 5, 3);
      head.softcap = has_bias == has_dlse ? 0 : 0.7;
      if (has_bias) head.bias = values(cells.kv_len, 2);
      const std::vector<double> dout = values(cells.q_len * 3);
      const std::vector<double> dlse = has_dlse ? values(cells.q_len) : std::vector<double>();
      const HeadGradients gradients = gradients_float64(head, dout, dlse);
      expect_slope(head, head.q, gradients.dq, dout, dlse, "dq");
      expect_slope(head, head.k, gradients.dk, dout, dlse, "dk");
      expect_slope(head, head.v, gradients.dv, dout, dlse, "dv");
      if (has_bias) expect_slope(head, head.bias, gradients.dbias, dout, dlse, "dbias");
      for (int d = 0; d < 5; ++d) {
        EXPECT_EQ(gradients.dq[4 * 5 + static_cast<std::size_t>(d)], 0);
        EXPECT_EQ(gradients.dk[2 * 5 + static_cast<std::size_t>(d)], 0);
      }
    }
  }
}

// Every part alone, and all of them together.
TEST_F(GradientReference, IsTheSlopeOfTheLossForEveryPart) {
  const Cells cells = testing::make_cells(9, 11, [](auto q, auto k) {
    if (q == 4 || k == 2) return false;
    return q == 6 ? k == 3 : (q * 7 + k * 5) % 3 != 0;
  });
  constexpr int kNumParts = 5;
  for (int parts = 0; parts <= kNumParts; ++parts) {
    const auto has = [&](int part) { return parts == part || parts == kNumParts; };
    HeadProblem head = problem(cells, 5, 3);
    for (std::int64_t q = 0; q < cells.q_len; ++q) head.positions.push_back(q + 2);
    if (parts == kNumParts) head.softcap = 0.7;
    if (parts == kNumParts) head.bias = values(cells.kv_len);
    if (has(0)) head.pair_bias = values(cells.q_len * cells.kv_len);
    if (has(1)) head.alibi_slope = 0.3;
    if (has(2)) {
      head.relative = values(8);
      head.relative_left = 5;
    }
    if (has(3)) {
      head.sinks = values(cells.q_len);
      head.sinks[1] = -std::numeric_limits<double>::infinity();
    }
    if (has(4)) {
      head.dropout_rate = 0.3;
      for (std::int64_t i = 0; i < cells.q_len * cells.kv_len; ++i) {
        head.kept.push_back(i * 13 % 10 < 7 ? 1 : 0);
      }
    }
    const std::vector<double> dout = values(cells.q_len * 3), dlse = values(cells.q_len);
    const HeadGradients gradients = gradients_float64(head, dout, dlse);
    expect_slope(head, head.q, gradients.dq, dout, dlse, "dq");
    expect_slope(head, head.k, gradients.dk, dout, dlse, "dk");
    expect_slope(head, head.v, gradients.dv, dout, dlse, "dv");
    if (!head.bias.empty()) expect_slope(head, head.bias, gradients.dbias, dout, dlse, "dbias");
    expect_slope(head, head.pair_bias, gradients.dpair_bias, dout, dlse, "dpair_bias");
    expect_slope(head, head.relative, gradients.drelative, dout, dlse, "drelative");
    if (has(3)) {
      EXPECT_EQ(gradients.dsinks[1], 0);
      head.sinks[1] = -100;
    }
    expect_slope(head, head.sinks, gradients.dsinks, dout, dlse, "dsinks");
  }
}

// Explicit gradients in float32 equal those in float64 up to the rounding of float32. In bfloat16
// the difference is that of 8 bits, and not 0.
TEST_F(GradientReference, ExplicitOnesDifferByRounding) {
  const Cells cells = testing::make_cells(40, 50, [](auto q, auto k) { return k <= q + 10; });
  const HeadProblem head = problem(cells, 16, 16);
  const std::vector<double> dout = values(cells.q_len * 16), dlse = values(cells.q_len);
  const HeadGradients exact = gradients_float64(head, dout, dlse);
  const auto distance = [&](DType dtype) {
    const HeadGradients own = gradients_explicit(head, dout, dlse, dtype, dtype);
    double most = 0;
    for (const auto member : {&HeadGradients::dq, &HeadGradients::dk, &HeadGradients::dv})
      for (std::size_t i = 0; i < (exact.*member).size(); ++i)
        most = std::max(most, std::fabs((own.*member)[i] - (exact.*member)[i]));
    return most;
  };
  EXPECT_LT(distance(DType::float32), 1e-5);
  EXPECT_LT(distance(DType::float16), 1e-2);
  EXPECT_LT(distance(DType::bfloat16), 6e-2);
  EXPECT_GT(distance(DType::bfloat16), 1e-3);
}

}  // namespace
}  // namespace fdma
