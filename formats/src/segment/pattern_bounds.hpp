// The bounds of a pattern segment in the rows of its run.
//
// What a sum over the tiles of a pattern segment needs of a tile row are its two bounds: whatever
// adds up over tiles is its value up to the end of the segment less its value up to the first tile.
// Where a bound lies in the pattern repeats after a number of tile rows, so that the rows of a long
// run need not be visited either.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <span>
#include <vector>

#include "fdma/formats/segment_mask.hpp"

namespace fdma {

/// A border between two tile columns, in a tile row of the mask, and where it lies in a pattern.
struct PatternBound {
  std::int64_t turns;  ///< whole turns of the pattern row before it, from its shift on; may be < 0
  std::int64_t start;  ///< first column of the turn that holds the border; may be negative
  // Entries of PatternRowSums:
  std::size_t first;       ///< no tile of the pattern row
  std::size_t at;          ///< the tiles before the border in its turn
  std::size_t whole_turn;  ///< all tiles of the pattern row
};

/// Sums over the tiles of every pattern row of a mask: for each tile the sum of those before it in
/// its row, and one entry more with that of the whole row.
template <class Sum>
class PatternRowSums {
 public:
  /// `value(tile)` is what a tile adds.
  template <class Value>
  PatternRowSums(const SegmentMask& mask, Value&& value) {
    if (!mask.has_patterns()) return;
    before_.reserve(mask.pattern_tiles.size() + mask.pattern_offsets.size());
    for (std::size_t row = 0; row + 1 < mask.pattern_offsets.size(); ++row) {
      Sum sum{};
      before_.push_back(sum);
      for (std::int64_t t = mask.pattern_offsets[row]; t < mask.pattern_offsets[row + 1]; ++t) {
        sum += value(mask.pattern_tiles[static_cast<std::size_t>(t)]);
        before_.push_back(sum);
      }
    }
  }
  /// An entry, by its index in a bound.
  const Sum& before(std::size_t entry) const { return before_[entry]; }

 private:
  std::vector<Sum> before_;
};

/// Borders of one tile row from left to right.
class PatternRowWalk {
 public:
  /// Begins before tile column `col` of tile row `row`. Cost: O(log tiles of the pattern row).
  PatternRowWalk(const SegmentMask& mask, const TilePattern& pattern, std::int64_t row,
                 std::int64_t col)
      : num_cols_(pattern.num_cols) {
    const auto pattern_row = static_cast<std::int32_t>(row % pattern.num_rows);
    const std::size_t number =
        static_cast<std::size_t>(pattern.first_row) + static_cast<std::size_t>(pattern_row);
    tiles_ = mask.pattern_row_tiles(pattern, pattern_row);
    first_ = static_cast<std::size_t>(mask.pattern_offsets[number]) + number;
    const std::int64_t shift = pattern.skew * row % num_cols_;
    turns_ = floor_quotient(col - shift, num_cols_);
    start_ = turns_ * num_cols_ + shift;
    place_ = col - start_;
    find(0, place_);
  }

  /// Goes on by `cols` tile columns. Cost: O(log cols), and a division where a turn ends.
  void advance(std::int64_t cols) {
    place_ += cols;
    if (place_ < num_cols_) {
      find(next_, cols);
      return;
    }
    const std::int64_t turns = place_ / num_cols_;
    turns_ += turns;
    start_ += turns * num_cols_;
    place_ -= turns * num_cols_;
    find(0, place_);
  }

  PatternBound bound() const {
    return {turns_, start_, first_, first_ + next_, first_ + tiles_.size()};
  }

 private:
  // Sets next_ to the first tile at place_ or after it, one of at most `most` from `begin` on.
  void find(std::size_t begin, std::int64_t most) {
    const auto first = tiles_.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto next = std::lower_bound(
        first, first + std::min<std::ptrdiff_t>(most, tiles_.end() - first), place_,
        [](const PatternTile& tile, std::int64_t place) { return tile.column < place; });
    next_ = static_cast<std::size_t>(next - tiles_.begin());
  }

  std::span<const PatternTile> tiles_;
  std::int64_t num_cols_;
  std::size_t first_ = 0;
  std::size_t next_ = 0;
  std::int64_t turns_ = 0;
  std::int64_t start_ = 0;
  std::int64_t place_ = 0;  // pattern column after the border
};

/// Where the border before tile column `col` lies in a pattern, in tile row `row`.
/// Cost: O(log tiles of the pattern row).
inline PatternBound bound_of(const SegmentMask& mask, const TilePattern& pattern, std::int64_t row,
                             std::int64_t col) {
  return PatternRowWalk(mask, pattern, row, col).bound();
}

/// The sum over the tiles between two borders of one tile row.
template <class Sum>
Sum sum_between(const PatternRowSums<Sum>& sums, const PatternBound& from, const PatternBound& to) {
  return sums.before(to.at) - sums.before(from.at) +
         sums.before(to.whole_turn) * (to.turns - from.turns);
}

/// The number of rows of a run after which a bound that moves by `step` tiles a row lies in the same
/// place of the pattern again, a number of whole turns farther.
inline std::int64_t bound_period(const TilePattern& pattern, std::int64_t row_stride,
                                 std::int64_t step) {
  const std::int64_t rows = pattern.num_rows / std::gcd(std::int64_t{pattern.num_rows}, row_stride);
  const std::int64_t drift = (step - pattern.skew * row_stride) % pattern.num_cols;
  const std::int64_t cols = pattern.num_cols / std::gcd(std::int64_t{pattern.num_cols}, drift);
  return std::lcm(rows, cols);
}

/// The sum over all tiles of a pattern segment in all rows of its run. `Sum` has +, - and a product
/// with numbers. Cost: O(log tiles of a pattern row) for each row until both bounds lie as before.
template <class Sum>
Sum sum_of_pattern_segment(const SegmentMask& mask, const PatternRowSums<Sum>& sums,
                           const TileRun& run, const TileSegment& segment) {
  const TilePattern& pattern = mask.patterns[static_cast<std::size_t>(segment.data_index)];
  const std::int64_t num_rows = run.num_rows;
  const std::int64_t period_of_first =
      std::min(bound_period(pattern, run.row_stride, segment.step_first), num_rows);
  const std::int64_t period_of_end =
      std::min(bound_period(pattern, run.row_stride, segment.step_end), num_rows);
  const std::int64_t period = std::min(std::lcm(period_of_first, period_of_end), num_rows);
  // Whole turns that a row has more than the one a period before it.
  const std::int64_t growth =
      period == num_rows
          ? 0
          : period * (std::int64_t{segment.step_end} - segment.step_first) / pattern.num_cols;
  Sum sum{};
  for (std::int64_t i = 0; i < period; ++i) {
    const std::int64_t row = run.first_row + i * run.row_stride;
    const PatternBound first =
        bound_of(mask, pattern, row, segment.first_tile + i * segment.step_first);
    const PatternBound end = bound_of(mask, pattern, row, segment.end_tile + i * segment.step_end);
    const std::int64_t times = (num_rows - 1 - i) / period + 1;
    sum += (sums.before(end.at) - sums.before(first.at)) * times +
           sums.before(end.whole_turn) *
               (times * (end.turns - first.turns) + growth * (times * (times - 1) / 2));
  }
  return sum;
}

/// Tiles of a pattern, and true cells of theirs.
struct PatternTotals {
  std::int64_t full = 0;
  std::int64_t partial = 0;
  std::int64_t cells = 0;  ///< a full tile has all cells of a block
  PatternTotals& operator+=(const PatternTotals& o) {
    full += o.full, partial += o.partial, cells += o.cells;
    return *this;
  }
  friend PatternTotals operator+(PatternTotals a, const PatternTotals& b) { return a += b; }
  friend PatternTotals operator-(const PatternTotals& a, const PatternTotals& b) {
    return {a.full - b.full, a.partial - b.partial, a.cells - b.cells};
  }
  friend PatternTotals operator*(const PatternTotals& a, std::int64_t times) {
    return {a.full * times, a.partial * times, a.cells * times};
  }
};

}  // namespace fdma
