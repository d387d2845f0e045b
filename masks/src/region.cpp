// Set algebra on bands.
//
// Two sets are combined band by band. Where two linear bounds of a common band cross, the band is
// cut, so that in each part the bounds come in one order; one merge of the two sorted lists at the
// first row then holds for all rows of the part. Example: [0, q + 1) and [5, 9) over rows [0, 20)
// is cut at rows 4, 5, 8 and 9.
#include "region.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace fdma {
namespace {

// The budget of a region: many intervals are fine if they are spread over as many bands (one or a
// few per row), a few bands of many intervals too; beyond that bitmaps are the better form.
constexpr std::size_t kFreeIntervals = std::size_t{1} << 15;
constexpr std::size_t kIntervalsPerBand = 8;
constexpr std::size_t kMaxPairs = std::size_t{1} << 14;

std::int64_t floor_div(std::int64_t a, std::int64_t b) {  // b > 0
  const std::int64_t quotient = a / b;
  return quotient - (a % b < 0 ? 1 : 0);
}
std::int64_t ceil_quotient(std::int64_t a, std::int64_t b) { return -floor_div(-a, b); }

std::int64_t lo_at(const AffineInterval& i, std::int64_t row) {
  return i.lo_base + i.lo_slope * row;
}
std::int64_t hi_at(const AffineInterval& i, std::int64_t row) {
  return i.hi_base + i.hi_slope * row;
}

AffineInterval constant_interval(std::int64_t begin, std::int64_t end) {
  return {begin, end, 0, 0};
}

}  // namespace

bool Region::is_within_budget() const {
  return intervals_.size() <= kFreeIntervals + kIntervalsPerBand * bands_.size();
}

void Region::reserve(std::size_t num_bands) {
  bands_.reserve(num_bands);
  intervals_.reserve(num_bands);
}

Region Region::rectangle(const Rectangle& cells) {
  Region region;
  if (!cells.is_empty()) {
    const AffineInterval interval = constant_interval(cells.col_begin, cells.col_end);
    region.append(cells.row_begin, cells.row_end, {&interval, 1});
  }
  return region;
}

void Region::append(std::int64_t row_begin, std::int64_t row_end,
                    std::span<const AffineInterval> added) {
  if (row_begin >= row_end || added.empty()) return;
  if (!bands_.empty()) {
    RowBand& last = bands_.back();
    if (row_end - row_begin == 1 && last.q_end - last.q_begin == 1 && added.size() == 1 &&
        last.num_intervals == 1 && !(added[0] == intervals_.back())) {  // by far the most frequent
      bands_.push_back({static_cast<std::int32_t>(row_begin), static_cast<std::int32_t>(row_end),
                        static_cast<std::int64_t>(intervals_.size()), 1});
      intervals_.push_back(added[0]);
      return;
    }
    if (last.q_end == row_begin && last.num_intervals == static_cast<std::int32_t>(added.size())) {
      AffineInterval* mine = intervals_.data() + last.first_interval;
      if (std::equal(added.begin(), added.end(), mine)) {
        last.q_end = static_cast<std::int32_t>(row_end);
        return;
      }
      const bool is_one_row = row_end - row_begin == 1,
                 was_one_row = last.q_end - last.q_begin == 1;
      // A band of one row takes the linear form of its neighbour if that passes through its bounds.
      const auto passes = [](std::span<const AffineInterval> line,
                             std::span<const AffineInterval> points, std::int64_t row) {
        for (std::size_t i = 0; i < line.size(); ++i) {
          if (lo_at(line[i], row) != lo_at(points[i], row) ||
              hi_at(line[i], row) != hi_at(points[i], row)) {
            return false;
          }
        }
        return true;
      };
      const std::span<const AffineInterval> before{mine, added.size()};
      if (is_one_row && !was_one_row && passes(before, added, row_begin)) {
        last.q_end = static_cast<std::int32_t>(row_end);
        return;
      }
      if (was_one_row && !is_one_row && passes(added, before, last.q_begin)) {
        std::copy(added.begin(), added.end(), mine);
        last.q_end = static_cast<std::int32_t>(row_end);
        return;
      }
    }
  }
  bands_.push_back({static_cast<std::int32_t>(row_begin), static_cast<std::int32_t>(row_end),
                    static_cast<std::int64_t>(intervals_.size()),
                    static_cast<std::int32_t>(added.size())});
  intervals_.insert(intervals_.end(), added.begin(), added.end());
}

RowBands Region::to_row_bands(std::int64_t q_len, std::int64_t kv_len) && {
  return {q_len, kv_len, std::move(bands_), std::move(intervals_)};
}

Rectangle Region::hull(const RowBand& band) const {
  const auto list = intervals(band);
  const std::int64_t first = band.q_begin, last = band.q_end - 1;
  return {first, last + 1, std::min(lo_at(list.front(), first), lo_at(list.front(), last)),
          std::max(hi_at(list.back(), first), hi_at(list.back(), last))};
}

Rectangle Region::hull() const {
  if (bands_.empty()) return {0, 0, 0, 0};
  Rectangle all = hull(bands_.front());
  for (const RowBand& band : bands_) {
    const Rectangle one = hull(band);
    all.col_begin = std::min(all.col_begin, one.col_begin);
    all.col_end = std::max(all.col_end, one.col_end);
    all.row_end = one.row_end;
  }
  return all;
}

namespace {

class Combiner {
 public:
  Combiner(const Region& a, const Region& b, SetOp op) : a_(a), b_(b), op_(op) {}

  std::optional<Region> run() {
    out_.reserve(std::max(a_.bands().size(), b_.bands().size()));
    auto a = a_.bands().begin(), b = b_.bands().begin();
    const auto a_end = a_.bands().end(), b_end = b_.bands().end();
    std::int64_t row = 0;
    while (a != a_end || b != b_end) {
      if (a == a_end && op_ != SetOp::unite && op_ != SetOp::symmetric_difference) break;
      if (b == b_end && op_ == SetOp::intersection) break;
      // The next stretch of rows in which each side has one band or none.
      std::int64_t begin = INT64_MAX;
      if (a != a_end) begin = std::min<std::int64_t>(begin, a->q_begin);
      if (b != b_end) begin = std::min<std::int64_t>(begin, b->q_begin);
      begin = std::max(begin, row);
      std::int64_t end = INT64_MAX;
      std::span<const AffineInterval> left, right;
      if (a != a_end) {
        if (a->q_begin <= begin) {
          left = a_.intervals(*a);
          end = std::min<std::int64_t>(end, a->q_end);
        } else {
          end = std::min<std::int64_t>(end, a->q_begin);
        }
      }
      if (b != b_end) {
        if (b->q_begin <= begin) {
          right = b_.intervals(*b);
          end = std::min<std::int64_t>(end, b->q_end);
        } else {
          end = std::min<std::int64_t>(end, b->q_begin);
        }
      }
      if (!add(begin, end, left, right)) return std::nullopt;
      row = end;
      if (a != a_end && a->q_end <= row) ++a;
      if (b != b_end && b->q_end <= row) ++b;
    }
    return std::move(out_);
  }

 private:
  bool add(std::int64_t begin, std::int64_t end, std::span<const AffineInterval> left,
           std::span<const AffineInterval> right) {
    if (right.empty()) {
      if (op_ != SetOp::intersection) out_.append(begin, end, left);
    } else if (left.empty()) {
      if (op_ == SetOp::unite || op_ == SetOp::symmetric_difference) out_.append(begin, end, right);
    } else if (end - begin == 1 && left.size() == 1 && right.size() == 1 &&
               op_ == SetOp::intersection) {
      const AffineInterval both =
          constant_interval(std::max(lo_at(left[0], begin), lo_at(right[0], begin)),
                            std::min(hi_at(left[0], begin), hi_at(right[0], begin)));
      if (both.lo_base < both.hi_base) out_.append(begin, end, {&both, 1});
    } else {
      cuts_.clear();
      if (end - begin > 1 && !find_cuts(begin, end, left, right)) return false;
      cuts_.push_back(end);
      for (const std::int64_t cut : cuts_) {
        merge(begin, left, right);
        out_.append(begin, cut, merged_);
        begin = cut;
      }
    }
    return out_.is_within_budget();
  }

  // Rows at which the order of a bound of `left` and one of `right` changes.
  bool find_cuts(std::int64_t begin, std::int64_t end, std::span<const AffineInterval> left,
                 std::span<const AffineInterval> right) {
    const auto has_one_slope = [](std::span<const AffineInterval> list, std::int32_t slope) {
      return std::all_of(list.begin(), list.end(), [&](const AffineInterval& i) {
        return i.lo_slope == slope && i.hi_slope == slope;
      });
    };
    const std::int32_t slope = left.front().lo_slope;
    if (has_one_slope(left, slope) && has_one_slope(right, slope)) return true;
    if (left.size() * right.size() > kMaxPairs) return false;
    const auto cross = [&](std::int64_t base_a, std::int64_t slope_a, std::int64_t base_b,
                           std::int64_t slope_b) {
      std::int64_t d0 = base_a - base_b, ds = slope_a - slope_b;
      if (ds == 0) return;
      if (ds < 0) {
        d0 = -d0;
        ds = -ds;
      }
      const std::int64_t row = ceil_quotient(-d0, ds);  // first row with d >= 0
      if (row > begin && row < end) cuts_.push_back(row);
      if (d0 + ds * row == 0 && row + 1 > begin && row + 1 < end) cuts_.push_back(row + 1);
    };
    for (const AffineInterval& a : left) {
      for (const AffineInterval& b : right) {
        cross(a.lo_base, a.lo_slope, b.lo_base, b.lo_slope);
        cross(a.lo_base, a.lo_slope, b.hi_base, b.hi_slope);
        cross(a.hi_base, a.hi_slope, b.lo_base, b.lo_slope);
        cross(a.hi_base, a.hi_slope, b.hi_base, b.hi_slope);
      }
    }
    std::sort(cuts_.begin(), cuts_.end());
    cuts_.erase(std::unique(cuts_.begin(), cuts_.end()), cuts_.end());
    return true;
  }

  bool holds(bool in_left, bool in_right) const {
    switch (op_) {
      case SetOp::intersection:
        return in_left && in_right;
      case SetOp::unite:
        return in_left || in_right;
      case SetOp::difference:
        return in_left && !in_right;
      case SetOp::symmetric_difference:
        return in_left != in_right;
    }
    return false;
  }

  // merged_ = left op right at `row`, in the linear form of the bounds that remain.
  void merge(std::int64_t row, std::span<const AffineInterval> left,
             std::span<const AffineInterval> right) {
    merged_.clear();
    std::size_t l = 0, r = 0;  // 2 * interval + (0 for its begin, 1 for its end)
    bool is_open = false;
    AffineInterval current{};
    while (l < 2 * left.size() || r < 2 * right.size()) {
      const auto bound = [row](std::span<const AffineInterval> list, std::size_t i) {
        if (i >= 2 * list.size()) return INT64_MAX;
        return i % 2 == 0 ? lo_at(list[i / 2], row) : hi_at(list[i / 2], row);
      };
      const std::int64_t x = bound(left, l), y = bound(right, r);
      const AffineInterval& source = x <= y ? left[l / 2] : right[r / 2];
      const bool is_begin = (x <= y ? l : r) % 2 == 0;
      const std::int64_t base = is_begin ? source.lo_base : source.hi_base;
      const std::int32_t slope = is_begin ? source.lo_slope : source.hi_slope;
      if (x <= y) ++l;
      if (y <= x) ++r;
      const bool now = holds(l % 2 == 1, r % 2 == 1);
      if (now == is_open) continue;
      is_open = now;
      if (now) {
        current.lo_base = base;
        current.lo_slope = slope;
      } else {
        current.hi_base = base;
        current.hi_slope = slope;
        merged_.push_back(current);
      }
    }
  }

  const Region& a_;
  const Region& b_;
  const SetOp op_;
  Region out_;
  std::vector<std::int64_t> cuts_;
  std::vector<AffineInterval> merged_;
};

}  // namespace

std::optional<Region> combine(const Region& a, const Region& b, SetOp op) {
  return Combiner(a, b, op).run();
}

namespace {

// Solves row_sign * rows(x) + col_sign * cols(y) < limit (or == limit) over a rectangle, one piece
// of `rows` at a time.
class RelationSolver {
 public:
  RelationSolver(const Piecewise& rows, int row_sign, const Piecewise& cols, int col_sign,
                 std::int64_t limit, const Rectangle& domain)
      : rows_(rows),
        row_sign_(row_sign),
        cols_(cols),
        col_sign_(col_sign),
        limit_(limit),
        domain_(domain) {
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

  // Both sides step functions: a join by value.
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
      for (; it != order.end() && pieces[*it].base == wanted && pieces[*it].begin < domain_.col_end;
           ++it) {
        add_columns(pieces[*it].begin, pieces[*it].end);
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

  // Adds columns [begin, end) of the domain to found_, after those before.
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
    return out_.is_within_budget();
  }

  bool spend(std::size_t work) {
    work_ += work;
    return work_ <= (std::size_t{1} << 22);
  }

  // Rows [begin, end): columns with col_sign * cols(y) < t.
  bool less_constant(std::int64_t begin, std::int64_t end, std::int64_t t) {
    find_columns_below(t);
    return failed_ ? false : append(begin, end);
  }

  // found_ = columns of the domain with col_sign * cols(y) < t.
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
    for (std::size_t c = first_col_; c < last_col_; ++c) {
      const LinearPiece& p = pieces[c];
      const std::int64_t base = col_sign_ * p.base, slope = col_sign_ * p.slope;
      if (slope == 0) {
        if (base < t) add_columns(p.begin, p.end);
      } else if (slope > 0) {  // y < (t - base) / slope
        add_columns(p.begin, std::min<std::int64_t>(p.end, ceil_quotient(t - base, slope)));
      } else {  // y > (base - t) / -slope
        add_columns(std::max<std::int64_t>(p.begin, floor_div(base - t, -slope) + 1), p.end);
      }
    }
  }

  // Rows [begin, end) with a linear row part, one linear column piece.
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
      const std::int64_t border =
          ms > 0 ? ceil_quotient(t, ms) : floor_div(-t, -ms) + 1;  // x < t / ms, or x > -t / -ms
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
    // y < hi or y >= lo, unbounded on the other side; cut to the domain by intersection.
    const auto slope = static_cast<std::int32_t>(-ms / ns);
    AffineInterval half;
    if (ns > 0) {
      const std::int64_t far =
          std::min(col_begin, ceil_quotient(t, ns) + std::min(slope * begin, slope * (end - 1)));
      half = {far - 1, ceil_quotient(t, ns), 0, slope};
    } else {
      const std::int64_t lo = floor_div(-t, -ns) + 1;
      const std::int64_t far = std::max(col_end, lo + std::max(slope * begin, slope * (end - 1)));
      half = {lo, far + 1, slope, 0};
    }
    Region open;
    open.append(begin, end, {&half, 1});
    auto cut = combine(open, columns, SetOp::intersection);
    if (!cut) return false;
    for (const RowBand& band : cut->bands()) out.append(*cut, band);
    return true;
  }

  // Bounds that are not linear in the row (2 * k < q): row by row.
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
        add_columns(std::max<std::int64_t>(p.begin, floor_div(base - t, -slope) + 1), p.end);
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
      const std::int64_t border = ms > 0 ? ceil_quotient(t, ms) : floor_div(-t, -ms) + 1;
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

  // Few pieces on both sides, some linear: piece by piece.
  bool less_union(std::int64_t begin, std::int64_t end, const LinearPiece& m) {
    if (last_col_ - first_col_ > 64) return false;
    Region all;
    for (std::size_t c = first_col_; c < last_col_; ++c) {
      Region one;
      if (!less_linear(begin, end, m, cols_.pieces()[c], one)) return false;
      auto sum = combine(all, one, SetOp::unite);
      if (!sum) return false;
      all = std::move(*sum);
    }
    for (const RowBand& band : all.bands()) out_.append(all, band);
    return true;
  }

  const Piecewise& rows_;
  const int row_sign_;
  const Piecewise& cols_;
  const int col_sign_;
  const std::int64_t limit_;
  const Rectangle domain_;
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
                                  int col_sign, std::int64_t limit, const Rectangle& domain) {
  if (domain.is_empty()) return Region{};
  return RelationSolver(rows, row_sign, cols, col_sign, limit, domain).less();
}

std::optional<Region> equal_region(const Piecewise& rows, int row_sign, const Piecewise& cols,
                                   int col_sign, std::int64_t value, const Rectangle& domain) {
  if (domain.is_empty()) return Region{};
  if (rows.is_step_function() && cols.is_step_function()) {
    return RelationSolver(rows, row_sign, cols, col_sign, value, domain).equal_join();
  }
  auto at_most = less_region(rows, row_sign, cols, col_sign, value + 1, domain);
  if (!at_most) return std::nullopt;
  auto below = less_region(rows, row_sign, cols, col_sign, value, domain);
  if (!below) return std::nullopt;
  return combine(*at_most, *below, SetOp::difference);
}

}  // namespace fdma
