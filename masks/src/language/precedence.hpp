// The precedence of the operators of the mask language.
#pragma once

#include "fdma/masks/mask_expr.hpp"

namespace fdma {

/// From loose to tight; k <= q & q - k < 4 needs no parentheses.
enum Precedence : int {
  kNoOperator = 0,
  kOr,
  kXor,
  kAnd,
  kNot,
  kCompare,
  kAdd,
  kMul,
  kNegate,
  kAtom,  ///< numbers, names, calls, indexed tables
};

constexpr Precedence precedence_of(ExprOp op) {
  switch (op) {
    case ExprOp::logical_or:
      return kOr;
    case ExprOp::logical_xor:
      return kXor;
    case ExprOp::logical_and:
      return kAnd;
    case ExprOp::logical_not:
      return kNot;
    case ExprOp::less:
    case ExprOp::less_equal:
    case ExprOp::equal:
    case ExprOp::not_equal:
    case ExprOp::greater_equal:
    case ExprOp::greater:
      return kCompare;
    case ExprOp::add:
    case ExprOp::sub:
      return kAdd;
    case ExprOp::mul:
    case ExprOp::floor_div:
    case ExprOp::mod:
      return kMul;
    case ExprOp::negate:
      return kNegate;
    default:
      return kAtom;
  }
}

}  // namespace fdma
