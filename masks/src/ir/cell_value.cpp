#include "ir/cell_value.hpp"

#include <algorithm>
#include <limits>

namespace fdma::box {

Defect apply_integer(IrOp op, std::int64_t a, std::int64_t b, std::int64_t& out) {
  switch (op) {
    case IrOp::add:
      return __builtin_add_overflow(a, b, &out) ? Defect::overflow : Defect::none;
    case IrOp::sub:
      return __builtin_sub_overflow(a, b, &out) ? Defect::overflow : Defect::none;
    case IrOp::mul:
      return __builtin_mul_overflow(a, b, &out) ? Defect::overflow : Defect::none;
    case IrOp::floor_div:
      if (b <= 0) return Defect::divisor;
      out = floor_quotient(a, b);
      return Defect::none;
    case IrOp::mod:
      if (b <= 0) return Defect::divisor;
      out = floor_remainder(a, b);
      return Defect::none;
    case IrOp::min:
      out = std::min(a, b);
      return Defect::none;
    case IrOp::max:
      out = std::max(a, b);
      return Defect::none;
    case IrOp::abs:
      if (a == std::numeric_limits<std::int64_t>::min()) return Defect::overflow;
      out = a < 0 ? -a : a;
      return Defect::none;
    case IrOp::shl: {
      if (b < 0 || b > kMaxShift) return Defect::shift;
      const auto shifted = static_cast<std::int64_t>(static_cast<std::uint64_t>(a) << b);
      if ((shifted >> b) != a) return Defect::overflow;
      out = shifted;
      return Defect::none;
    }
    case IrOp::shr:
      if (b < 0 || b > kMaxShift) return Defect::shift;
      out = a >> b;
      return Defect::none;
    case IrOp::bit_and:
      out = a & b;
      return Defect::none;
    case IrOp::bit_or:
      out = a | b;
      return Defect::none;
    case IrOp::bit_xor:
      out = a ^ b;
      return Defect::none;
    default:
      return Defect::overflow;  // unreachable: not an integer operator
  }
}

}  // namespace fdma::box
