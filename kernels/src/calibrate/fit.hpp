// Least squares with coefficients that are not negative.
#pragma once

#include <vector>

namespace fdma {

/// One measurement: the amount of each unknown that it contains, and the measured value.
struct Measurement {
  std::vector<double> amounts;
  double value = 0;
};

/// The non-negative coefficients that minimise the sum over measurements of ((amounts .
/// coefficients - value) / value)^2. Values must be positive. An unknown that no measurement
/// contains gets 0.
///
/// Example     {{1, 0}, 2}, {{1, 1}, 5}: coefficients 2 and 3
/// Cost        O(measurements * unknowns^2), and sweeps of unknowns^2 until no coefficient changes
std::vector<double> fit_not_negative(const std::vector<Measurement>& measurements);

}  // namespace fdma
