// Set operations on row bands: no blocks, no tiles, no cells.
#pragma once

#include <cstdint>
#include <optional>

#include "fdma/formats/row_bands.hpp"

namespace fdma {

/// A Boolean operation as the bits that it has for (a, b) = 00, 01, 10, 11, at bit 2 * a + b.
using TruthTable = unsigned;

constexpr bool holds(TruthTable table, bool a, bool b) {
  return (table >> (2 * int{a} + int{b}) & 1u) != 0;
}

/// The cells for which the operation holds of the cells of a and b, whose lengths are equal.
/// Cost: O((bands + crossings of their bounds) * intervals of a row).
RowBands combine_bands(TruthTable table, const RowBands& a, const RowBands& b);

/// Cell (q, k) of the result, of the lengths given, is cell (q - dq, k - dk) of `mask`, false where
/// that does not exist: shifts, and crops by negative distances.
RowBands move_bands(const RowBands& mask, std::int64_t dq, std::int64_t dk, std::int64_t q_len,
                    std::int64_t kv_len);

/// Cell (k, q) of the result is cell (q, k) of `mask`. Nothing if a bound moves by other than 0 or
/// 1 key a row, or if so many bands meet in a key that their list would be long.
/// Cost: O(intervals * log + bands of the result * intervals in each).
std::optional<RowBands> transpose_bands(const RowBands& mask);

}  // namespace fdma
