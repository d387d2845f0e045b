// Region: a set of cells as bands of rows with linear intervals, and its algebra.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fdma/formats/row_bands.hpp"
#include "intervals/effort.hpp"
#include "intervals/piecewise.hpp"

namespace fdma {

/// Rows [row_begin, row_end) by columns [col_begin, col_end). "Rows" are queries or keys, because
/// the interval engine works either way round.
struct Rectangle {
  std::int64_t row_begin;
  std::int64_t row_end;
  std::int64_t col_begin;
  std::int64_t col_end;
  bool is_empty() const { return row_begin >= row_end || col_begin >= col_end; }
};

/// Cells as in RowBands: bands ascend and are disjoint; in each row of a band its intervals are not
/// empty and ascend with at least one cell between neighbours; there are no bands without
/// intervals.
class Region {
 public:
  static Region rectangle(const Rectangle& cells);

  const std::vector<RowBand>& bands() const { return bands_; }
  std::span<const AffineInterval> intervals(const RowBand& band) const {
    return {intervals_.data() + band.first_interval, static_cast<std::size_t>(band.num_intervals)};
  }
  /// False once there are more intervals per band than this form is good for. Must be asked after
  /// every band, so that a region never takes more than the budget and one band.
  bool is_within_budget() const;
  /// The most intervals that one more band may have.
  std::size_t most_intervals() const;

  /// Reserves memory for this number of bands of one interval each.
  void reserve(std::size_t num_bands);
  /// Appends a band after the last one, or extends the last one where one set of intervals
  /// describes both.
  void append(std::int64_t row_begin, std::int64_t row_end,
              std::span<const AffineInterval> intervals);
  void append(const Region& other, const RowBand& band) {
    append(band.q_begin, band.q_end, other.intervals(band));
  }
  /// Moves the contents out.
  RowBands to_row_bands(std::int64_t q_len, std::int64_t kv_len) &&;
  /// The smallest rectangle around a band's cells.
  Rectangle hull(const RowBand& band) const;
  Rectangle hull() const;

 private:
  std::vector<RowBand> bands_;
  std::vector<AffineInterval> intervals_;
};

enum class SetOp { intersection, unite, difference, symmetric_difference };

/// The cells of `a` op `b`. Empty if the result would exceed the engine's budget of pieces, or if
/// the effort is spent.
std::optional<Region> combine(const Region& a, const Region& b, SetOp op, IntervalEffort& effort);

/// The cells (x, y) of `domain` with  row_sign * rows(x) + col_sign * cols(y) < limit; signs are 1
/// or -1. Empty if these are not a union of few linear intervals per row, if a piece inside the
/// domain is undefined, or if the effort is spent.
std::optional<Region> less_region(const Piecewise& rows, int row_sign, const Piecewise& cols,
                                  int col_sign, std::int64_t limit, const Rectangle& domain,
                                  IntervalEffort& effort);
/// As above for  row_sign * rows(x) + col_sign * cols(y) == value.
std::optional<Region> equal_region(const Piecewise& rows, int row_sign, const Piecewise& cols,
                                   int col_sign, std::int64_t value, const Rectangle& domain,
                                   IntervalEffort& effort);

}  // namespace fdma
