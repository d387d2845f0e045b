// The error of a tensor against its reference, and the bound of that error.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>

namespace fdma::testing {

/// A query row of a batch element and head.
struct RowPlace {
  std::int64_t b = 0;
  std::int64_t h = 0;
  std::int64_t row = 0;
};
std::string to_string(const RowPlace& place);

/// The largest errors of one tensor. The error of FDMA may be twice that of an explicit computation
/// in the tensor's own type, plus 1e-5 times the largest magnitude of the reference. The second
/// term is needed since an explicit computation of rows with one key has no error at all.
struct TensorError {
  double fdma = 0;
  double explicit_ = 0;
  double magnitude = 0;
  RowPlace where;  ///< the place of the largest error of FDMA
  double got = 0;
  double wanted = 0;

  double bound() const { return 2 * explicit_ + 1e-5 * magnitude; }
  bool is_within_bound() const { return fdma <= bound(); }

  void add(double got_here, double wanted_here, double in_own_type, const RowPlace& place) {
    magnitude = std::max(magnitude, std::fabs(wanted_here));
    explicit_ = std::max(explicit_, std::fabs(in_own_type - wanted_here));
    const double error = std::fabs(got_here - wanted_here);
    if (error <= fdma) return;  // false also where `got_here` is NaN
    fdma = std::isnan(error) ? std::numeric_limits<double>::infinity() : error;
    where = place;
    got = got_here;
    wanted = wanted_here;
  }
};

/// Says what is wrong with tensor `name`; empty if it is within its bound.
std::string bound_error(std::string_view name, const TensorError& error);

}  // namespace fdma::testing
