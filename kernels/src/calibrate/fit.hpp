// Least squares with coefficients that are not negative.
#pragma once

#include <vector>

namespace fdma {

/// One measurement: how much of each unknown it holds, and what it took.
struct Measurement {
  std::vector<double> amounts;
  double value = 0;
};

/// The coefficients, none negative, for which sum over measurements of
/// ((amounts . coefficients - value) / value)^2 is smallest. Values must be positive; an unknown
/// that no measurement holds gets 0.
///
/// Example     {{1, 0}, 2}, {{1, 1}, 5}: coefficients 2 and 3
/// Cost        O(measurements * unknowns^2), and sweeps of unknowns^2 until nothing moves
std::vector<double> fit_not_negative(const std::vector<Measurement>& measurements);

}  // namespace fdma
