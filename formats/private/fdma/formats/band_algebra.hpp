// Set operations on row bands: no blocks, no tiles, no cells. For the sources of the libraries alone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "fdma/formats/row_bands.hpp"

namespace fdma {

/// A Boolean operation of two operands. Bit 2 * a + b is its value for (a, b).
using TruthTable = unsigned;

constexpr bool holds(TruthTable table, bool a, bool b) {
  return (table >> (2 * int{a} + int{b}) & 1u) != 0;
}

/// The operations whose result is empty where both operands are.
inline constexpr TruthTable kIntersection = 0b1000, kUnion = 0b1110, kDifference = 0b0100,
                            kSymmetricDifference = 0b0110;

/// Asked while bands are combined whether the work may go on.
class BandBudget {
 public:
  virtual ~BandBudget() = default;
  /// False ends the work. `steps` bounds were merged since the last call; `result` are the bands
  /// so far.
  virtual bool spend(std::size_t steps, const RowBands& result) = 0;
};

/// The cells where the operation holds for the cells of a and b, which have equal lengths.
/// Cost: O((bands + crossings of their bounds) * intervals of a row).
RowBands combine_bands(TruthTable table, const RowBands& a, const RowBands& b);
/// The same for one of the operations named above, whatever the lengths; nothing if the budget ends
/// the work. Intervals may reach beyond the keys.
std::optional<RowBands> combine_bands(TruthTable table, const RowBands& a, const RowBands& b,
                                      BandBudget& budget);

/// Moves a mask: cell (q, k) of the result is cell (q - dq, k - dk) of `mask`, and false where that
/// does not exist. The result has the lengths given. Serves shifts, and crops by negative
/// distances.
RowBands move_bands(const RowBands& mask, std::int64_t dq, std::int64_t dk, std::int64_t q_len,
                    std::int64_t kv_len);

/// Transposes a mask: cell (k, q) of the result is cell (q, k) of `mask`. The result is empty if a
/// bound moves by other than 0 or 1 key a row, or if very many bands meet in one key.
/// Cost: O(intervals * log + bands of the result * intervals in each).
std::optional<RowBands> transpose_bands(const RowBands& mask);

}  // namespace fdma
