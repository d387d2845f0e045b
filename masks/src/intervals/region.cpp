// Set algebra on bands.
//
// Two sets are combined band by band. Where two linear bounds of a common band cross, the band is
// cut, so that in each part the bounds have one order. One merge of the two sorted lists at the
// first row then holds for all rows of the part. Example: [0, q + 1) and [5, 9) over rows [0, 20)
// is cut at rows 4, 5, 8 and 9.
#include "intervals/region.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>

namespace fdma {
namespace {

// The budget of a region. Many intervals are fine if they are spread over as many bands (one or a
// few per row), and so are a few bands of many intervals; beyond that bitmaps are the better form.
constexpr std::size_t kFreeIntervals = std::size_t{1} << 15;
constexpr std::size_t kIntervalsPerBand = 8;
constexpr std::size_t kMaxPairs = std::size_t{1} << 14;

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

std::size_t Region::most_intervals() const {
  return kFreeIntervals + kIntervalsPerBand * (bands_.size() + 1);
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
  Combiner(const Region& a, const Region& b, SetOp op, IntervalEffort& effort)
      : a_(a), b_(b), op_(op), effort_(effort) {}

  std::optional<Region> run() {
    out_.reserve(std::max(a_.bands().size(), b_.bands().size()));
    auto a = a_.bands().begin(), b = b_.bands().begin();
    const auto a_end = a_.bands().end(), b_end = b_.bands().end();
    std::int64_t row = 0;
    while (a != a_end || b != b_end) {
      if (a == a_end && op_ != SetOp::unite && op_ != SetOp::symmetric_difference) break;
      if (b == b_end && op_ == SetOp::intersection) break;
      // The next range of rows in which each side has one band or none.
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
    if (!effort_.spend(1 + left.size() + right.size())) return false;
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
        if (!out_.is_within_budget() || !effort_.spend(left.size() + right.size())) return false;
      }
    }
    return out_.is_within_budget();
  }

  // Finds the rows at which the order of a bound of `left` and one of `right` changes.
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
    if (!effort_.spend(left.size() * right.size())) return false;
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

  // Sets merged_ to left op right at `row`, in the linear form of the bounds that remain.
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
  IntervalEffort& effort_;
  Region out_;
  std::vector<std::int64_t> cuts_;
  std::vector<AffineInterval> merged_;
};

}  // namespace

std::optional<Region> combine(const Region& a, const Region& b, SetOp op, IntervalEffort& effort) {
  return Combiner(a, b, op, effort).run();
}

}  // namespace fdma
