// The possible values of a node over a box of cells, and three-valued logic on sets of outcomes.
#pragma once

#include <array>
#include <cstdint>

namespace fdma {

/// The outcomes that a condition may have, as a set of flags.
using Outcomes = std::uint8_t;
inline constexpr Outcomes kTrue = 1;
inline constexpr Outcomes kFalse = 2;
inline constexpr Outcomes kUndefined = 4;

/// The range of a node over a box.
///
/// Integers    lo, hi: bounds of the defined values
/// Conditions  0 is false and 1 is true
/// Invariants  lo > hi (always lo = 1, hi = 0) means that no cell has a defined value
struct NodeRange {
  std::int64_t lo = 1;
  std::int64_t hi = 0;
  bool may_be_undefined = false;

  bool has_values() const { return lo <= hi; }
  bool is_constant() const { return lo == hi && !may_be_undefined; }
  bool can_be_true() const { return hi > 0; }
  bool can_be_false() const { return lo <= 0; }
  /// The outcomes of a condition.
  Outcomes outcomes() const {
    return static_cast<Outcomes>((can_be_true() ? kTrue : 0) | (can_be_false() ? kFalse : 0) |
                                 (may_be_undefined ? kUndefined : 0));
  }
  static NodeRange of_value(std::int64_t value) { return {value, value, false}; }
  static NodeRange undefined() { return {1, 0, true}; }
  static NodeRange of_outcomes(Outcomes outcomes) {
    const bool is_undefined = (outcomes & kUndefined) != 0;
    if ((outcomes & (kTrue | kFalse)) == 0) return {1, 0, is_undefined};
    return {(outcomes & kFalse) != 0 ? 0 : 1, (outcomes & kTrue) != 0 ? 1 : 0, is_undefined};
  }
  friend bool operator==(const NodeRange&, const NodeRange&) = default;
};

/// The union of two ranges of one node.
inline NodeRange unite(const NodeRange& a, const NodeRange& b) {
  const bool may_be_undefined = a.may_be_undefined || b.may_be_undefined;
  if (!a.has_values()) return {b.lo, b.hi, may_be_undefined};
  if (!b.has_values()) return {a.lo, a.hi, may_be_undefined};
  return {a.lo < b.lo ? a.lo : b.lo, a.hi > b.hi ? a.hi : b.hi, may_be_undefined};
}

namespace outcome_tables {

/// A function of single outcomes, applied to every combination of two sets.
template <class Function>
constexpr std::array<Outcomes, 64> combine_sets(Function function) {
  std::array<Outcomes, 64> table{};
  for (unsigned a = 0; a < 8; ++a) {
    for (unsigned b = 0; b < 8; ++b) {
      unsigned result = 0;
      for (unsigned x = 1; x <= 4; x *= 2) {
        for (unsigned y = 1; y <= 4; y *= 2) {
          if ((a & x) != 0 && (b & y) != 0) result |= function(x, y);
        }
      }
      table[a * 8 + b] = static_cast<Outcomes>(result);
    }
  }
  return table;
}

inline constexpr auto kAnd = combine_sets([](unsigned x, unsigned y) -> unsigned {
  if (x == kFalse || y == kFalse) return kFalse;
  return x == kTrue && y == kTrue ? kTrue : kUndefined;
});
inline constexpr auto kOr = combine_sets([](unsigned x, unsigned y) -> unsigned {
  if (x == kTrue || y == kTrue) return kTrue;
  return x == kFalse && y == kFalse ? kFalse : kUndefined;
});
inline constexpr auto kXor = combine_sets([](unsigned x, unsigned y) -> unsigned {
  if (x == kUndefined || y == kUndefined) return kUndefined;
  return x == y ? kFalse : kTrue;
});

}  // namespace outcome_tables

/// The outcomes that a & b, a | b, a ^ b, ~a and where(condition, a, b) can have.
inline Outcomes and_outcomes(Outcomes a, Outcomes b) { return outcome_tables::kAnd[a * 8u + b]; }
inline Outcomes or_outcomes(Outcomes a, Outcomes b) { return outcome_tables::kOr[a * 8u + b]; }
inline Outcomes xor_outcomes(Outcomes a, Outcomes b) { return outcome_tables::kXor[a * 8u + b]; }
inline Outcomes not_outcomes(Outcomes a) {
  return static_cast<Outcomes>((a & kUndefined) | ((a & kTrue) != 0 ? kFalse : 0) |
                               ((a & kFalse) != 0 ? kTrue : 0));
}
inline Outcomes where_outcomes(Outcomes condition, Outcomes a, Outcomes b) {
  return static_cast<Outcomes>((condition & kUndefined) | ((condition & kTrue) != 0 ? a : 0) |
                               ((condition & kFalse) != 0 ? b : 0));
}

}  // namespace fdma
