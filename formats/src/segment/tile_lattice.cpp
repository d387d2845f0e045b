#include "fdma/formats/tile_lattice.hpp"

#include <numeric>

#include "fdma/base/interval.hpp"

namespace fdma {
namespace {

__extension__ using Wide = __int128;

Wide positive_remainder(Wide a, Wide m) {
  const Wide r = a % m;
  return r < 0 ? r + m : r;
}

Wide greatest_divisor(Wide a, Wide b) {
  if (a < 0) a = -a;
  if (b < 0) b = -b;
  while (b != 0) {
    const Wide r = a % b;
    a = b;
    b = r;
  }
  return a;
}

// The inverse of a modulo m, for coprime a and m > 0.
Wide inverse(Wide a, Wide m) {
  Wide r0 = m, r1 = positive_remainder(a, m), s0 = 0, s1 = 1;
  while (r1 != 0) {
    const Wide quotient = r0 / r1;
    const Wide r2 = r0 - quotient * r1;
    const Wide s2 = s0 - quotient * s1;
    r0 = r1;
    r1 = r2;
    s0 = s1;
    s1 = s2;
  }
  return positive_remainder(s0, m);
}

// The smallest x >= 0 with a * x = b modulo m; gcd(a, m) divides b.
Wide solve(Wide a, Wide b, Wide m) {
  const Wide divisor = greatest_divisor(positive_remainder(a, m), m);
  const Wide modulus = m / divisor;
  if (modulus == 1) return 0;
  const Wide rest = positive_remainder(b, m) / divisor;
  return positive_remainder(rest * inverse(positive_remainder(a, m) / divisor, modulus), modulus);
}

}  // namespace

bool TileLattice::restrict_to(std::int64_t row_factor, std::int64_t col_factor,
                              std::int64_t modulus) {
  // x * (num_rows, shift) + y * (0, num_cols) is kept where f * x + g * y = 0 modulo `modulus`.
  const Wide m = modulus;
  const Wide f = positive_remainder(
      positive_remainder(row_factor, m) * num_rows + positive_remainder(col_factor, m) * shift, m);
  const Wide g = positive_remainder(positive_remainder(col_factor, m) * num_cols, m);
  const Wide common = greatest_divisor(g, m);
  const Wide cols = num_cols * (m / common);
  const Wide x = common / greatest_divisor(f, common);
  const Wide rows = num_rows * x;
  if (rows > kMost || cols > kMost) return false;
  const Wide y = solve(g, -f * x, m);
  shift = static_cast<std::int64_t>(positive_remainder(shift * x + num_cols * y, cols));
  num_rows = static_cast<std::int64_t>(rows);
  num_cols = static_cast<std::int64_t>(cols);
  return true;
}

bool TileLattice::restrict_to(const TileLattice& other) {
  // (rows, cols) is in `other` if rows is a multiple of other.num_rows, and cols - rows /
  // other.num_rows * other.shift one of other.num_cols.
  TileLattice common = *this;
  if (!common.restrict_to(1, 0, other.num_rows) ||
      !common.restrict_to(-other.shift, other.num_rows, other.num_rows * other.num_cols)) {
    return false;
  }
  *this = common;
  return true;
}

bool TileLattice::contains(const Translation& move) const {
  return reduce(move.rows, move.cols) == Translation{};
}

Translation TileLattice::reduce(std::int64_t row, std::int64_t col) const {
  const std::int64_t turns = floor_quotient(row, num_rows);
  const std::int64_t left = (col - turns * shift) % num_cols;
  return {row - turns * num_rows, left < 0 ? left + num_cols : left};
}

std::optional<Translation> TileLattice::along(std::int64_t row_factor,
                                              std::int64_t col_factor) const {
  const Wide f = Wide{row_factor} * num_rows + Wide{col_factor} * shift;
  const Wide g = Wide{col_factor} * num_cols;
  const Wide common = greatest_divisor(f, g);
  Wide x = g / common;
  Wide y = -f / common;
  if (x < 0 || (x == 0 && y < 0)) {
    x = -x;
    y = -y;
  }
  const Wide rows = x * num_rows;
  const Wide cols = x * shift + y * num_cols;
  if (rows > kMost || cols > kMost || cols < -kMost) return std::nullopt;
  return Translation{static_cast<std::int64_t>(rows), static_cast<std::int64_t>(cols)};
}

std::int64_t PatternPeriod::column(std::int64_t row, std::int64_t col) const {
  const std::int64_t left = (col - skew * row) % num_cols;
  return left < 0 ? left + num_cols : left;
}

std::optional<PatternPeriod> period_of(const TileLattice& lattice, std::int64_t most_rows) {
  const std::int64_t cols = lattice.num_cols;
  for (std::int64_t j = 1; lattice.num_rows * j <= most_rows; ++j) {
    const std::int64_t rows = lattice.num_rows * j;
    const std::int64_t shift = static_cast<std::int64_t>(Wide{lattice.shift} * j % cols);
    if (shift % std::gcd(rows, cols) != 0) continue;
    return PatternPeriod{rows, cols, static_cast<std::int64_t>(solve(rows, shift, cols))};
  }
  return std::nullopt;
}

PatternPeriod period_along(const Translation& step, std::int64_t width) {
  std::int64_t cols = width;
  while (step.cols % std::gcd(step.rows, cols) != 0) ++cols;
  return {step.rows, cols, static_cast<std::int64_t>(solve(step.rows, step.cols, cols))};
}

}  // namespace fdma
