// Relations of a function of the row and a function of the column, as regions.
//
// The relation is solved row piece by row piece:
//  - A constant row piece leaves a condition on the column alone. That is one bound where the
//  column
//    function is linear or monotone, and otherwise a visit of each of its pieces.
//  - A linear row piece against one linear column piece is a half plane (k <= q + 5).
//  - A linear row piece against a step function changes the columns only at a few rows, its
//    thresholds.
//  - Equality of two step functions is a join by value: t[k] == t[q] finds, for each run of equal
//  ids
//    among the rows, the runs of that id among the columns.
#include <algorithm>
#include <cstdlib>

#include "intervals/region.hpp"

namespace fdma {
namespace {

// The most work of one relation before interval form gives up.
constexpr std::size_t kMaxWork = std::size_t{1} << 22;
// Pieces of a function between two checks of the number of columns found.
constexpr std::size_t kPiecesAtOnce = 4096;

AffineInterval constant_interval(std::int64_t begin, std::int64_t end) {
  return {begin, end, 0, 0};
}

// Solves row_sign * rows(x) + col_sign * cols(y) < limit (or == limit) over a rectangle, one piece
// of `rows` at a time.
class RelationSolver {
 public:
  RelationSolver(const Piecewise& rows, int row_sign, const Piecewise& cols, int col_sign,
                 std::int64_t limit, const Rectangle& domain, IntervalEffort& effort)
      : rows_(rows),
        row_sign_(row_sign),
        cols_(cols),
        col_sign_(col_sign),
        limit_(limit),
        domain_(domain),
        effort_(effort) {
    first_col_ = cols.find(domain.col_begin);
    last_col_ = cols.find(domain.col_end - 1) + 1;
    for (std::size_t c = first_col_; c < last_col_; ++c) {
      is_defined_ = is_defined_ && cols.pieces()[c].is_defined;
      has_slopes_ = has_slopes_ || cols.pieces()[c].slope != 0;
    }
  }

  std::optional<Region> less() {
    if (!is_defined_) return std::nullopt;
    is_rising_ = col_sign_ > 0 ? cols_.is_nondecreasing() : cols_.is_nonincreasing();
    const bool is_falling = col_sign_ > 0 ? cols_.is_nonincreasing() : cols_.is_nondecreasing();
    is_monotone_ = cols_.is_step_function() && (is_rising_ || is_falling);
    return for_each_row_piece([&](std::int64_t begin, std::int64_t end, const LinearPiece& m) {
      if (m.slope == 0) return less_constant(begin, end, limit_ - row_sign_ * m.base);
      if (last_col_ - first_col_ == 1) return less_linear(begin, end, m);
      if (!has_slopes_) return less_thresholds(begin, end, m);
      return less_union(begin, end, m);
    });
  }

  // A join by value, where both sides are step functions.
  std::optional<Region> equal_join() {
    if (!is_defined_) return std::nullopt;
    const auto& order = cols_.by_value();
    const auto& pieces = cols_.pieces();
    return for_each_row_piece([&](std::int64_t begin, std::int64_t end, const LinearPiece& m) {
      const std::int64_t wanted = col_sign_ * (limit_ - row_sign_ * m.base);
      auto it = std::lower_bound(
          order.begin(), order.end(), wanted, [&](std::uint32_t p, std::int64_t v) {
            return pieces[p].base < v ||
                   (pieces[p].base == v && pieces[p].end <= domain_.col_begin);
          });
      found_.clear();
      const std::size_t most_found = out_.most_intervals();
      for (; it != order.end() && pieces[*it].base == wanted && pieces[*it].begin < domain_.col_end;
           ++it) {
        add_columns(pieces[*it].begin, pieces[*it].end);
        if (found_.size() > most_found) return false;
      }
      return append(begin, end);
    });
  }

 private:
  template <class Visit>
  std::optional<Region> for_each_row_piece(Visit&& visit) {
    const std::size_t first = rows_.find(domain_.row_begin);
    const std::size_t last = rows_.find(domain_.row_end - 1) + 1;
    out_.reserve(last - first);
    for (std::size_t i = first; i < last; ++i) {
      const LinearPiece& piece = rows_.pieces()[i];
      if (!piece.is_defined) return std::nullopt;
      if (!visit(std::max<std::int64_t>(piece.begin, domain_.row_begin),
                 std::min<std::int64_t>(piece.end, domain_.row_end), piece)) {
        return std::nullopt;
      }
    }
    return std::move(out_);
  }

  // Adds columns [begin, end) of the domain to found_, after those found before.
  void add_columns(std::int64_t begin, std::int64_t end) {
    begin = std::max(begin, domain_.col_begin);
    end = std::min(end, domain_.col_end);
    if (begin >= end) return;
    if (!found_.empty() && found_.back().hi_base == begin) {
      found_.back().hi_base = end;
    } else {
      found_.push_back(constant_interval(begin, end));
    }
  }

  bool append(std::int64_t begin, std::int64_t end) {
    out_.append(begin, end, found_);
    return out_.is_within_budget() && effort_.spend(1 + found_.size());
  }

  bool spend(std::size_t work) {
    work_ += work;
    return work_ <= kMaxWork && effort_.spend(work);
  }

  // For rows [begin, end), the columns with col_sign * cols(y) < t.
  bool less_constant(std::int64_t begin, std::int64_t end, std::int64_t t) {
    find_columns_below(t);
    return failed_ ? false : append(begin, end);
  }

  // Sets found_ to the columns of the domain with col_sign * cols(y) < t.
  void find_columns_below(std::int64_t t) {
    found_.clear();
    const auto& pieces = cols_.pieces();
    const auto value = [&](const LinearPiece& p) { return col_sign_ * p.base; };
    if (is_monotone_) {
      const auto first = pieces.begin() + static_cast<std::ptrdiff_t>(first_col_);
      const auto last = pieces.begin() + static_cast<std::ptrdiff_t>(last_col_);
      const auto border = std::partition_point(
          first, last, [&](const LinearPiece& p) { return is_rising_ == (value(p) < t); });
      if (is_rising_) {
        if (border != first) add_columns(domain_.col_begin, std::prev(border)->end);
      } else if (border != last) {
        add_columns(border->begin, domain_.col_end);
      }
      return;
    }
    failed_ = failed_ || !spend(last_col_ - first_col_);
    if (failed_) return;
    const std::size_t most_found = out_.most_intervals();
    for (std::size_t c = first_col_; c < last_col_;) {
      const std::size_t asked = std::min(last_col_, c + kPiecesAtOnce);
      for (; c < asked; ++c) {
        const LinearPiece& p = pieces[c];
        const std::int64_t base = col_sign_ * p.base, slope = col_sign_ * p.slope;
        if (slope == 0) {
          if (base < t) add_columns(p.begin, p.end);
        } else if (slope > 0) {  // y < (t - base) / slope
          add_columns(p.begin, std::min<std::int64_t>(p.end, ceil_quotient(t - base, slope)));
        } else {  // y > (base - t) / -slope
          add_columns(std::max<std::int64_t>(p.begin, floor_quotient(base - t, -slope) + 1), p.end);
        }
      }
      failed_ = found_.size() > most_found;
      if (failed_) return;
    }
  }

  // Rows [begin, end) where the row part is linear and there is one linear column piece.
  bool less_linear(std::int64_t begin, std::int64_t end, const LinearPiece& m) {
    return less_linear(begin, end, m, cols_.pieces()[first_col_], out_);
  }

  bool less_linear(std::int64_t begin, std::int64_t end, const LinearPiece& m, const LinearPiece& p,
                   Region& out) {
    const std::int64_t t = limit_ - row_sign_ * m.base - col_sign_ * p.base;  // ms * x + ns * y < t
    const std::int64_t ms = row_sign_ * m.slope, ns = col_sign_ * p.slope;
    const std::int64_t col_begin = std::max<std::int64_t>(p.begin, domain_.col_begin);
    const std::int64_t col_end = std::min<std::int64_t>(p.end, domain_.col_end);
    const Region columns = Region::rectangle({begin, end, col_begin, col_end});
    if (ns == 0) {
      const std::int64_t border = ms > 0
                                      ? ceil_quotient(t, ms)
                                      : floor_quotient(-t, -ms) + 1;  // x < t / ms, or x > -t / -ms
      const AffineInterval all = constant_interval(col_begin, col_end);
      if (ms > 0) {
        out.append(begin, std::clamp(border, begin, end), {&all, 1});
      } else {
        out.append(std::clamp(border, begin, end), end, {&all, 1});
      }
      return true;
    }
    if (ms % ns != 0 || std::abs(ms / ns) > INT32_MAX / 2)
      return less_by_row(begin, end, m, p, out);
    // y < hi or y >= lo, without a bound on the other side; intersection clips it to the domain.
    const auto slope = static_cast<std::int32_t>(-ms / ns);
    AffineInterval half;
    if (ns > 0) {
      const std::int64_t far =
          std::min(col_begin, ceil_quotient(t, ns) + std::min(slope * begin, slope * (end - 1)));
      half = {far - 1, ceil_quotient(t, ns), 0, slope};
    } else {
      const std::int64_t lo = floor_quotient(-t, -ns) + 1;
      const std::int64_t far = std::max(col_end, lo + std::max(slope * begin, slope * (end - 1)));
      half = {lo, far + 1, slope, 0};
    }
    Region open;
    open.append(begin, end, {&half, 1});
    auto cut = combine(open, columns, kIntersection, effort_);
    if (!cut) return false;
    for (const RowBand& band : cut->bands()) out.append(*cut, band);
    return true;
  }

  // Goes row by row where bounds are not linear in the row (2 * k < q).
  bool less_by_row(std::int64_t begin, std::int64_t end, const LinearPiece& m, const LinearPiece& p,
                   Region& out) {
    if (!spend(static_cast<std::size_t>(end - begin))) return false;
    const std::int64_t base = col_sign_ * p.base, slope = col_sign_ * p.slope;
    for (std::int64_t x = begin; x < end; ++x) {
      const std::int64_t t = limit_ - row_sign_ * m.at(x);
      found_.clear();
      if (slope > 0) {
        add_columns(p.begin, std::min<std::int64_t>(p.end, ceil_quotient(t - base, slope)));
      } else {
        add_columns(std::max<std::int64_t>(p.begin, floor_quotient(base - t, -slope) + 1), p.end);
      }
      out.append(x, x + 1, found_);
    }
    return true;
  }

  // A linear row part against a step function: the columns below change only at a few rows.
  bool less_thresholds(std::int64_t begin, std::int64_t end, const LinearPiece& m) {
    const auto& pieces = cols_.pieces();
    thresholds_.clear();
    const std::size_t num_cols = last_col_ - first_col_;
    const std::size_t most = std::min(num_cols, static_cast<std::size_t>(end - begin));
    if (!spend(is_monotone_ ? num_cols : num_cols * most)) return false;
    const std::int64_t ms = row_sign_ * m.slope;
    for (std::size_t c = first_col_; c < last_col_; ++c) {
      const std::int64_t t =
          limit_ - row_sign_ * m.base - col_sign_ * pieces[c].base;  // ms * x < t
      const std::int64_t border = ms > 0 ? ceil_quotient(t, ms) : floor_quotient(-t, -ms) + 1;
      if (border > begin && border < end) thresholds_.push_back(border);
    }
    std::sort(thresholds_.begin(), thresholds_.end());
    thresholds_.erase(std::unique(thresholds_.begin(), thresholds_.end()), thresholds_.end());
    thresholds_.push_back(end);
    for (const std::int64_t next : thresholds_) {
      if (!less_constant(begin, next, limit_ - row_sign_ * m.at(begin))) return false;
      begin = next;
    }
    return true;
  }

  // Goes piece by piece where both sides have few pieces, some of them linear.
  bool less_union(std::int64_t begin, std::int64_t end, const LinearPiece& m) {
    if (last_col_ - first_col_ > 64) return false;
    Region all;
    for (std::size_t c = first_col_; c < last_col_; ++c) {
      Region one;
      if (!less_linear(begin, end, m, cols_.pieces()[c], one)) return false;
      auto sum = combine(all, one, kUnion, effort_);
      if (!sum) return false;
      all = std::move(*sum);
    }
    for (const RowBand& band : all.bands()) out_.append(all, band);
    return out_.is_within_budget();
  }

  const Piecewise& rows_;
  const int row_sign_;
  const Piecewise& cols_;
  const int col_sign_;
  const std::int64_t limit_;
  const Rectangle domain_;
  IntervalEffort& effort_;
  std::size_t first_col_, last_col_;  // pieces of cols_ that meet the domain
  bool is_defined_ = true, has_slopes_ = false, is_monotone_ = false, is_rising_ = false,
       failed_ = false;
  std::size_t work_ = 0;
  Region out_;
  std::vector<AffineInterval> found_;
  std::vector<std::int64_t> thresholds_;
};

}  // namespace

std::optional<Region> less_region(const Piecewise& rows, int row_sign, const Piecewise& cols,
                                  int col_sign, std::int64_t limit, const Rectangle& domain,
                                  IntervalEffort& effort) {
  if (domain.is_empty()) return Region{};
  return RelationSolver(rows, row_sign, cols, col_sign, limit, domain, effort).less();
}

std::optional<Region> equal_region(const Piecewise& rows, int row_sign, const Piecewise& cols,
                                   int col_sign, std::int64_t value, const Rectangle& domain,
                                   IntervalEffort& effort) {
  if (domain.is_empty()) return Region{};
  if (rows.is_step_function() && cols.is_step_function()) {
    return RelationSolver(rows, row_sign, cols, col_sign, value, domain, effort).equal_join();
  }
  auto at_most = less_region(rows, row_sign, cols, col_sign, value + 1, domain, effort);
  if (!at_most) return std::nullopt;
  auto below = less_region(rows, row_sign, cols, col_sign, value, domain, effort);
  if (!below) return std::nullopt;
  return combine(*at_most, *below, kDifference, effort);
}

}  // namespace fdma
