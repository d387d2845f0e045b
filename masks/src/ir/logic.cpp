// Conditions. All rules hold in three-valued logic: `a & a = a` and `a & false = false` always,
// `a & ~a = false` only where a is defined.
#include <algorithm>
#include <utility>

#include "ir/builder.hpp"

namespace fdma {

// Whether a conjunction has x == y with x always defined and at least c, which decides c <= y: where
// y is undefined, so is x == y. Example: t[k] == t[pos] & 0 <= t[k] decides 0 <= t[pos].
bool IrBuilder::is_implied(IrId inequality, IrId conjunction) const {
  constexpr int kMostOperands = 8;
  const IrNode wanted = node(inequality);
  if (wanted.op != IrOp::less_equal || !is_constant(wanted.children[0])) return false;
  const std::int64_t least = node(wanted.children[0]).value;
  IrId open[kMostOperands] = {conjunction}, operands[kMostOperands];
  int num_open = 1, num_operands = 0;
  while (num_open > 0) {
    const IrId id = open[--num_open];
    const IrNode made = node(id);
    if (made.op != IrOp::logical_and) {
      operands[num_operands++] = id;
      continue;
    }
    if (num_open + num_operands + 2 > kMostOperands) return false;
    open[num_open++] = made.children[0];
    open[num_open++] = made.children[1];
  }
  const auto is_at_least = [&](IrId x) {
    if (range(x).lo >= least) return true;
    return std::any_of(operands, operands + num_operands, [&](IrId id) {
      const IrNode made = node(id);
      return made.op == IrOp::less_equal && made.children[1] == x &&
             is_constant(made.children[0]) && node(made.children[0]).value >= least;
    });
  };
  return std::any_of(operands, operands + num_operands, [&](IrId id) {
    const IrNode made = node(id);
    if (made.op != IrOp::equal) return false;
    for (int side = 0; side < 2; ++side) {
      const IrId x = made.children[1 - side];
      if (made.children[side] == wanted.children[1] && is_defined(x) && is_at_least(x)) return true;
    }
    return false;
  });
}

// a & b or a | b. `stop` is the value that decides (false for &, true for |).
IrId IrBuilder::conjunction(IrOp op, IrId a, IrId b) {
  const bool stop = op == IrOp::logical_or;
  const IrOp dual = stop ? IrOp::logical_and : IrOp::logical_or;
  if (node(b).op == IrOp::boolean) std::swap(a, b);
  if (node(a).op == IrOp::boolean) return is_boolean(a, stop) ? a : b;
  if (a == b) return a;
  if (!stop && is_implied(b, a)) return a;
  if (!stop && is_implied(a, b)) return b;
  for (const auto& [x, y] : {std::pair{a, b}, std::pair{b, a}}) {
    if (is_negation_of(x, y) && is_defined(y)) return boolean(stop);
    const IrNode inner = node(y);  // absorption: x & (x | z) = x; x & (x & z) = x & z
    if (inner.op != dual && inner.op != op) continue;
    if (inner.children[0] == x || inner.children[1] == x) return inner.op == dual ? x : y;
    if (inner.op == dual) continue;
    for (int i = 0; i < 2; ++i) {  // x & (y & z) with x & y one inequality
      const IrId merged = merge_inequalities(op, x, inner.children[i]);
      if (merged == inner.children[i]) return y;
      if (merged >= 0) return conjunction(op, merged, inner.children[1 - i]);
    }
  }
  const IrId merged = merge_inequalities(op, a, b);
  if (merged >= 0) return merged;
  return raw_commutative(op, a, b);
}

IrId IrBuilder::exclusive_or(IrId a, IrId b) {
  bool is_negated = false;
  for (IrId* operand : {&a, &b}) {
    if (node(*operand).op == IrOp::logical_not) {
      is_negated = !is_negated;
      *operand = node(*operand).children[0];
    }
  }
  if (node(b).op == IrOp::boolean) std::swap(a, b);
  IrId made = -1;
  if (node(a).op == IrOp::boolean) {
    is_negated ^= is_boolean(a, true);
    made = b;
  } else if (a == b && is_defined(a)) {
    made = boolean(false);
  } else {
    made = raw_commutative(IrOp::logical_xor, a, b);
  }
  return is_negated ? negation(made) : made;
}

// A negated comparison is the opposite comparison; undefined cells stay undefined. The operands are
// in canonical form already, and so is the opposite except for its constant.
IrId IrBuilder::negation(IrId a) {
  const IrNode inner = node(a);
  switch (inner.op) {
    case IrOp::boolean:
      return boolean(inner.value == 0);
    case IrOp::logical_not:
      return inner.children[0];
    case IrOp::less:
      return compare(IrOp::less_equal, inner.children[1], inner.children[0]);
    case IrOp::less_equal:
      return compare(IrOp::less, inner.children[1], inner.children[0]);
    case IrOp::equal:
      return raw(IrOp::not_equal, inner.children[0], inner.children[1]);
    case IrOp::not_equal:
      return raw(IrOp::equal, inner.children[0], inner.children[1]);
    default:
      return raw(IrOp::logical_not, a);
  }
}

// where(c, a, b). If c is defined and a branch is constant, it is made of and, or, not. If c is
// undefined, `where` is undefined, but `c & a` may be defined.
IrId IrBuilder::condition_choice(IrId c, IrId a, IrId b) {
  if (node(c).op == IrOp::boolean) return node(c).value != 0 ? a : b;
  if (node(c).op == IrOp::logical_not) {
    c = node(c).children[0];
    std::swap(a, b);
  }
  if (is_boolean(a, true) && is_boolean(b, false)) return c;
  if (is_boolean(a, false) && is_boolean(b, true)) return negation(c);
  if (is_defined(c)) {
    if (a == b) return a;
    if (is_boolean(a, false)) return conjunction(IrOp::logical_and, negation(c), b);
    if (is_boolean(a, true)) return conjunction(IrOp::logical_or, c, b);
    if (is_boolean(b, false)) return conjunction(IrOp::logical_and, c, a);
    if (is_boolean(b, true)) return conjunction(IrOp::logical_or, negation(c), a);
  }
  return raw(IrOp::where_condition, c, a, b);
}

}  // namespace fdma
