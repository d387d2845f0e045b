// The possible values of a subexpression on a box of cells: an interval of integers or a set of
// truth values, and whether it may be undefined.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "fdma/masks/mask_ir.hpp"

namespace fdma::box {

/// Possible outcomes on a box, as a set of flags.
using Outcomes = std::uint8_t;
inline constexpr Outcomes kTrue = 1;       ///< conditions
inline constexpr Outcomes kFalse = 2;      ///< conditions
inline constexpr Outcomes kUndefined = 4;  ///< integers and conditions
inline constexpr Outcomes kInteger = 8;    ///< integers: may be defined, a value in [lo, hi]

/// Bounds of one node on a box. They cover every value that occurs, and perhaps more.
struct BoxValue {
  std::int64_t lo = 0;
  std::int64_t hi = -1;
  Outcomes outcomes = 0;

  bool may_be(Outcomes outcome) const { return (outcomes & outcome) != 0; }
  static BoxValue integers(std::int64_t lo, std::int64_t hi) { return {lo, hi, kInteger}; }
  static BoxValue condition(unsigned outcomes) { return {0, -1, static_cast<Outcomes>(outcomes)}; }
};

/// The union of two bounds of one node.
BoxValue unite(const BoxValue& a, const BoxValue& b);

/// The least and greatest entry of each integer table, found when first asked for.
class TableRanges {
 public:
  explicit TableRanges(std::span<const IrTable> tables) : tables_(tables), known_(tables.size()) {}
  const IrTable& table(std::int64_t index) const {
    return tables_[static_cast<std::size_t>(index)];
  }
  std::span<const IrTable> tables() const { return tables_; }
  /// Not thread-safe; must be called once for every table before the object is shared.
  BoxValue range(std::int64_t index);
  /// The range if it was found before, else every integer.
  BoxValue known_range(std::int64_t index) const;

 private:
  std::span<const IrTable> tables_;
  std::vector<BoxValue> known_;
};

/// Truth tables on outcome sets: the outcomes that a & b, a | b and a ^ b can have.
Outcomes and_outcomes(Outcomes a, Outcomes b);
Outcomes or_outcomes(Outcomes a, Outcomes b);
Outcomes xor_outcomes(Outcomes a, Outcomes b);
Outcomes not_outcomes(Outcomes a);
Outcomes where_outcomes(Outcomes condition, Outcomes a, Outcomes b);

/// Bounds of a node from the bounds of its children. Not for q, k and loop, whose bounds the caller
/// knows. For any_of / all_of, child 1 is the body over all values of the loop variable.
BoxValue range_of(const IrNode& node, const BoxValue* children, const TableRanges& tables);

}  // namespace fdma::box
