#include "ir/range.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "ir/arithmetic.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

// The part of a table that a look-up can reach is read one by one up to this many entries.
constexpr std::int64_t kMostRead = 64;

NodeRange truth(bool can_be_true, bool can_be_false, bool may_be_undefined) {
  if (!can_be_true && !can_be_false) return {1, 0, may_be_undefined};
  return {can_be_false ? 0 : 1, can_be_true ? 1 : 0, may_be_undefined};
}

NodeRange comparison_range(IrOp op, const NodeRange& a, const NodeRange& b) {
  const bool u = a.may_be_undefined || b.may_be_undefined;
  if (!a.has_values() || !b.has_values()) return NodeRange::undefined();
  const bool may_meet = a.lo <= b.hi && b.lo <= a.hi;
  const bool one_value = a.lo == a.hi && b.lo == b.hi && a.lo == b.lo;
  switch (op) {
    case IrOp::less:
      return truth(a.lo < b.hi, a.hi >= b.lo, u);
    case IrOp::less_equal:
      return truth(a.lo <= b.hi, a.hi > b.lo, u);
    case IrOp::equal:
      return truth(may_meet, !one_value, u);
    default:
      return truth(!one_value, may_meet, u);
  }
}

NodeRange choice_range(const NodeRange& condition, const NodeRange& a, const NodeRange& b) {
  NodeRange result;
  if (condition.can_be_true()) result = unite(result, a);
  if (condition.can_be_false()) result = unite(result, b);
  result.may_be_undefined |= condition.may_be_undefined;
  return result;
}

// The bound is one number, or undefined. A body that can have only one outcome gives it.
NodeRange quantifier_range(IrOp op, const NodeRange& bound, const NodeRange& body) {
  unsigned outcomes = bound.may_be_undefined ? kUndefined : 0;
  if (bound.has_values()) {
    if (bound.lo <= 0) outcomes |= op == IrOp::any_of ? kFalse : kTrue;
    if (bound.hi >= 1) outcomes |= body.outcomes();
  }
  return NodeRange::of_outcomes(static_cast<Outcomes>(outcomes));
}

NodeRange dtype_range(DType dtype) {
  switch (dtype) {
    case DType::boolean:
      return {0, 1, false};
    case DType::int8:
      return {-128, 127, false};
    case DType::uint8:
      return {0, 255, false};
    case DType::int16:
      return {-32768, 32767, false};
    case DType::uint16:
      return {0, 65535, false};
    case DType::int32:
      return {std::numeric_limits<std::int32_t>::min(), std::numeric_limits<std::int32_t>::max(),
              false};
    case DType::uint32:
      return {0, std::numeric_limits<std::uint32_t>::max(), false};
    case DType::uint64:
      return {0, kMax, false};
    default:
      return {kMin, kMax, false};
  }
}

template <class T>
NodeRange scan(const void* data, std::int64_t count) {
  const T* first = static_cast<const T*>(data);
  T lo = first[0], hi = first[0];
  for (std::int64_t i = 1; i < count; ++i) {
    lo = std::min(lo, first[i]);
    hi = std::max(hi, first[i]);
  }
  return {static_cast<std::int64_t>(lo), static_cast<std::int64_t>(hi), false};
}

NodeRange scan_dense(const IrTable& table, std::int64_t count) {
  switch (table.dtype) {
    case DType::boolean: {
      const auto* bytes = static_cast<const std::uint8_t*>(table.data);
      const auto differs = [bytes](std::uint8_t each) { return (each != 0) != (bytes[0] != 0); };
      if (std::any_of(bytes, bytes + count, differs)) return {0, 1, false};
      return NodeRange::of_value(bytes[0] != 0 ? 1 : 0);
    }
    case DType::uint8:
      return scan<std::uint8_t>(table.data, count);
    case DType::int8:
      return scan<std::int8_t>(table.data, count);
    case DType::int16:
      return scan<std::int16_t>(table.data, count);
    case DType::uint16:
      return scan<std::uint16_t>(table.data, count);
    case DType::int32:
      return scan<std::int32_t>(table.data, count);
    case DType::uint32:
      return scan<std::uint32_t>(table.data, count);
    default:
      return scan<std::int64_t>(table.data, count);
  }
}

}  // namespace

NodeRange range_of(const IrNode& node, const NodeRange* x) {
  switch (node.op) {
    case IrOp::constant:
    case IrOp::boolean:
      return NodeRange::of_value(node.value);
    case IrOp::where:
    case IrOp::where_condition:
      return choice_range(x[0], x[1], x[2]);
    case IrOp::from_bool:
      return x[0];
    case IrOp::less:
    case IrOp::less_equal:
    case IrOp::equal:
    case IrOp::not_equal:
      return comparison_range(node.op, x[0], x[1]);
    case IrOp::logical_and:
      return NodeRange::of_outcomes(and_outcomes(x[0].outcomes(), x[1].outcomes()));
    case IrOp::logical_or:
      return NodeRange::of_outcomes(or_outcomes(x[0].outcomes(), x[1].outcomes()));
    case IrOp::logical_xor:
      return NodeRange::of_outcomes(xor_outcomes(x[0].outcomes(), x[1].outcomes()));
    case IrOp::logical_not:
      return NodeRange::of_outcomes(not_outcomes(x[0].outcomes()));
    case IrOp::any_of:
    case IrOp::all_of:
      return quantifier_range(node.op, x[0], x[1]);
    default:
      return arithmetic_range(node.op, x);
  }
}

NodeRange lookup_range(const IrTable& table, const NodeRange& entries, const NodeRange* indices) {
  bool may_be_undefined = false;
  std::array<std::int64_t, 4> first{}, last{};
  std::int64_t num_entries = 1;
  for (int d = 0; d < table.rank; ++d) {
    const auto at = static_cast<std::size_t>(d);
    const NodeRange& index = indices[d];
    const std::int64_t extent = table.extents[d];
    if (!index.has_values() || index.hi < 0 || index.lo >= extent) return NodeRange::undefined();
    may_be_undefined |= index.may_be_undefined || index.lo < 0 || index.hi >= extent;
    first[at] = std::max<std::int64_t>(index.lo, 0);
    last[at] = std::min(index.hi, extent - 1);
    const std::int64_t count = last[at] - first[at] + 1;
    num_entries = count > kMostRead ? kMostRead + 1 : std::min(num_entries * count, kMostRead + 1);
  }
  if (num_entries > kMostRead) return {entries.lo, entries.hi, may_be_undefined};
  NodeRange result{1, 0, may_be_undefined};
  std::array<std::int64_t, 4> at = first;
  for (;;) {
    std::int64_t flat = 0;
    for (int d = 0; d < table.rank; ++d)
      flat = flat * table.extents[d] + at[static_cast<std::size_t>(d)];
    result = unite(result, NodeRange::of_value(table.at(flat)));
    if (result.lo == entries.lo && result.hi == entries.hi) return result;  // as wide as it gets
    int d = table.rank - 1;
    while (d >= 0 && at[static_cast<std::size_t>(d)] == last[static_cast<std::size_t>(d)]) {
      at[static_cast<std::size_t>(d)] = first[static_cast<std::size_t>(d)];
      --d;
    }
    if (d < 0) return result;
    ++at[static_cast<std::size_t>(d)];
  }
}

NodeRange table_range(const IrTable& table, std::int64_t most_scanned) {
  std::int64_t count = 1;
  for (int d = 0; d < table.rank; ++d) count *= table.extents[d];
  if (count == 0) return {};
  if (table.is_runs()) {
    const auto [lo, hi] = std::minmax_element(table.run_values.begin(), table.run_values.end());
    return {*lo, *hi, false};
  }
  if (table.rank > 1 && count > most_scanned) return dtype_range(table.dtype);
  return scan_dense(table, count);
}

TableRanges::TableRanges(std::span<const IrTable> tables) : tables_(tables) {
  for (const IrTable& table : tables) ranges_.push_back(dtype_range(table.dtype));
}

void TableRanges::scan(std::int64_t index) {
  const auto at = static_cast<std::size_t>(index);
  ranges_[at] = table_range(tables_[at], kMax);
}

Folded fold(IrOp op, std::span<const Folded> operands) {
  NodeRange ranges[3];
  for (std::size_t i = 0; i < operands.size(); ++i)
    ranges[i] =
        operands[i].is_defined ? NodeRange::of_value(operands[i].value) : NodeRange::undefined();
  const NodeRange result = range_of(IrNode{op}, ranges);
  return {result.lo, result.is_constant()};
}

std::vector<std::uint8_t> node_mentions(const IrProgram& program) {
  std::vector<std::uint8_t> mentions(program.nodes.size(), 0);
  for (std::size_t id = 0; id < program.nodes.size(); ++id) {
    const IrNode& node = program.nodes[id];
    std::uint8_t mask = node.op == IrOp::q      ? kMentionsQ
                        : node.op == IrOp::k    ? kMentionsK
                        : node.op == IrOp::loop ? kMentionsLoop
                                                : 0;
    for (int i = 0; i < node.num_children; ++i)
      mask |= mentions[static_cast<std::size_t>(node.children[i])];
    mentions[id] = mask;
  }
  return mentions;
}

}  // namespace fdma
