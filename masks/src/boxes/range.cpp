// Interval arithmetic with undefinedness. Each operator gives the exact hull where its corners are
// enough (sums, products, quotients, shifts) and a safe superset elsewhere (bit operators,
// remainders over several periods). An operand that may be undefined makes the result possibly
// undefined. The interval covers the defined values only, so `k - 3000` behind a guard still has
// tight bounds.
#include "boxes/range.hpp"

#include <algorithm>
#include <array>
#include <bit>

#include "ir/cell_value.hpp"

namespace fdma::box {
namespace {

__extension__ typedef __int128 Wide;

constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();
/// Table corners of up to this many entries are read one by one.
constexpr std::int64_t kMaxEnumeratedEntries = 64;

/// The part of [lo, hi] that fits in 64 bits; the rest is overflow.
BoxValue clip(Wide lo, Wide hi, unsigned outcomes) {
  if (lo < kLowest || hi > kHighest) outcomes |= kUndefined;
  if (lo > kHighest || hi < kLowest) return {0, -1, kUndefined};
  return {static_cast<std::int64_t>(std::max<Wide>(lo, kLowest)),
          static_cast<std::int64_t>(std::min<Wide>(hi, kHighest)),
          static_cast<Outcomes>(outcomes | kInteger)};
}

BoxValue hull(std::initializer_list<Wide> corners, unsigned outcomes) {
  return clip(std::min(corners), std::max(corners), outcomes);
}

/// Bounds of bit_or and bit_xor, and of bit_and on negative numbers: the smallest power-of-two
/// range that holds both operands.
BoxValue bit_hull(const BoxValue& a, const BoxValue& b, unsigned outcomes) {
  const auto magnitude = [](std::int64_t x) { return static_cast<std::uint64_t>(x < 0 ? ~x : x); };
  const std::uint64_t all = magnitude(a.lo) | magnitude(a.hi) | magnitude(b.lo) | magnitude(b.hi);
  const auto top =
      static_cast<std::int64_t>(all == 0 ? 0 : (~std::uint64_t{0} >> std::countl_zero(all)));
  const bool non_negative = a.lo >= 0 && b.lo >= 0;
  return {non_negative ? 0 : ~top, top, static_cast<Outcomes>(outcomes | kInteger)};
}

BoxValue integer_range(IrOp op, const BoxValue& a, const BoxValue& b) {
  unsigned outcomes = (a.outcomes | b.outcomes) & kUndefined;
  if (!a.may_be(kInteger) || !b.may_be(kInteger)) return {0, -1, kUndefined};
  switch (op) {
    case IrOp::add:
      return clip(Wide{a.lo} + b.lo, Wide{a.hi} + b.hi, outcomes);
    case IrOp::sub:
      return clip(Wide{a.lo} - b.hi, Wide{a.hi} - b.lo, outcomes);
    case IrOp::mul:
      return hull({Wide{a.lo} * b.lo, Wide{a.lo} * b.hi, Wide{a.hi} * b.lo, Wide{a.hi} * b.hi},
                  outcomes);
    case IrOp::floor_div:
    case IrOp::mod: {
      if (b.lo <= 0) outcomes |= kUndefined;
      if (b.hi <= 0) return {0, -1, kUndefined};
      const std::int64_t least = std::max<std::int64_t>(b.lo, 1);
      if (op == IrOp::floor_div) {
        return hull({Wide{floor_quotient(a.lo, least)}, Wide{floor_quotient(a.lo, b.hi)},
                     Wide{floor_quotient(a.hi, least)}, Wide{floor_quotient(a.hi, b.hi)}},
                    outcomes);
      }
      if (a.lo >= 0 && a.hi < least) return clip(a.lo, a.hi, outcomes);
      if (least == b.hi && floor_quotient(a.lo, least) == floor_quotient(a.hi, least)) {
        return clip(floor_remainder(a.lo, least), floor_remainder(a.hi, least), outcomes);
      }
      return clip(0, a.lo >= 0 ? std::min(a.hi, b.hi - 1) : b.hi - 1, outcomes);
    }
    case IrOp::min:
      return clip(std::min(a.lo, b.lo), std::min(a.hi, b.hi), outcomes);
    case IrOp::max:
      return clip(std::max(a.lo, b.lo), std::max(a.hi, b.hi), outcomes);
    case IrOp::abs: {
      if (a.lo >= 0) return clip(a.lo, a.hi, outcomes);
      if (a.hi <= 0) return clip(-Wide{a.hi}, -Wide{a.lo}, outcomes);
      return clip(0, std::max(-Wide{a.lo}, Wide{a.hi}), outcomes);
    }
    case IrOp::shl:
    case IrOp::shr: {
      if (b.lo < 0 || b.hi > kMaxShift) outcomes |= kUndefined;
      const std::int64_t least = std::max<std::int64_t>(b.lo, 0);
      const std::int64_t most = std::min<std::int64_t>(b.hi, kMaxShift);
      if (least > most) return {0, -1, kUndefined};
      if (op == IrOp::shr) {
        return hull(
            {Wide{a.lo >> least}, Wide{a.lo >> most}, Wide{a.hi >> least}, Wide{a.hi >> most}},
            outcomes);
      }
      const Wide low_factor = Wide{std::int64_t{1} << least};
      const Wide high_factor = Wide{std::int64_t{1} << most};
      return hull({a.lo * low_factor, a.lo * high_factor, a.hi * low_factor, a.hi * high_factor},
                  outcomes);
    }
    case IrOp::bit_and:
      if (a.lo >= 0 && b.lo >= 0) return clip(0, std::min(a.hi, b.hi), outcomes);
      if (a.lo >= 0) return clip(0, a.hi, outcomes);
      if (b.lo >= 0) return clip(0, b.hi, outcomes);
      return bit_hull(a, b, outcomes);
    default:
      return bit_hull(a, b, outcomes);
  }
}

unsigned compare_outcomes(IrOp op, const BoxValue& a, const BoxValue& b) {
  const unsigned undefined = (a.outcomes | b.outcomes) & kUndefined;
  if (!a.may_be(kInteger) || !b.may_be(kInteger)) return kUndefined;
  const bool may_meet = a.lo <= b.hi && b.lo <= a.hi;
  const bool always_equal = a.lo == a.hi && b.lo == b.hi && a.lo == b.lo;
  switch (op) {
    case IrOp::less:
      return undefined | (a.lo < b.hi ? kTrue : 0u) | (a.hi >= b.lo ? kFalse : 0u);
    case IrOp::less_equal:
      return undefined | (a.lo <= b.hi ? kTrue : 0u) | (a.hi > b.lo ? kFalse : 0u);
    case IrOp::equal:
      return undefined | (may_meet ? kTrue : 0u) | (always_equal ? 0u : kFalse);
    default:
      return undefined | (may_meet ? kFalse : 0u) | (always_equal ? 0u : kTrue);
  }
}

BoxValue lookup_range(const IrNode& node, const BoxValue* indices, const TableRanges& tables) {
  const IrTable& table = tables.table(node.value);
  unsigned outcomes = 0;
  std::array<std::int64_t, 4> first{};
  std::array<std::int64_t, 4> last{};
  std::int64_t num_entries = 1;
  for (int d = 0; d < node.num_children; ++d) {
    const auto at = static_cast<std::size_t>(d);
    const BoxValue& index = indices[d];
    outcomes |= index.outcomes & kUndefined;
    const std::int64_t extent = table.extents[d];
    if (!index.may_be(kInteger) || index.hi < 0 || index.lo >= extent) {
      return {0, -1, kUndefined};
    }
    if (index.lo < 0 || index.hi >= extent) outcomes |= kUndefined;
    first[at] = std::max<std::int64_t>(index.lo, 0);
    last[at] = std::min<std::int64_t>(index.hi, extent - 1);
    const std::int64_t count = last[at] - first[at] + 1;
    num_entries = count > kMaxEnumeratedEntries ? kMaxEnumeratedEntries + 1 : num_entries * count;
    num_entries = std::min(num_entries, kMaxEnumeratedEntries + 1);
  }
  const bool is_test = node.op == IrOp::test;
  if (num_entries > kMaxEnumeratedEntries) {
    if (is_test) return BoxValue::condition(outcomes | kTrue | kFalse);
    BoxValue range = tables.known_range(node.value);
    range.outcomes = static_cast<Outcomes>(range.outcomes | outcomes);
    return range;
  }
  BoxValue result{0, -1, static_cast<Outcomes>(outcomes)};
  std::array<std::int64_t, 4> at = first;
  for (;;) {
    std::int64_t flat = 0;
    for (std::size_t d = 0; d < static_cast<std::size_t>(node.num_children); ++d) {
      flat = flat * table.extents[d] + at[d];
    }
    const std::int64_t value = table.at(flat);
    if (is_test) {
      result.outcomes = static_cast<Outcomes>(result.outcomes | (value != 0 ? kTrue : kFalse));
    } else {
      result = unite(result, BoxValue::integers(value, value));
    }
    int d = node.num_children - 1;
    while (d >= 0 && at[static_cast<std::size_t>(d)] == last[static_cast<std::size_t>(d)]) {
      at[static_cast<std::size_t>(d)] = first[static_cast<std::size_t>(d)];
      --d;
    }
    if (d < 0) return result;
    ++at[static_cast<std::size_t>(d)];
  }
}

/// Applies a function of single outcomes to every combination of two sets.
template <class Function>
constexpr auto combine_sets(Function function) {
  std::array<std::uint8_t, 64> table{};
  for (unsigned a = 0; a < 8; ++a) {
    for (unsigned b = 0; b < 8; ++b) {
      unsigned result = 0;
      for (unsigned x = 1; x <= 4; x *= 2) {
        for (unsigned y = 1; y <= 4; y *= 2) {
          if ((a & x) != 0 && (b & y) != 0) result |= function(x, y);
        }
      }
      table[a * 8 + b] = static_cast<Outcomes>(result);
    }
  }
  return table;
}

constexpr auto kAnd = combine_sets([](unsigned x, unsigned y) -> unsigned {
  if (x == kFalse || y == kFalse) return kFalse;
  return x == kTrue && y == kTrue ? kTrue : kUndefined;
});
constexpr auto kOr = combine_sets([](unsigned x, unsigned y) -> unsigned {
  if (x == kTrue || y == kTrue) return kTrue;
  return x == kFalse && y == kFalse ? kFalse : kUndefined;
});
constexpr auto kXor = combine_sets([](unsigned x, unsigned y) -> unsigned {
  if (x == kUndefined || y == kUndefined) return kUndefined;
  return x == y ? kFalse : kTrue;
});

}  // namespace

BoxValue unite(const BoxValue& a, const BoxValue& b) {
  const auto outcomes = static_cast<Outcomes>(a.outcomes | b.outcomes);
  if (!a.may_be(kInteger)) return {b.lo, b.hi, outcomes};
  if (!b.may_be(kInteger)) return {a.lo, a.hi, outcomes};
  return {std::min(a.lo, b.lo), std::max(a.hi, b.hi), outcomes};
}

Outcomes and_outcomes(Outcomes a, Outcomes b) { return kAnd[a * 8u + b]; }
Outcomes or_outcomes(Outcomes a, Outcomes b) { return kOr[a * 8u + b]; }
Outcomes xor_outcomes(Outcomes a, Outcomes b) { return kXor[a * 8u + b]; }
Outcomes not_outcomes(Outcomes a) {
  return static_cast<Outcomes>((a & kUndefined) | ((a & kTrue) != 0 ? kFalse : 0) |
                               ((a & kFalse) != 0 ? kTrue : 0));
}
Outcomes where_outcomes(Outcomes condition, Outcomes a, Outcomes b) {
  return static_cast<Outcomes>((condition & kUndefined) | ((condition & kTrue) != 0 ? a : 0) |
                               ((condition & kFalse) != 0 ? b : 0));
}

BoxValue TableRanges::range(std::int64_t index) {
  BoxValue& known = known_[static_cast<std::size_t>(index)];
  if (known.outcomes != 0) return known;
  const IrTable& table = tables_[static_cast<std::size_t>(index)];
  if (table.is_runs()) {
    for (const std::int64_t value : table.run_values) {
      known = unite(known, BoxValue::integers(value, value));
    }
  } else {
    std::int64_t count = 1;
    for (int d = 0; d < table.rank; ++d) count *= table.extents[d];
    std::int64_t lo = kHighest;
    std::int64_t hi = kLowest;
    const auto scan = [&](const auto* data) {
      for (std::int64_t i = 0; i < count; ++i) {
        const auto value = static_cast<std::int64_t>(data[i]);
        lo = std::min(lo, value);
        hi = std::max(hi, value);
      }
    };
    switch (table.dtype) {
      case DType::int8:
        scan(static_cast<const std::int8_t*>(table.data));
        break;
      case DType::int16:
        scan(static_cast<const std::int16_t*>(table.data));
        break;
      case DType::int32:
        scan(static_cast<const std::int32_t*>(table.data));
        break;
      case DType::int64:
        scan(static_cast<const std::int64_t*>(table.data));
        break;
      case DType::uint16:
        scan(static_cast<const std::uint16_t*>(table.data));
        break;
      case DType::uint32:
        scan(static_cast<const std::uint32_t*>(table.data));
        break;
      case DType::uint64:
        scan(static_cast<const std::uint64_t*>(table.data));
        break;
      default:
        scan(static_cast<const std::uint8_t*>(table.data));
        break;
    }
    if (count > 0) known = BoxValue::integers(lo, hi);
  }
  if (known.outcomes == 0) known = {0, -1, kUndefined};
  return known;
}

BoxValue TableRanges::known_range(std::int64_t index) const {
  const BoxValue& known = known_[static_cast<std::size_t>(index)];
  return known.outcomes != 0 ? known : BoxValue::integers(kLowest, kHighest);
}

BoxValue range_of(const IrNode& node, const BoxValue* c, const TableRanges& tables) {
  switch (node.op) {
    case IrOp::constant:
      return BoxValue::integers(node.value, node.value);
    case IrOp::boolean:
      return BoxValue::condition(node.value != 0 ? kTrue : kFalse);
    case IrOp::lookup:
    case IrOp::test:
      return lookup_range(node, c, tables);
    case IrOp::where: {
      BoxValue result{0, -1, static_cast<Outcomes>(c[0].outcomes & kUndefined)};
      if (c[0].may_be(kTrue)) result = unite(result, c[1]);
      if (c[0].may_be(kFalse)) result = unite(result, c[2]);
      return result;
    }
    case IrOp::from_bool: {
      BoxValue result{0, -1, static_cast<Outcomes>(c[0].outcomes & kUndefined)};
      if (c[0].may_be(kTrue)) result = unite(result, BoxValue::integers(1, 1));
      if (c[0].may_be(kFalse)) result = unite(result, BoxValue::integers(0, 0));
      return result;
    }
    case IrOp::less:
    case IrOp::less_equal:
    case IrOp::equal:
    case IrOp::not_equal:
      return BoxValue::condition(compare_outcomes(node.op, c[0], c[1]));
    case IrOp::logical_and:
      return BoxValue::condition(and_outcomes(c[0].outcomes, c[1].outcomes));
    case IrOp::logical_or:
      return BoxValue::condition(or_outcomes(c[0].outcomes, c[1].outcomes));
    case IrOp::logical_xor:
      return BoxValue::condition(xor_outcomes(c[0].outcomes, c[1].outcomes));
    case IrOp::logical_not:
      return BoxValue::condition(not_outcomes(c[0].outcomes));
    case IrOp::where_condition:
      return BoxValue::condition(where_outcomes(c[0].outcomes, c[1].outcomes, c[2].outcomes));
    case IrOp::any_of:
    case IrOp::all_of: {
      // The bound is one number, or undefined. A body that can have only one outcome gives it.
      const auto neutral = static_cast<unsigned>(node.op == IrOp::any_of ? kFalse : kTrue);
      unsigned outcomes = c[0].outcomes & kUndefined;
      if (c[0].may_be(kInteger)) {
        if (c[0].lo <= 0) outcomes |= neutral;
        if (c[0].hi >= 1) outcomes |= c[1].outcomes;
      }
      return BoxValue::condition(outcomes);
    }
    case IrOp::abs:
      return integer_range(node.op, c[0], c[0]);
    default:
      return integer_range(node.op, c[0], c[1]);
  }
}

}  // namespace fdma::box
