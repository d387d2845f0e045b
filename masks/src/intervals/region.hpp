// Region: a set of cells as bands of rows with linear intervals, and its algebra.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "fdma/formats/band_algebra.hpp"
#include "fdma/formats/band_sequence.hpp"
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
  Region() = default;
  explicit Region(RowBands bands) { sequence_.bands() = std::move(bands); }
  static Region rectangle(const Rectangle& cells);

  const RowBands& row_bands() const { return sequence_.bands(); }
  const std::vector<RowBand>& bands() const { return row_bands().bands; }
  std::span<const AffineInterval> intervals(const RowBand& band) const {
    return {row_bands().intervals.data() + band.first_interval,
            static_cast<std::size_t>(band.num_intervals)};
  }
  /// False once there are more intervals per band than this form is good for. Must be asked after
  /// every band, so that a region never takes more than the budget and one band.
  bool is_within_budget() const { return is_within_budget(row_bands()); }
  static bool is_within_budget(const RowBands& bands);
  /// The most intervals that one more band may have.
  std::size_t most_intervals() const;

  /// Reserves memory for this number of bands of one interval each.
  void reserve(std::size_t num_bands) { sequence_.reserve(num_bands); }
  /// Appends a band after the last one, or extends the last one where one set of intervals
  /// describes both.
  void append(std::int64_t row_begin, std::int64_t row_end,
              std::span<const AffineInterval> intervals) {
    sequence_.add(row_begin, row_end, intervals);
  }
  void append(const Region& other, const RowBand& band) {
    append(band.q_begin, band.q_end, other.intervals(band));
  }
  /// Moves the contents out.
  RowBands to_row_bands(std::int64_t q_len, std::int64_t kv_len) &&;
  /// The smallest rectangle around a band's cells.
  Rectangle hull(const RowBand& band) const;
  Rectangle hull() const;

 private:
  BandSequence sequence_{0, 0};
};

/// The cells of `a` op `b`, for one of the operations that band_algebra.hpp names. Empty if the
/// result would exceed the engine's budget of pieces, or if the effort is spent.
std::optional<Region> combine(const Region& a, const Region& b, TruthTable op,
                              IntervalEffort& effort);

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
