// Least squares by coordinate descent on the normal equations. Each coefficient in turn takes the
// value that is best while the others stay, or 0. The objective is convex and its bounds are
// separable, so the sweeps end in the optimum. With a dozen unknowns, scaled to unit diagonal, that
// is quick.
#include "calibrate/fit.hpp"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace fdma {
namespace {

constexpr int kMaxSweeps = 200000;
constexpr double kConverged = 1e-12;

}  // namespace

std::vector<double> fit_not_negative(const std::vector<Measurement>& measurements) {
  const std::size_t n = measurements.empty() ? 0 : measurements.front().amounts.size();
  std::vector<double> matrix(n * n), right(n), scale(n);
  for (const Measurement& each : measurements) {
    for (std::size_t i = 0; i < n; ++i) {
      const double a = each.amounts[i] / each.value;
      right[i] += a;
      for (std::size_t j = 0; j < n; ++j) matrix[i * n + j] += a * each.amounts[j] / each.value;
    }
  }
  for (std::size_t i = 0; i < n; ++i) scale[i] = std::sqrt(matrix[i * n + i]);
  for (std::size_t i = 0; i < n; ++i) {
    if (scale[i] == 0) continue;
    right[i] /= scale[i];
    for (std::size_t j = 0; j < n; ++j) {
      if (scale[j] != 0) matrix[i * n + j] /= scale[i] * scale[j];
    }
  }
  std::vector<double> x(n, 0.0);
  for (int sweep = 0; sweep < kMaxSweeps; ++sweep) {
    double moved = 0;
    double largest = 0;
    for (std::size_t i = 0; i < n; ++i) {
      if (scale[i] == 0) continue;
      double rest = right[i];
      for (std::size_t j = 0; j < n; ++j) {
        if (j != i) rest -= matrix[i * n + j] * x[j];
      }
      const double better = std::max(rest, 0.0);
      moved = std::max(moved, std::abs(better - x[i]));
      largest = std::max(largest, better);
      x[i] = better;
    }
    if (moved <= kConverged * largest) break;
  }
  for (std::size_t i = 0; i < n; ++i) x[i] = scale[i] == 0 ? 0 : x[i] / scale[i];
  return x;
}

}  // namespace fdma
