#include "zoh_oracle.hpp"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fdma::select_test {
namespace {

constexpr double kUnit = 0x1p-24;

double softplus(double dt) { return std::max(dt, 0.0) + std::log1p(std::exp(-std::abs(dt))); }

struct Dt {
  double value = 0, magnitude = 0;
};
Dt dt_of(const ZohProblem& problem, std::int64_t b, std::int64_t k, std::int64_t h) {
  const double* row = problem.values.data() + problem.first_term(b, k, h);
  const double* weights = problem.dt_proj.data() + h * problem.num_terms();
  Dt dt;
  for (std::int64_t i = 0; i < problem.num_terms(); ++i) {
    dt.value += row[i] * weights[i];
    dt.magnitude += std::abs(row[i] * weights[i]);
  }
  return dt;
}

template <class Visit>
void for_each_score(const ZohShape& shape, const Visit& visit) {
  std::size_t at = 0;
  for (std::int64_t b = 0; b < shape.num_batches; ++b) {
    for (std::int64_t h = 0; h < shape.num_heads_kv; ++h) {
      for (std::int64_t k = 0; k < shape.kv_len; ++k) visit(b, h, k, at++);
    }
  }
}

Bounded zeros(const std::vector<double>& like) {
  return {std::vector<double>(like.size()), std::vector<double>(like.size())};
}

}  // namespace

double zoh_loss(const ZohProblem& problem) {
  double loss = 0;
  for_each_score(
      problem.shape, [&](std::int64_t b, std::int64_t h, std::int64_t k, std::size_t at) {
        const double log =
            softplus(dt_of(problem, b, k, h).value) * problem.a_coef[static_cast<std::size_t>(h)];
        loss += problem.dscores[at] * (problem.mode == ZohMode::log ? log : std::exp(log));
      });
  return loss;
}

ZohGradients zoh_gradients(const ZohProblem& problem) {
  ZohGradients result{zeros(problem.values), zeros(problem.dt_proj), zeros(problem.a_coef)};
  const ZohShape& shape = problem.shape;
  const auto num_keys = static_cast<double>(shape.num_batches * shape.kv_len);
  const double sum_unit = (num_keys / 4 + 64) * kUnit;
  const double head_unit = (static_cast<double>(shape.num_heads_kv) / 4 + 64) * kUnit;
  const auto num_terms = static_cast<double>(problem.num_terms());
  for_each_score(shape, [&](std::int64_t b, std::int64_t h, std::int64_t k, std::size_t at) {
    const auto head = static_cast<std::size_t>(h);
    const double dscore = problem.dscores[at], a = problem.a_coef[head];
    if (dscore == 0) return;
    const Dt dt = dt_of(problem, b, k, h);
    const double dt_error = (num_terms / 4 + 8) * kUnit * dt.magnitude;
    const double s = softplus(dt.value);
    const bool is_log = problem.mode == ZohMode::log;
    const double score = std::exp(a * s);
    if (!is_log && score == 0) return;
    const double slope = is_log ? dscore : dscore * score;
    const double sigmoid = 1 / (1 + std::exp(-dt.value));
    const double ddt = slope * a * sigmoid;
    const double relative =
        std::expm1((std::abs(a) + 1) * dt_error + 8 * kUnit * std::abs(a * s)) + 16 * kUnit;
    result.da_coef.exact[head] += slope * s;
    result.da_coef.error[head] +=
        std::abs(slope * s) * (relative + sum_unit) + std::abs(slope) * dt_error;
    if (ddt == 0) return;
    const auto row = static_cast<std::size_t>(problem.first_term(b, k, h));
    const auto weights = head * static_cast<std::size_t>(problem.num_terms());
    for (std::size_t i = 0; i < static_cast<std::size_t>(problem.num_terms()); ++i) {
      const double dvalue = ddt * problem.dt_proj[weights + i];
      const double dweight = ddt * problem.values[row + i];
      result.dvalues.exact[row + i] += dvalue;
      result.dvalues.error[row + i] += std::abs(dvalue) * (relative + head_unit) + 1e-44;
      result.ddt_proj.exact[weights + i] += dweight;
      result.ddt_proj.error[weights + i] += std::abs(dweight) * (relative + sum_unit) + 1e-44;
    }
  });
  return result;
}

double rounding_error(double exact, DType dtype) {
  if (dtype == DType::float32) return std::abs(exact) * kUnit;
  if (dtype == DType::bfloat16) return std::abs(exact) * 0x1p-8;
  if (std::abs(exact) > 65504) return std::numeric_limits<double>::infinity();
  return std::max(std::abs(exact) * 0x1p-11, 0x1p-25);
}

}  // namespace fdma::select_test
