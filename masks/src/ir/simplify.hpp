// Simplification of programs to one canonical form. The rules are in ir/builder.cpp (values),
// linear.cpp (comparisons of sums) and logic.cpp (conditions).
//
// No rule changes the value of the root at any cell, nor the set of undefined cells.
//
// Canonical form, which the engines may rely on
// ---------------------------------------------
// - The root is the last node; nodes are in post-order from the root (children before parents in
//   operand order), no dead nodes, equal nodes are one node. A program without cells (q_len or
//   kv_len 0) is `boolean 0`.
// - Only the root may be a `boolean`, unless a where_condition or a loop holds one.
// - Constants are folded. A node of constants whose result would be undefined (7 // 0, an overflow,
//   a lookup outside the table) stays as it is, because an error message names it as the cause.
// - Comparisons that ranges over the whole domain decide are folded if both sides are defined.
// - add, mul, min, max, bit_and, bit_or, bit_xor and the logical operators have their operands in
//   one order. So have equal and not_equal where they are not separated (below). A constant operand
//   comes second; x - 5 is add(x, -5).
// - Two inequalities of the same terms joined by & or | are one: causal & window(w) is two
//   comparisons, not three.
// - logical_not stands only before test, logical_and, logical_or, logical_xor, where_condition,
//   any_of and all_of: a negated comparison is the opposite comparison.
// - The bound of any_of and all_of is a `constant` above 0. Loop ids are numbered from 0 by first
//   occurrence. Loops of one depth and bound may share an id, nested ones never do.
// - Leading constant indices of a lookup or test are removed (the table is the slice).
//
// Comparisons of sums. Where both sides are sums of terms (a coefficient times a node that is not a
// sum itself) and ranges prove that no sum overflows, the comparison is separated:
//
//     terms that mention k   <=  |  <  |  ==  |  !=   terms that do not mention k  +  constant
//
// With K = the terms that mention k, the first one positive, and Q = the others, this is one of
//
//     less_equal(K, Q + c)      less_equal(Q + c, K)      equal(K, Q + c)      not_equal(K, Q + c)
//     less(K, Q) for K <= Q - 1        less(Q, K) for Q + 1 <= K
//
// Without K (row conditions) the first term of Q is positive and the constant stands alone:
// less_equal(Q, c), less_equal(c, Q), equal(Q, c). Without Q it is less_equal(K, c) and so on. A
// common factor of all coefficients is divided out. Q + c is written in the order of the terms,
// positive ones first: `q + 5`, `2 * q - t[q] + 5`, `5 - q`. If a term of K also mentions q, the
// shape is the same, but it is not separable (node_mentions tells).
//
//     causal                      k <= q + (kv_len - q_len)
//     pos - k < w                 q + (c - w + 1) <= k
//     abs(q - k) <= 300           k <= q + 300  &  q - 300 <= k        (or, for >=, an or)
//     (q - k) % 4 == 1            k % 4 == (q + 3) % 4
//     t[pos] == t[k]              t[k] == t[q + c]
//
// (x) % n == r is separated the same way: mod(K, n) == mod(Q + c, n), for constants n > 0 and r,
// where both K and Q have terms.
#pragma once

#include <optional>

#include "fdma/masks/mask_ir.hpp"

namespace fdma {

/// The program in canonical form. Idempotent.
///
/// Cost        linear in the nodes, plus a pass over each table that is looked up (its range)
IrProgram simplify(const IrProgram& program);

/// The program with its loops written out, inner ones first, as far as this adds at most
/// `most_nodes` nodes; the other loops stay. Only the nodes that mention a loop's variable are
/// copied. Equal to canonical form but for the order of the terms; nothing for a program without
/// loops.
std::optional<IrProgram> unroll(const IrProgram& program, std::int64_t most_nodes);

}  // namespace fdma
