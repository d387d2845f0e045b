#include <algorithm>
#include <cstdlib>

#include "fdma/formats/band_sequence.hpp"

namespace fdma {

void BandSequence::clear() {
  bands_.bands.clear();
  bands_.intervals.clear();
}

std::span<const AffineInterval> BandSequence::last_intervals() const {
  const RowBand& last = bands_.bands.back();
  return std::span(bands_.intervals).last(static_cast<std::size_t>(last.num_intervals));
}

bool BandSequence::is_one_band(std::int64_t q_begin, std::int64_t q_end) const {
  if (bands_.bands.empty()) return false;
  const RowBand& last = bands_.bands.back();
  return last.q_begin <= q_begin && last.q_end == q_end;
}

// Joins rows to the last band. Two or more rows have slopes; a single row has only values.
bool BandSequence::join(std::int64_t q_begin, std::int64_t q_end,
                        std::span<const AffineInterval> intervals) {
  if (bands_.bands.empty()) return false;
  RowBand& last = bands_.bands.back();
  if (last.q_end != q_begin || static_cast<std::size_t>(last.num_intervals) != intervals.size()) {
    return false;
  }
  const auto mine = bands_.intervals.end() - last.num_intervals;
  const bool is_row = q_end - q_begin == 1, was_row = last.q_end - last.q_begin == 1;
  const auto all = [&](auto&& agrees) {
    return std::equal(intervals.begin(), intervals.end(), mine, agrees);
  };
  const auto meets_at = [](std::int64_t q) {
    return [q](const AffineInterval& a, const AffineInterval& b) {
      return lo_at(a, q) == lo_at(b, q) && hi_at(a, q) == hi_at(b, q);
    };
  };
  if (!is_row && !was_row) {
    if (!all(std::equal_to<>())) return false;
  } else if (is_row && !was_row) {
    if (!all(meets_at(q_begin))) return false;
  } else if (!is_row) {
    if (!all(meets_at(last.q_begin))) return false;
    std::copy(intervals.begin(), intervals.end(), mine);
  } else {
    const std::int64_t q = last.q_begin;
    const bool is_steep = !all([q](const AffineInterval& next, const AffineInterval& before) {
      return std::abs(lo_at(next, q + 1) - lo_at(before, q)) <= kMaxBandSlope &&
             std::abs(hi_at(next, q + 1) - hi_at(before, q)) <= kMaxBandSlope;
    });
    if (is_steep) return false;
    for (std::size_t i = 0; i < intervals.size(); ++i) {
      AffineInterval& before = mine[static_cast<std::ptrdiff_t>(i)];
      const std::int64_t lo = lo_at(before, q), hi = hi_at(before, q);
      before.lo_slope = static_cast<std::int32_t>(lo_at(intervals[i], q + 1) - lo);
      before.hi_slope = static_cast<std::int32_t>(hi_at(intervals[i], q + 1) - hi);
      before.lo_base = lo - before.lo_slope * q;
      before.hi_base = hi - before.hi_slope * q;
    }
  }
  last.q_end = static_cast<std::int32_t>(q_end);
  return true;
}

void BandSequence::add(std::int64_t q_begin, std::int64_t q_end,
                       std::span<const AffineInterval> intervals) {
  if (intervals.empty() || q_begin >= q_end || join(q_begin, q_end, intervals)) return;
  bands_.bands.push_back({static_cast<std::int32_t>(q_begin), static_cast<std::int32_t>(q_end),
                          std::ssize(bands_.intervals),
                          static_cast<std::int32_t>(intervals.size())});
  bands_.intervals.insert(bands_.intervals.end(), intervals.begin(), intervals.end());
}

}  // namespace fdma
