// Sums and comparisons of sums.
//
// A sum is a list of terms factor * atom and a constant, where an atom is any node that is not
// itself a sum. Sums are taken apart only through nodes that ranges prove free of overflow
// (is_exact). They are put together only if the same proof succeeds for every partial sum;
// otherwise the expression stays as it was written. Taking apart therefore never changes which
// cells are undefined, provided that no atom that may be undefined cancels out (settle refuses
// that).
//
// Comparisons then move every term that mentions k to one side and the rest to the other:
//     q + 3 - k < 5      k - q + 2 > 0      q - 1 <= k       all become      q + -1 <= k
// (simplify.hpp has the exact shape). Other forms are first turned into sums: |x| <= c becomes two
// comparisons, (q - k) % n == r compares two remainders, min and max that mix q and k are split.
#include <algorithm>
#include <cstddef>
#include <limits>
#include <numeric>
#include <utility>

#include "ir/arithmetic.hpp"
#include "ir/builder.hpp"

namespace fdma {
namespace {

__extension__ typedef __int128 Wide;

constexpr int kMaxTerms = 8;       // longer sums stay as written
constexpr int kMaxSplitDepth = 3;  // |..| and min / max inside one another

bool fits(Wide value) {
  return value >= std::numeric_limits<std::int64_t>::min() &&
         value <= std::numeric_limits<std::int64_t>::max();
}

Wide wide_floor_quotient(Wide a, Wide b) { return a / b - (a % b < 0 ? 1 : 0); }

}  // namespace

struct IrBuilder::Sum {
  Term terms[kMaxTerms];
  int num_terms = 0;
  Wide constant = 0;

  void negate() {
    for (int i = 0; i < num_terms; ++i) terms[i].factor = -terms[i].factor;
    constant = -constant;
  }
  Sum part(bool (*keep)(const IrBuilder&, IrId), const IrBuilder& builder, bool wanted) const {
    Sum result;
    for (int i = 0; i < num_terms; ++i)
      if (keep(builder, terms[i].atom) == wanted) result.terms[result.num_terms++] = terms[i];
    return result;
  }
};

// Adds factor * node to a sum. False if the sum has too many terms or factors are too large.
bool IrBuilder::collect(IrId id, std::int64_t factor, Sum& into) const {
  constexpr int kMaxOpen = 4 * kMaxTerms;
  Term open[kMaxOpen];
  int num_open = 0;
  open[num_open++] = {id, factor};
  while (num_open > 0) {
    const Term term = open[--num_open];
    const IrNode made = node(term.atom);
    if (made.op == IrOp::constant) {
      into.constant += Wide{term.factor} * made.value;
      if (!fits(into.constant)) return false;
      continue;
    }
    const bool is_exact = info_[static_cast<std::size_t>(term.atom)].is_exact;
    if (is_exact && (made.op == IrOp::add || made.op == IrOp::sub)) {
      if (num_open + 2 > kMaxOpen) return false;
      open[num_open++] = {made.children[0], term.factor};
      open[num_open++] = {made.children[1], made.op == IrOp::sub ? -term.factor : term.factor};
      continue;
    }
    std::int64_t both = 0;
    if (is_exact && made.op == IrOp::mul && is_constant(made.children[1]) &&
        !__builtin_mul_overflow(term.factor, node(made.children[1]).value, &both) &&
        both != std::numeric_limits<std::int64_t>::min()) {
      open[num_open++] = {made.children[0], both};
      continue;
    }
    Term* const end = into.terms + into.num_terms;
    Term* const same =
        std::find_if(into.terms, end, [&](const Term& t) { return t.atom == term.atom; });
    if (same == end) {
      if (into.num_terms == kMaxTerms) return false;
      into.terms[into.num_terms++] = term;
    } else if (__builtin_add_overflow(same->factor, term.factor, &same->factor) ||
               same->factor == std::numeric_limits<std::int64_t>::min()) {
      return false;
    }
  }
  return true;
}

// Drops terms that cancelled and orders the others. False if a term that may be undefined
// cancelled.
bool IrBuilder::settle(Sum& sum) const {
  int kept = 0;
  for (int i = 0; i < sum.num_terms; ++i) {
    if (sum.terms[i].factor != 0)
      sum.terms[kept++] = sum.terms[i];
    else if (!is_defined(sum.terms[i].atom))
      return false;
  }
  sum.num_terms = kept;
  std::sort(sum.terms, sum.terms + kept,
            [this](const Term& a, const Term& b) { return precedes(a.atom, b.atom); });
  return true;
}

// The node of one operation, or -1 if it might overflow.
IrId IrBuilder::exact(IrOp op, IrId a, IrId b) {
  if (a < 0 || b < 0) return -1;
  const IrId made = raw(op, a, b);
  if (is_constant(made)) return made;  // folded
  return info_[static_cast<std::size_t>(made)].is_exact ? made : -1;
}

// The node of a settled sum: positive terms, negative terms, constant; -1 if a partial sum might
// overflow.
IrId IrBuilder::build(const Sum& sum) {
  if (!fits(sum.constant)) return -1;
  const auto value = static_cast<std::int64_t>(sum.constant);
  IrId total = -1;
  for (const bool positive : {true, false}) {
    for (int i = 0; i < sum.num_terms; ++i) {
      const Term& term = sum.terms[i];
      if ((term.factor > 0) != positive) continue;
      const std::int64_t size = positive ? term.factor : -term.factor;
      const IrId scaled = size == 1 ? term.atom : exact(IrOp::mul, term.atom, constant(size));
      if (scaled < 0) return -1;
      if (total >= 0)
        total = exact(positive ? IrOp::add : IrOp::sub, total, scaled);
      else
        total = positive ? scaled : exact(IrOp::sub, constant(value), scaled);
      if (total < 0) return -1;
    }
  }
  if (total < 0) return constant(value);
  const bool constant_is_in =
      sum.terms[0].factor < 0 && std::none_of(sum.terms, sum.terms + sum.num_terms,
                                              [](const Term& term) { return term.factor > 0; });
  return constant_is_in || value == 0 ? total : exact(IrOp::add, total, constant(value));
}

IrId IrBuilder::sum(IrOp op, IrId a, IrId b) {
  if (is_value(b, 0)) return a;
  if (op == IrOp::add && is_value(a, 0)) return b;
  const IrId written = op == IrOp::add ? raw_commutative(op, a, b) : raw(op, a, b);
  if (!info_[static_cast<std::size_t>(written)].is_exact) return written;
  Sum both;
  if (!collect(a, 1, both) || !collect(b, op == IrOp::add ? 1 : -1, both) || !settle(both))
    return written;
  const IrId made = build(both);
  return made >= 0 ? made : written;
}

IrId IrBuilder::product(IrId a, IrId b) {
  if (is_constant(a)) std::swap(a, b);
  if (is_value(b, 1)) return a;
  const IrId written = raw_commutative(IrOp::mul, a, b);
  if (!is_constant(b) || node(b).value == std::numeric_limits<std::int64_t>::min() ||
      !info_[static_cast<std::size_t>(written)].is_exact)
    return written;
  Sum scaled;
  if (!collect(a, node(b).value, scaled) || !settle(scaled)) return written;
  const IrId made = build(scaled);
  return made >= 0 ? made : written;
}

// |x|, with the sign of a sum chosen so that its first term is positive.
IrId IrBuilder::absolute(IrId a) {
  const NodeRange r = range(a);
  if (!r.has_values()) return raw(IrOp::abs, a);
  if (r.lo >= 0) return a;
  Sum inside;
  if (collect(a, 1, inside) && settle(inside) && inside.num_terms > 0 &&
      (r.hi <= 0 || inside.terms[0].factor < 0)) {
    inside.negate();
    const IrId negated = build(inside);
    if (negated >= 0) return r.hi <= 0 ? negated : raw(IrOp::abs, negated);
  }
  return raw(IrOp::abs, a);
}

IrId IrBuilder::compare(IrOp op, IrId a, IrId b) {
  const IrId written =
      op == IrOp::equal || op == IrOp::not_equal ? raw_commutative(op, a, b) : raw(op, a, b);
  if (node(written).op == IrOp::boolean) return written;
  if (a == b && is_defined(a)) return boolean(op == IrOp::less_equal || op == IrOp::equal);
  for (const auto rule :
       {&IrBuilder::compare_from_bool, &IrBuilder::compare_abs, &IrBuilder::compare_extremum,
        &IrBuilder::compare_remainder, &IrBuilder::compare_sums}) {
    const IrId made = (this->*rule)(op, a, b);
    if (made >= 0) return made;
  }
  return written;
}

// int(c) against a constant is c, its negation, or a constant.
IrId IrBuilder::compare_from_bool(IrOp op, IrId a, IrId b) {
  const bool is_left = node(a).op == IrOp::from_bool;
  const IrId flag = is_left ? a : b, other = is_left ? b : a;
  if (node(flag).op != IrOp::from_bool || !is_constant(other)) return -1;
  const IrId c = node(flag).children[0];
  const auto outcome = [&](std::int64_t value) {
    const std::int64_t left = is_left ? value : node(other).value;
    const std::int64_t right = is_left ? node(other).value : value;
    return op == IrOp::less         ? left < right
           : op == IrOp::less_equal ? left <= right
                                    : (left == right) == (op == IrOp::equal);
  };
  if (outcome(0) == outcome(1)) return is_defined(c) ? boolean(outcome(0)) : -1;
  return outcome(1) ? c : negation(c);
}

// |x| <= y is  x <= y & -y <= x;  y <= |x| is  y <= x | x <= -y;  likewise the other comparisons.
IrId IrBuilder::compare_abs(IrOp op, IrId a, IrId b) {
  const bool is_left = node(a).op == IrOp::abs;
  const IrId size = is_left ? a : b, y = is_left ? b : a;
  if (node(size).op != IrOp::abs || split_depth_ >= kMaxSplitDepth) return -1;
  const IrId x = node(size).children[0];
  const bool is_equality = op == IrOp::equal || op == IrOp::not_equal;
  if (range(x).lo == std::numeric_limits<std::int64_t>::min() || !range(x).has_values() ||
      (is_equality && (!range(y).has_values() || range(y).lo < 0)))
    return -1;
  const IrId negated = exact(IrOp::sub, constant(0), y);
  if (negated < 0) return -1;
  const IrId minus_y = sum(IrOp::sub, constant(0), y);
  ++split_depth_;
  IrId made = -1;
  if (is_equality) {
    const IrId first = compare(op, x, y), second = compare(op, x, minus_y);
    made = conjunction(op == IrOp::equal ? IrOp::logical_or : IrOp::logical_and, first, second);
  } else if (is_left) {
    const IrId first = compare(op, x, y), second = compare(op, minus_y, x);
    made = conjunction(IrOp::logical_and, first, second);
  } else {
    const IrId first = compare(op, y, x), second = compare(op, x, minus_y);
    made = conjunction(IrOp::logical_or, first, second);
  }
  --split_depth_;
  return made;
}

// min(q, k) < c is  q < c | k < c. This applies only where q and k are mixed; a min of q alone is
// one value per row and stays whole.
IrId IrBuilder::compare_extremum(IrOp op, IrId a, IrId b) {
  if ((op != IrOp::less && op != IrOp::less_equal) || split_depth_ >= kMaxSplitDepth) return -1;
  const auto is_mixed_extremum = [&](IrId id) {
    const std::uint8_t both = kMentionsQ | kMentionsK;
    return (node(id).op == IrOp::min || node(id).op == IrOp::max) && (mentions(id) & both) == both;
  };
  const bool is_left = is_mixed_extremum(a);
  if ((!is_left && !is_mixed_extremum(b)) || !is_defined(a) || !is_defined(b)) return -1;
  const IrNode split = node(is_left ? a : b);
  const bool is_or = (split.op == IrOp::min) == is_left;
  ++split_depth_;
  const IrId first =
      is_left ? compare(op, split.children[0], b) : compare(op, a, split.children[0]);
  const IrId second =
      is_left ? compare(op, split.children[1], b) : compare(op, a, split.children[1]);
  --split_depth_;
  return conjunction(is_or ? IrOp::logical_or : IrOp::logical_and, first, second);
}

// (Q + K) % n == r: -K and Q - r leave the same remainder.
IrId IrBuilder::compare_remainder(IrOp op, IrId a, IrId b) {
  if (op != IrOp::equal && op != IrOp::not_equal) return -1;
  if (node(a).op != IrOp::mod) std::swap(a, b);
  const IrNode remainder = node(a);
  if (remainder.op != IrOp::mod || !is_constant(b) || !is_constant(remainder.children[1]))
    return -1;
  const std::int64_t n = node(remainder.children[1]).value, r = node(b).value;
  Sum inside;
  if (n <= 0 || r < 0 || r >= n || !collect(remainder.children[0], 1, inside) || !settle(inside))
    return -1;
  const auto of_k = [](const IrBuilder& builder, IrId id) {
    return (builder.mentions(id) & kMentionsK) != 0;
  };
  Sum keys = inside.part(of_k, *this, true), rows = inside.part(of_k, *this, false);
  if (keys.num_terms == 0 || rows.num_terms == 0) return -1;
  rows.constant = inside.constant - r;
  if (keys.terms[0].factor > 0)
    rows.negate();
  else
    keys.negate();
  rows.constant -= wide_floor_quotient(rows.constant, n) * n;
  const IrId left = build(keys), right = build(rows);
  if (left < 0 || right < 0) return -1;
  const IrId divisor = constant(n);
  const IrId left_remainder = quotient(IrOp::mod, left, divisor);
  const IrId right_remainder = quotient(IrOp::mod, right, divisor);
  return compare(op, left_remainder, right_remainder);
}

// a & b or a | b for two inequalities of the same terms. sum + c <= 0 and sum + d <= 0 become one
// of the two; sum + c <= 0 and -sum + d <= 0 may exclude each other, or cover every cell. Otherwise
// -1.
IrId IrBuilder::merge_inequalities(IrOp op, IrId a, IrId b) {
  Sum sums[2];
  for (int i = 0; i < 2; ++i) {
    const IrNode made = node(i == 0 ? a : b);
    if ((made.op != IrOp::less && made.op != IrOp::less_equal) ||
        !collect(made.children[0], 1, sums[i]) || !collect(made.children[1], -1, sums[i]) ||
        !settle(sums[i]))
      return -1;
    if (made.op == IrOp::less) sums[i].constant += 1;
  }
  if (sums[0].num_terms != sums[1].num_terms) return -1;
  const bool is_and = op == IrOp::logical_and;
  const auto same_terms = [&](std::int64_t sign) {
    return std::equal(sums[0].terms, sums[0].terms + sums[0].num_terms, sums[1].terms,
                      [&](const Term& x, const Term& y) {
                        return x.atom == y.atom && x.factor == sign * y.factor;
                      });
  };
  if (same_terms(1)) return (sums[0].constant >= sums[1].constant) == is_and ? a : b;
  if (!same_terms(-1) || !is_defined(a) || !is_defined(b)) return -1;
  // c_b <= sum <= -c_a
  const Wide least = sums[1].constant, most = -sums[0].constant;
  if (is_and ? least > most : least <= most + 1) return boolean(!is_and);
  return -1;
}

IrId IrBuilder::compare_sums(IrOp op, IrId a, IrId b) {
  Sum difference;  // a - b
  if (!collect(a, 1, difference) || !collect(b, -1, difference) || !settle(difference)) return -1;
  if (op == IrOp::less) difference.constant += 1;  // difference <= 0 from here on
  const bool is_inequality = op == IrOp::less || op == IrOp::less_equal;
  if (difference.num_terms == 0) {
    if (is_inequality) return boolean(difference.constant <= 0);
    return boolean((difference.constant == 0) == (op == IrOp::equal));
  }

  std::int64_t common = 0;
  for (int i = 0; i < difference.num_terms; ++i)
    common = std::gcd(common, difference.terms[i].factor);
  if (common > 1 && (is_inequality || difference.constant % common == 0)) {
    for (int i = 0; i < difference.num_terms; ++i) difference.terms[i].factor /= common;
    difference.constant = -wide_floor_quotient(-difference.constant, common);  // rounds up
  } else if (common > 1 && is_defined(a) && is_defined(b)) {
    return boolean(op == IrOp::not_equal);
  }

  const auto of_k = [](const IrBuilder& builder, IrId id) {
    return (builder.mentions(id) & kMentionsK) != 0;
  };
  // main: the terms of k, or all terms if there are none. rest: the other side, with the constant.
  const bool has_keys = std::any_of(difference.terms, difference.terms + difference.num_terms,
                                    [&](const Term& term) { return of_k(*this, term.atom); });
  Sum main = difference, rest;
  main.constant = 0;
  if (has_keys) {
    main = difference.part(of_k, *this, true);
    rest = difference.part(of_k, *this, false);
  }
  rest.constant = difference.constant;
  // main + rest <= 0 (or == 0) is main <= -rest, or rest <= -main if main begins with a minus.
  const bool main_is_left = main.terms[0].factor > 0;
  if (main_is_left)
    rest.negate();
  else
    main.negate();
  IrOp result = is_inequality ? IrOp::less_equal : op;
  if (is_inequality && rest.num_terms > 0 && rest.constant == (main_is_left ? -1 : 1)) {
    result = IrOp::less;
    rest.constant = 0;
  }
  const IrId main_id = build(main), rest_id = build(rest);
  if (main_id < 0 || rest_id < 0) return -1;
  const bool main_is_first = main_is_left || !is_inequality;
  const IrId left = main_is_first ? main_id : rest_id, right = main_is_first ? rest_id : main_id;
  // A term may now stand alone (|x| of 2 * |x|), so the other rules are tried again.
  const bool is_settled = (result == op && left == a && right == b) || sum_depth_ >= kMaxSplitDepth;
  if (is_settled) return raw(result, left, right);
  ++sum_depth_;
  const IrId made = compare(result, left, right);
  --sum_depth_;
  return made;
}

}  // namespace fdma
