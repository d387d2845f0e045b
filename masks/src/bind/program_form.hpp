// How operators of the language are written by operators of programs: once for nodes and once for
// known values.
#pragma once

#include <span>

#include "fdma/masks/mask_expr.hpp"
#include "fdma/masks/mask_ir.hpp"
#include "ir/range.hpp"

namespace fdma {

/// The operator of programs of the same name. Not for operators of the language alone.
constexpr IrOp program_operator(ExprOp op) {
  switch (op) {
#define FDMA_OPERATOR(name, ...) \
  case ExprOp::name:             \
    return IrOp::name;
#include "fdma/masks/operators.def"
    default:
      return IrOp::constant;
  }
}

/// Writes an operator with operands. `on_conditions` tells of ==, != and where whether they work on
/// conditions. `make(op, operands..)` gives the value of one operator of programs with one to three
/// operands, `constant(n)` that of a number.
///
/// Example     greater with operands a and b gives make(IrOp::less, b, a)
template <class Value, class Make, class Constant>
Value write_operator(ExprOp op, bool on_conditions, std::span<const Value> x, Make&& make,
                     Constant&& constant) {
  switch (op) {
    case ExprOp::negate:
      return make(IrOp::sub, constant(0), x[0]);
    case ExprOp::clamp:
      return make(IrOp::min, make(IrOp::max, x[0], x[1]), x[2]);
    case ExprOp::where:
      return make(on_conditions ? IrOp::where_condition : IrOp::where, x[0], x[1], x[2]);
    case ExprOp::greater:
      return make(IrOp::less, x[1], x[0]);
    case ExprOp::greater_equal:
      return make(IrOp::less_equal, x[1], x[0]);
    case ExprOp::equal:
      if (on_conditions) return make(IrOp::logical_not, make(IrOp::logical_xor, x[0], x[1]));
      return make(IrOp::equal, x[0], x[1]);
    case ExprOp::not_equal:
      return make(on_conditions ? IrOp::logical_xor : IrOp::not_equal, x[0], x[1]);
    default:
      break;
  }
  const IrOp own = program_operator(op);
  if (x.size() == 1) return make(own, x[0]);
  Value result = make(own, x[0], x[1]);
  for (const Value& next : x.subspan(2)) result = make(own, result, next);
  return result;
}

/// The value of an operator on known operands.
Folded fold_expr(ExprOp op, bool on_conditions, std::span<const Folded> operands);

}  // namespace fdma
