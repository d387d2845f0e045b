// The arithmetic of programs: for each FDMA_ARITHMETIC row of operators.def, the structure of its
// name with
//
//   value     the operator on integers a and b (abs reads a alone), with the reason where it has
//             none (undefined cells in docs/spec-language.md); it writes `out` iff there is none
//   wrapped   the same without the reason, for operands that are known to have a value; a form that
//             vectorises
//   is_total  every pair of operands has a value
//   range     bounds of the values for operands in two ranges that have values; may_be_undefined
//             tells of what this operator itself leaves undefined
//
// An operator without a `wrapped` of its own is computed by `value`.
#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "fdma/base/interval.hpp"
#include "fdma/masks/mask_ir.hpp"
#include "ir/node_range.hpp"

namespace fdma {

/// The reason why an integer operator has no value.
enum class Defect : std::uint8_t { none, overflow, divisor, shift };

/// The largest shift count of the language.
inline constexpr std::int64_t kMaxShift = 62;

/// a % b for b > 0, in [0, b): the remainder of floor_quotient.
constexpr std::int64_t floor_remainder(std::int64_t a, std::int64_t b) {
  const std::int64_t r = a % b;
  return r < 0 ? r + b : r;
}

namespace arithmetic {

constexpr std::uint64_t as_unsigned(std::int64_t x) { return static_cast<std::uint64_t>(x); }
constexpr std::int64_t as_signed(std::uint64_t x) { return static_cast<std::int64_t>(x); }

struct add {
  static constexpr bool is_total = false;
  static Defect value(std::int64_t a, std::int64_t b, std::int64_t& out) {
    return __builtin_add_overflow(a, b, &out) ? Defect::overflow : Defect::none;
  }
  static std::int64_t wrapped(std::int64_t a, std::int64_t b) {
    return as_signed(as_unsigned(a) + as_unsigned(b));
  }
  static NodeRange range(const NodeRange& a, const NodeRange& b);
};

struct sub {
  static constexpr bool is_total = false;
  static Defect value(std::int64_t a, std::int64_t b, std::int64_t& out) {
    return __builtin_sub_overflow(a, b, &out) ? Defect::overflow : Defect::none;
  }
  static std::int64_t wrapped(std::int64_t a, std::int64_t b) {
    return as_signed(as_unsigned(a) - as_unsigned(b));
  }
  static NodeRange range(const NodeRange& a, const NodeRange& b);
};

struct mul {
  static constexpr bool is_total = false;
  static Defect value(std::int64_t a, std::int64_t b, std::int64_t& out) {
    return __builtin_mul_overflow(a, b, &out) ? Defect::overflow : Defect::none;
  }
  static std::int64_t wrapped(std::int64_t a, std::int64_t b) {
    return as_signed(as_unsigned(a) * as_unsigned(b));
  }
  static NodeRange range(const NodeRange& a, const NodeRange& b);
};

struct floor_div {
  static constexpr bool is_total = false;
  static Defect value(std::int64_t a, std::int64_t b, std::int64_t& out) {
    if (b <= 0) return Defect::divisor;
    out = floor_quotient(a, b);
    return Defect::none;
  }
  static NodeRange range(const NodeRange& a, const NodeRange& b);
};

struct mod {
  static constexpr bool is_total = false;
  static Defect value(std::int64_t a, std::int64_t b, std::int64_t& out) {
    if (b <= 0) return Defect::divisor;
    out = floor_remainder(a, b);
    return Defect::none;
  }
  static NodeRange range(const NodeRange& a, const NodeRange& b);
};

struct min {
  static constexpr bool is_total = true;
  static Defect value(std::int64_t a, std::int64_t b, std::int64_t& out) {
    out = wrapped(a, b);
    return Defect::none;
  }
  static std::int64_t wrapped(std::int64_t a, std::int64_t b) { return a < b ? a : b; }
  static NodeRange range(const NodeRange& a, const NodeRange& b);
};

struct max {
  static constexpr bool is_total = true;
  static Defect value(std::int64_t a, std::int64_t b, std::int64_t& out) {
    out = wrapped(a, b);
    return Defect::none;
  }
  static std::int64_t wrapped(std::int64_t a, std::int64_t b) { return a > b ? a : b; }
  static NodeRange range(const NodeRange& a, const NodeRange& b);
};

struct abs {
  static constexpr bool is_total = false;
  static Defect value(std::int64_t a, std::int64_t, std::int64_t& out) {
    if (a == std::numeric_limits<std::int64_t>::min()) return Defect::overflow;
    out = a < 0 ? -a : a;
    return Defect::none;
  }
  static std::int64_t wrapped(std::int64_t a, std::int64_t) {
    return as_signed(a < 0 ? 0 - as_unsigned(a) : as_unsigned(a));
  }
  static NodeRange range(const NodeRange& a, const NodeRange& b);
};

struct shl {
  static constexpr bool is_total = false;
  static Defect value(std::int64_t a, std::int64_t b, std::int64_t& out) {
    if (b < 0 || b > kMaxShift) return Defect::shift;
    const std::int64_t shifted = wrapped(a, b);
    if ((shifted >> b) != a) return Defect::overflow;
    out = shifted;
    return Defect::none;
  }
  static std::int64_t wrapped(std::int64_t a, std::int64_t b) {
    return as_signed(as_unsigned(a) << (b & 63));
  }
  static NodeRange range(const NodeRange& a, const NodeRange& b);
};

struct shr {
  static constexpr bool is_total = false;
  static Defect value(std::int64_t a, std::int64_t b, std::int64_t& out) {
    if (b < 0 || b > kMaxShift) return Defect::shift;
    out = a >> b;
    return Defect::none;
  }
  static std::int64_t wrapped(std::int64_t a, std::int64_t b) { return a >> (b & 63); }
  static NodeRange range(const NodeRange& a, const NodeRange& b);
};

struct bit_and {
  static constexpr bool is_total = true;
  static Defect value(std::int64_t a, std::int64_t b, std::int64_t& out) {
    out = a & b;
    return Defect::none;
  }
  static std::int64_t wrapped(std::int64_t a, std::int64_t b) { return a & b; }
  static NodeRange range(const NodeRange& a, const NodeRange& b);
};

struct bit_or {
  static constexpr bool is_total = true;
  static Defect value(std::int64_t a, std::int64_t b, std::int64_t& out) {
    out = a | b;
    return Defect::none;
  }
  static std::int64_t wrapped(std::int64_t a, std::int64_t b) { return a | b; }
  static NodeRange range(const NodeRange& a, const NodeRange& b);
};

struct bit_xor {
  static constexpr bool is_total = true;
  static Defect value(std::int64_t a, std::int64_t b, std::int64_t& out) {
    out = a ^ b;
    return Defect::none;
  }
  static std::int64_t wrapped(std::int64_t a, std::int64_t b) { return a ^ b; }
  static NodeRange range(const NodeRange& a, const NodeRange& b);
};

}  // namespace arithmetic

/// The value of an arithmetic operator. Writes `out` iff the result is Defect::none.
///
/// Example     apply_integer(IrOp::floor_div, -7, 2, out) == Defect::none, out == -4
Defect apply_integer(IrOp op, std::int64_t a, std::int64_t b, std::int64_t& out);

/// The range of an arithmetic operator for operands of any range (abs reads the first alone).
NodeRange arithmetic_range(IrOp op, const NodeRange* operands);

}  // namespace fdma
