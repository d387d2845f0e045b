// The keys that single rows of a parametric mask see.
#pragma once

#include <array>
#include <cstdint>

#include "fdma/formats/parametric_mask.hpp"
#include "fdma/formats/row_bands.hpp"

namespace fdma {

/// The keys of one query row: `count` (at most 2) ranges, ascending, with a gap between.
struct RowKeys {
  int count = 0;
  std::array<std::int64_t, 2> begin{};
  std::array<std::int64_t, 2> end{};
  friend bool operator==(const RowKeys&, const RowKeys&) = default;
};

/// The keys of row q. Cost: O(log documents).
RowKeys row_keys(const ParametricMask& mask, std::int64_t q);

/// The mask as bands. Cost: O(documents that meet a query row).
RowBands bands_from_parametric(const ParametricMask& mask);

/// Collects bands from ranges of rows and joins ranges that continue a band; slopes are 0 or 1.
class BandWriter {
 public:
  BandWriter(std::int64_t q_len, std::int64_t kv_len);
  /// Appends query rows [q_begin, q_end), given by the keys of the first row and whether each bound
  /// moves by one key a row (`slope_begin`, `slope_end`, 0 or 1). Rows ascend; rows without keys
  /// may be skipped.
  void add(std::int64_t q_begin, std::int64_t q_end, const RowKeys& keys,
           const std::array<std::int32_t, 2>& slope_begin,
           const std::array<std::int32_t, 2>& slope_end);
  void add_row(std::int64_t q, const RowKeys& keys) { add(q, q + 1, keys, {}, {}); }
  /// Number of bands, and first row of the last one.
  std::size_t num_bands() const { return bands_.bands.size(); }
  std::int64_t last_band_begin() const { return bands_.bands.back().q_begin; }
  /// Extends the last band, which has more than one row, by `rows` rows.
  void extend(std::int64_t rows) { bands_.bands.back().q_end += static_cast<std::int32_t>(rows); }
  RowBands finish() { return std::move(bands_); }

 private:
  bool join(std::int64_t q_begin, std::int64_t q_end, const RowKeys& keys,
            const std::array<std::int32_t, 2>& slope_begin,
            const std::array<std::int32_t, 2>& slope_end);
  RowBands bands_;
};

}  // namespace fdma
