// Ranges of the arithmetic operators. Each is the exact hull where its corners are enough (sums,
// products, quotients, shifts) and a safe superset elsewhere (bit operators, remainders over
// several periods).
#include "ir/arithmetic.hpp"

#include <array>

namespace fdma {
namespace {

__extension__ typedef __int128 Wide;

constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();

// [lo, hi] clipped to 64 bits. The part beyond is undefined (overflow).
NodeRange cut(Wide lo, Wide hi) {
  if (lo > kHighest || hi < kLowest) return NodeRange::undefined();
  return {static_cast<std::int64_t>(std::max<Wide>(lo, kLowest)),
          static_cast<std::int64_t>(std::min<Wide>(hi, kHighest)), lo < kLowest || hi > kHighest};
}

// The divisors among [b.lo, b.hi]. Empty if there is none.
NodeRange divisors(const NodeRange& b) {
  if (b.hi < 1) return NodeRange::undefined();
  return {std::max<std::int64_t>(b.lo, 1), b.hi, b.lo < 1};
}

NodeRange quotient(const NodeRange& a, const NodeRange& divisor, bool may_be_undefined) {
  return {floor_quotient(a.lo, a.lo < 0 ? divisor.lo : divisor.hi),
          floor_quotient(a.hi, a.hi < 0 ? divisor.hi : divisor.lo), may_be_undefined};
}

// Powers of two for the shift counts of [n.lo, n.hi] that are in 0..62. Empty if there is none.
NodeRange powers(const NodeRange& n) {
  const std::int64_t lo = std::max<std::int64_t>(n.lo, 0), hi = std::min(n.hi, kMaxShift);
  if (lo > hi) return NodeRange::undefined();
  return {std::int64_t{1} << lo, std::int64_t{1} << hi, n.lo < 0 || n.hi > kMaxShift};
}

// The least 2^n - 1 that is not below x.
std::int64_t all_ones_from(std::uint64_t x) {
  for (int shift = 1; shift < 64; shift *= 2) x |= x >> shift;
  return static_cast<std::int64_t>(x);
}

// The values that fit in the bits of the larger operand, with its sign.
NodeRange bit_hull(const NodeRange& a, const NodeRange& b) {
  std::uint64_t bits = 0;
  for (const std::int64_t x : {a.lo, a.hi, b.lo, b.hi})
    bits |= static_cast<std::uint64_t>(x < 0 ? ~x : x);
  const std::int64_t top = all_ones_from(bits);
  return {a.lo >= 0 && b.lo >= 0 ? 0 : ~top, top, false};
}

bool are_values(const NodeRange& a, const NodeRange& b) { return a.lo == a.hi && b.lo == b.hi; }

}  // namespace

namespace arithmetic {

NodeRange add::range(const NodeRange& a, const NodeRange& b) {
  return cut(Wide{a.lo} + b.lo, Wide{a.hi} + b.hi);
}

NodeRange sub::range(const NodeRange& a, const NodeRange& b) {
  return cut(Wide{a.lo} - b.hi, Wide{a.hi} - b.lo);
}

NodeRange mul::range(const NodeRange& a, const NodeRange& b) {
  const std::array<Wide, 4> corners = {Wide{a.lo} * b.lo, Wide{a.lo} * b.hi, Wide{a.hi} * b.lo,
                                       Wide{a.hi} * b.hi};
  const auto [lo, hi] = std::minmax_element(corners.begin(), corners.end());
  return cut(*lo, *hi);
}

NodeRange floor_div::range(const NodeRange& a, const NodeRange& b) {
  const NodeRange divisor = divisors(b);
  if (!divisor.has_values()) return divisor;
  return quotient(a, divisor, divisor.may_be_undefined);
}

NodeRange mod::range(const NodeRange& a, const NodeRange& b) {
  const NodeRange divisor = divisors(b);
  if (!divisor.has_values()) return divisor;
  const bool u = divisor.may_be_undefined;
  if (a.lo >= 0 && a.hi < divisor.lo) return {a.lo, a.hi, u};
  if (divisor.lo == divisor.hi &&
      floor_quotient(a.lo, divisor.lo) == floor_quotient(a.hi, divisor.lo))  // no wrap
    return {floor_remainder(a.lo, divisor.lo), floor_remainder(a.hi, divisor.lo), u};
  return {0, a.lo >= 0 ? std::min(a.hi, divisor.hi - 1) : divisor.hi - 1, u};
}

NodeRange min::range(const NodeRange& a, const NodeRange& b) {
  return {std::min(a.lo, b.lo), std::min(a.hi, b.hi), false};
}

NodeRange max::range(const NodeRange& a, const NodeRange& b) {
  return {std::max(a.lo, b.lo), std::max(a.hi, b.hi), false};
}

NodeRange abs::range(const NodeRange& a, const NodeRange&) {
  if (a.lo >= 0) return {a.lo, a.hi, false};
  if (a.hi <= 0) return cut(-Wide{a.hi}, -Wide{a.lo});
  return cut(0, std::max(-Wide{a.lo}, Wide{a.hi}));
}

NodeRange shl::range(const NodeRange& a, const NodeRange& b) {
  const NodeRange power = powers(b);
  if (!power.has_values()) return power;
  NodeRange shifted = mul::range(a, power);
  shifted.may_be_undefined |= power.may_be_undefined;
  return shifted;
}

NodeRange shr::range(const NodeRange& a, const NodeRange& b) {
  const NodeRange power = powers(b);
  return power.has_values() ? quotient(a, power, power.may_be_undefined) : power;
}

// The low bits that may differ within a range; the bits above are those of every value.
std::uint64_t free_bits(const NodeRange& a) {
  const auto differ = static_cast<std::uint64_t>(a.lo) ^ static_cast<std::uint64_t>(a.hi);
  return differ == 0 ? 0 : ~std::uint64_t{0} >> std::countl_zero(differ);
}

// Narrows the bounds of values that are not negative to those that have all bits of `ones` and no
// bit outside `possible`.
NodeRange with_bits(NodeRange hull, std::uint64_t ones, std::uint64_t possible) {
  hull.lo = std::max(hull.lo, static_cast<std::int64_t>(ones));
  hull.hi = std::min(hull.hi, static_cast<std::int64_t>(possible));
  return hull;
}

NodeRange bit_and::range(const NodeRange& a, const NodeRange& b) {
  if (are_values(a, b)) return NodeRange::of_value(a.lo & b.lo);
  if (a.lo >= 0 && b.lo >= 0) {
    const std::uint64_t free_a = free_bits(a);
    const std::uint64_t free_b = free_bits(b);
    const auto x = static_cast<std::uint64_t>(a.lo);
    const auto y = static_cast<std::uint64_t>(b.lo);
    return with_bits({0, std::min(a.hi, b.hi), false}, (x & ~free_a) & (y & ~free_b),
                     (x | free_a) & (y | free_b));
  }
  if (a.lo >= 0 || b.lo >= 0) return {0, a.lo >= 0 ? a.hi : b.hi, false};
  return bit_hull(a, b);
}

NodeRange bit_or::range(const NodeRange& a, const NodeRange& b) {
  if (are_values(a, b)) return NodeRange::of_value(a.lo | b.lo);
  NodeRange hull = bit_hull(a, b);
  if (a.lo >= 0 && b.lo >= 0) {
    const std::uint64_t free_a = free_bits(a);
    const std::uint64_t free_b = free_bits(b);
    const auto x = static_cast<std::uint64_t>(a.lo);
    const auto y = static_cast<std::uint64_t>(b.lo);
    hull.lo = std::max(a.lo, b.lo);
    return with_bits(hull, (x & ~free_a) | (y & ~free_b), (x | free_a) | (y | free_b));
  }
  return hull;
}

NodeRange bit_xor::range(const NodeRange& a, const NodeRange& b) {
  if (are_values(a, b)) return NodeRange::of_value(a.lo ^ b.lo);
  const NodeRange hull = bit_hull(a, b);
  if (a.lo < 0 || b.lo < 0) return hull;
  const std::uint64_t free = free_bits(a) | free_bits(b);
  const std::uint64_t known =
      (static_cast<std::uint64_t>(a.lo) ^ static_cast<std::uint64_t>(b.lo)) & ~free;
  return with_bits(hull, known, known | free);
}

}  // namespace arithmetic

Defect apply_integer(IrOp op, std::int64_t a, std::int64_t b, std::int64_t& out) {
  switch (op) {
#define FDMA_ARITHMETIC(name, ...) \
  case IrOp::name:                 \
    return arithmetic::name::value(a, b, out);
#include "fdma/masks/operators.def"
    default:
      return Defect::overflow;  // unreachable: not an integer operator
  }
}

NodeRange arithmetic_range(IrOp op, const NodeRange* operands) {
  const NodeRange& a = operands[0];
  const auto apply = [&](const auto& rule, const NodeRange& b) {
    if (!a.has_values() || !b.has_values()) return NodeRange::undefined();
    NodeRange range = rule(a, b);
    range.may_be_undefined |= a.may_be_undefined || b.may_be_undefined;
    return range;
  };
  switch (op) {
#define FDMA_ARITHMETIC(name, spelling, word, binds, least, ...) \
  case IrOp::name:                                               \
    return apply(arithmetic::name::range, (least) == 1 ? a : operands[1]);
#include "fdma/masks/operators.def"
    default:
      return NodeRange::undefined();  // unreachable: not an integer operator
  }
}

}  // namespace fdma
