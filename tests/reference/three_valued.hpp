// The arithmetic of the mask language, one function per rule: 64-bit integers that may be
// undefined, and three-valued logic.
//
// This file is written to be compared with docs/spec-language.md line by line. It shares nothing
// with the compiler.
#pragma once

#include <cstdint>

namespace fdma::reference {

/// An integer, or a condition (0 or 1), or undefined.
struct Value {
  std::int64_t value = 0;
  bool is_defined = true;

  bool is_true() const { return is_defined && value != 0; }
  bool is_false() const { return is_defined && value == 0; }
};

inline constexpr Value kUndefined{0, false};

inline Value integer(std::int64_t x) { return {x, true}; }
inline Value condition(bool x) { return {x ? 1 : 0, true}; }

// Integers. Undefined operands and overflow make undefined results.

inline Value add(Value x, Value y) {
  Value sum;
  sum.is_defined =
      x.is_defined && y.is_defined && !__builtin_add_overflow(x.value, y.value, &sum.value);
  return sum;
}

inline Value sub(Value x, Value y) {
  Value difference;
  difference.is_defined =
      x.is_defined && y.is_defined && !__builtin_sub_overflow(x.value, y.value, &difference.value);
  return difference;
}

inline Value mul(Value x, Value y) {
  Value product;
  product.is_defined =
      x.is_defined && y.is_defined && !__builtin_mul_overflow(x.value, y.value, &product.value);
  return product;
}

inline Value negate(Value x) { return sub(integer(0), x); }

/// The quotient rounded down. It is undefined if the divisor is not positive.
inline Value floor_div(Value x, Value y) {
  if (!x.is_defined || !y.is_defined || y.value <= 0) return kUndefined;
  const std::int64_t quotient = x.value / y.value;
  return integer(x.value % y.value < 0 ? quotient - 1 : quotient);
}

/// The remainder in [0, y). It is undefined if the divisor is not positive.
inline Value mod(Value x, Value y) {
  if (!x.is_defined || !y.is_defined || y.value <= 0) return kUndefined;
  const std::int64_t remainder = x.value % y.value;
  return integer(remainder < 0 ? remainder + y.value : remainder);
}

inline Value min(Value x, Value y) {
  if (!x.is_defined || !y.is_defined) return kUndefined;
  return integer(x.value < y.value ? x.value : y.value);
}

inline Value max(Value x, Value y) {
  if (!x.is_defined || !y.is_defined) return kUndefined;
  return integer(x.value > y.value ? x.value : y.value);
}

inline Value abs(Value x) { return x.value < 0 ? negate(x) : x; }

inline Value clamp(Value x, Value lo, Value hi) { return min(max(x, lo), hi); }

inline Value shl(Value x, Value n) {
  if (!x.is_defined || !n.is_defined || n.value < 0 || n.value > 62) return kUndefined;
  return mul(x, integer(std::int64_t{1} << n.value));
}

inline Value shr(Value x, Value n) {
  if (!x.is_defined || !n.is_defined || n.value < 0 || n.value > 62) return kUndefined;
  return floor_div(x, integer(std::int64_t{1} << n.value));
}

inline Value bit_and(Value x, Value y) { return {x.value & y.value, x.is_defined && y.is_defined}; }
inline Value bit_or(Value x, Value y) { return {x.value | y.value, x.is_defined && y.is_defined}; }
inline Value bit_xor(Value x, Value y) { return {x.value ^ y.value, x.is_defined && y.is_defined}; }

// Comparisons.

inline Value less(Value x, Value y) {
  return {x.value < y.value ? 1 : 0, x.is_defined && y.is_defined};
}
inline Value less_equal(Value x, Value y) {
  return {x.value <= y.value ? 1 : 0, x.is_defined && y.is_defined};
}
inline Value equal(Value x, Value y) {
  return {x.value == y.value ? 1 : 0, x.is_defined && y.is_defined};
}

// Logic. False decides a conjunction and true decides a disjunction, whatever the other side is.

inline Value logical_not(Value x) { return {x.value != 0 ? 0 : 1, x.is_defined}; }

inline Value logical_and(Value x, Value y) {
  if (x.is_false() || y.is_false()) return condition(false);
  if (!x.is_defined || !y.is_defined) return kUndefined;
  return condition(true);
}

inline Value logical_or(Value x, Value y) {
  if (x.is_true() || y.is_true()) return condition(true);
  if (!x.is_defined || !y.is_defined) return kUndefined;
  return condition(false);
}

inline Value logical_xor(Value x, Value y) {
  if (!x.is_defined || !y.is_defined) return kUndefined;
  return condition((x.value != 0) != (y.value != 0));
}

/// lo <= x < hi.
inline Value within(Value lo, Value x, Value hi) {
  return logical_and(less_equal(lo, x), less(x, hi));
}

}  // namespace fdma::reference
