// The value of one operator on integers, with the reason where it has none (undefined cells in
// docs/spec-language.md).
#pragma once

#include <cstdint>

#include "fdma/masks/mask_ir.hpp"

namespace fdma::box {

/// The reason why an integer operator has no value.
enum class Defect : std::uint8_t { none, overflow, divisor, shift };

/// The largest shift count of the language.
inline constexpr std::int64_t kMaxShift = 62;

/// Computes an integer operator (add .. bit_xor) on operands a and b (abs ignores b). Writes `out`
/// iff the result is Defect::none.
///
/// Example     apply_integer(IrOp::floor_div, -7, 2, out) == Defect::none, out == -4
Defect apply_integer(IrOp op, std::int64_t a, std::int64_t b, std::int64_t& out);

/// a % b for b > 0, in [0, b): the remainder of floor_quotient.
constexpr std::int64_t floor_remainder(std::int64_t a, std::int64_t b) {
  const std::int64_t r = a % b;
  return r < 0 ? r + b : r;
}

}  // namespace fdma::box
