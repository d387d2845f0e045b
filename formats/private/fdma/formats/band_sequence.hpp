// Builds RowBands from the top row down; rows that continue a band join it.
#pragma once

#include <cstdint>
#include <span>

#include "fdma/formats/row_bands.hpp"

namespace fdma {

/// Steeper bounds are not worth a band; row_bands.cpp handles them row by row.
inline constexpr std::int64_t kMaxBandSlope = 16;

inline std::int64_t lo_at(const AffineInterval& interval, std::int64_t q) {
  return interval.lo_base + interval.lo_slope * q;
}
inline std::int64_t hi_at(const AffineInterval& interval, std::int64_t q) {
  return interval.hi_base + interval.hi_slope * q;
}

class BandSequence {
 public:
  BandSequence(std::int64_t q_len, std::int64_t kv_len) {
    bands_.q_len = q_len;
    bands_.kv_len = kv_len;
  }

  /// Appends query rows [q_begin, q_end), below all rows so far, that see `intervals`. The
  /// invariants of RowBands must hold in each of these rows. Without intervals nothing happens. A
  /// single row joins any band that its bounds continue, whatever its slopes.
  void add(std::int64_t q_begin, std::int64_t q_end, std::span<const AffineInterval> intervals);

  /// True if rows [q_begin, q_end) are the last ones and in one band.
  bool is_one_band(std::int64_t q_begin, std::int64_t q_end) const;
  /// Continues the last band to row `q_end`.
  void extend(std::int64_t q_end) { bands_.bands.back().q_end = static_cast<std::int32_t>(q_end); }
  /// The intervals of the last band.
  std::span<const AffineInterval> last_intervals() const;

  std::size_t num_bands() const { return bands_.bands.size(); }
  std::size_t num_intervals() const { return bands_.intervals.size(); }
  RowBands& bands() { return bands_; }
  const RowBands& bands() const { return bands_; }
  /// Reserves memory for this number of bands of one interval each.
  void reserve(std::size_t num_bands) {
    bands_.bands.reserve(num_bands);
    bands_.intervals.reserve(num_bands);
  }
  void clear();

 private:
  bool join(std::int64_t q_begin, std::int64_t q_end, std::span<const AffineInterval> intervals);

  RowBands bands_;
};

}  // namespace fdma
