#include "ir/range.hpp"

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>

#include "ir/cell_value.hpp"

namespace fdma {
namespace {

__extension__ typedef __int128 Wide;

constexpr std::int64_t kMin = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

// Tables of rank 2 and above with more entries than this are not scanned for their range.
constexpr std::int64_t kLargestScan = std::int64_t{1} << 20;

// [lo, hi] clipped to 64 bits. The part beyond is undefined (overflow).
NodeRange cut(Wide lo, Wide hi, bool may_be_undefined) {
  NodeRange range;
  range.may_be_undefined = may_be_undefined || lo < kMin || hi > kMax;
  if (lo > kMax || hi < kMin) return range;
  range.lo = static_cast<std::int64_t>(std::max<Wide>(lo, kMin));
  range.hi = static_cast<std::int64_t>(std::min<Wide>(hi, kMax));
  return range;
}

NodeRange undefined() { return {1, 0, true}; }

NodeRange product(const NodeRange& a, const NodeRange& b, bool may_be_undefined) {
  const std::array<Wide, 4> corners = {Wide{a.lo} * b.lo, Wide{a.lo} * b.hi, Wide{a.hi} * b.lo,
                                       Wide{a.hi} * b.hi};
  const auto [lo, hi] = std::minmax_element(corners.begin(), corners.end());
  return cut(*lo, *hi, may_be_undefined);
}

NodeRange quotient(const NodeRange& a, NodeRange b, bool may_be_undefined) {
  may_be_undefined |= b.lo <= 0;
  b.lo = std::max<std::int64_t>(b.lo, 1);
  if (b.hi < b.lo) return undefined();
  const std::int64_t lo = floor_quotient(a.lo, a.lo < 0 ? b.lo : b.hi);
  const std::int64_t hi = floor_quotient(a.hi, a.hi < 0 ? b.hi : b.lo);
  return {lo, hi, may_be_undefined};
}

NodeRange remainder(const NodeRange& a, NodeRange b, bool may_be_undefined) {
  may_be_undefined |= b.lo <= 0;
  b.lo = std::max<std::int64_t>(b.lo, 1);
  if (b.hi < b.lo) return undefined();
  if (b.lo == b.hi && floor_quotient(a.lo, b.lo) == floor_quotient(a.hi, b.lo))  // no wrap
    return {box::floor_remainder(a.lo, b.lo), box::floor_remainder(a.hi, b.lo), may_be_undefined};
  const std::int64_t hi = a.lo >= 0 ? std::min(a.hi, b.hi - 1) : b.hi - 1;
  return {0, hi, may_be_undefined};
}

// Powers of two for shift counts [n.lo, n.hi], clipped to 0..62. Empty if no count is valid.
NodeRange powers(const NodeRange& n, bool& may_be_undefined) {
  may_be_undefined |= n.lo < 0 || n.hi > box::kMaxShift;
  const std::int64_t lo = std::max<std::int64_t>(n.lo, 0);
  const std::int64_t hi = std::min<std::int64_t>(n.hi, box::kMaxShift);
  if (lo > hi) return undefined();
  return {std::int64_t{1} << lo, std::int64_t{1} << hi, false};
}

// All values that fit in the bits of the larger operand, with its sign.
NodeRange bits(IrOp op, const NodeRange& a, const NodeRange& b, bool may_be_undefined) {
  if (a.lo == a.hi && b.lo == b.hi) {
    std::int64_t value = 0;
    box::apply_integer(op, a.lo, b.lo, value);
    return {value, value, may_be_undefined};
  }
  if (a.lo >= 0 && b.lo >= 0) {
    if (op == IrOp::bit_and) return {0, std::min(a.hi, b.hi), may_be_undefined};
    std::uint64_t mask = static_cast<std::uint64_t>(a.hi) | static_cast<std::uint64_t>(b.hi);
    for (int shift = 1; shift < 64; shift *= 2) mask |= mask >> shift;
    const std::int64_t lo = op == IrOp::bit_or ? std::max(a.lo, b.lo) : 0;
    return {lo, static_cast<std::int64_t>(mask), may_be_undefined};
  }
  if (op == IrOp::bit_and && (a.lo >= 0 || b.lo >= 0))
    return {0, a.lo >= 0 ? a.hi : b.hi, may_be_undefined};
  std::uint64_t mask = 0;
  for (const std::int64_t x : {a.lo, a.hi, b.lo, b.hi})
    mask |= static_cast<std::uint64_t>(x < 0 ? ~x : x);
  for (int shift = 1; shift < 64; shift *= 2) mask |= mask >> shift;
  const auto hi = static_cast<std::int64_t>(mask);
  return {-hi - 1, hi, may_be_undefined};
}

NodeRange integer_range(IrOp op, const NodeRange& a, const NodeRange& b) {
  bool u = a.may_be_undefined || b.may_be_undefined;
  if (!a.has_values() || !b.has_values()) return undefined();
  switch (op) {
    case IrOp::add:
      return cut(Wide{a.lo} + b.lo, Wide{a.hi} + b.hi, u);
    case IrOp::sub:
      return cut(Wide{a.lo} - b.hi, Wide{a.hi} - b.lo, u);
    case IrOp::mul:
      return product(a, b, u);
    case IrOp::floor_div:
      return quotient(a, b, u);
    case IrOp::mod:
      return remainder(a, b, u);
    case IrOp::min:
      return {std::min(a.lo, b.lo), std::min(a.hi, b.hi), u};
    case IrOp::max:
      return {std::max(a.lo, b.lo), std::max(a.hi, b.hi), u};
    case IrOp::abs:
      if (a.lo >= 0) return {a.lo, a.hi, u};
      if (a.hi <= 0) return cut(-Wide{a.hi}, -Wide{a.lo}, u);
      return cut(0, std::max(-Wide{a.lo}, Wide{a.hi}), u);
    case IrOp::shl:
    case IrOp::shr: {
      const NodeRange power = powers(b, u);
      if (!power.has_values()) return undefined();
      return op == IrOp::shl ? product(a, power, u) : quotient(a, power, u);
    }
    default:
      return bits(op, a, b, u);
  }
}

NodeRange truth(bool can_be_true, bool can_be_false, bool may_be_undefined) {
  if (!can_be_true && !can_be_false) return {1, 0, may_be_undefined};
  return {can_be_false ? 0 : 1, can_be_true ? 1 : 0, may_be_undefined};
}

NodeRange comparison_range(IrOp op, const NodeRange& a, const NodeRange& b) {
  const bool u = a.may_be_undefined || b.may_be_undefined;
  if (!a.has_values() || !b.has_values()) return undefined();
  const bool overlap = a.lo <= b.hi && b.lo <= a.hi;
  const bool one_value = a.lo == a.hi && b.lo == b.hi && a.lo == b.lo;
  switch (op) {
    case IrOp::less:
      return truth(a.lo < b.hi, a.hi >= b.lo, u);
    case IrOp::less_equal:
      return truth(a.lo <= b.hi, a.hi > b.lo, u);
    case IrOp::equal:
      return truth(overlap, !one_value, u);
    default:
      return truth(!one_value, overlap, u);
  }
}

NodeRange logic_range(IrOp op, const NodeRange& a, const NodeRange& b) {
  const bool at = a.can_be_true(), af = a.can_be_false(), au = a.may_be_undefined;
  const bool bt = b.can_be_true(), bf = b.can_be_false(), bu = b.may_be_undefined;
  switch (op) {
    case IrOp::logical_and:
      return truth(at && bt, af || bf, (au && (bt || bu)) || (bu && (at || au)));
    case IrOp::logical_or:
      return truth(at || bt, af && bf, (au && (bf || bu)) || (bu && (af || au)));
    default:
      return truth((at && bf) || (af && bt), (at && bt) || (af && bf), au || bu);
  }
}

NodeRange where_range(const NodeRange& c, const NodeRange& a, const NodeRange& b) {
  NodeRange result;  // no values yet
  result.may_be_undefined = c.may_be_undefined;
  const auto unite = [&](const NodeRange& branch) {
    result.may_be_undefined |= branch.may_be_undefined;
    if (!branch.has_values()) return;
    if (!result.has_values()) {
      result.lo = branch.lo;
      result.hi = branch.hi;
    } else {
      result.lo = std::min(result.lo, branch.lo);
      result.hi = std::max(result.hi, branch.hi);
    }
  };
  if (c.can_be_true()) unite(a);
  if (c.can_be_false()) unite(b);
  return result;
}

// The part of each index that lies inside the table. False if no index does.
bool inside_indices(const IrTable& table, const NodeRange* indices, std::int64_t* begin,
                    std::int64_t* end, bool& may_be_undefined) {
  for (int d = 0; d < table.rank; ++d) {
    const NodeRange& index = indices[d];
    may_be_undefined |= index.may_be_undefined || index.lo < 0 || index.hi >= table.extents[d];
    if (!index.has_values()) return false;
    begin[d] = std::max<std::int64_t>(index.lo, 0);
    end[d] = std::min(index.hi, table.extents[d] - 1) + 1;
    if (begin[d] >= end[d]) return false;
  }
  return true;
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
      const NodeRange bytes = scan<std::uint8_t>(table.data, count);
      return {std::min<std::int64_t>(bytes.lo, 1), std::min<std::int64_t>(bytes.hi, 1), false};
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

NodeRange table_range(const IrTable& table) {
  std::int64_t count = 1;
  for (int d = 0; d < table.rank; ++d) count *= table.extents[d];
  if (count == 0) return {};
  if (table.is_runs()) {
    const auto [lo, hi] = std::minmax_element(table.run_values.begin(), table.run_values.end());
    return {*lo, *hi, false};
  }
  if (table.rank > 1 && count > kLargestScan) return dtype_range(table.dtype);
  return scan_dense(table, count);
}

NodeRange node_range(const IrNode& node, const NodeRange* children, const NodeRange& variable,
                     const IrTable* table, const NodeRange& table_entries) {
  switch (node.op) {
    case IrOp::constant:
    case IrOp::boolean:
      return {node.value, node.value, false};
    case IrOp::q:
    case IrOp::k:
    case IrOp::loop:
      return variable;
    case IrOp::lookup:
    case IrOp::test: {
      std::int64_t begin[4], end[4];
      bool may_be_undefined = false;
      if (!inside_indices(*table, children, begin, end, may_be_undefined)) return undefined();
      return {table_entries.lo, table_entries.hi, may_be_undefined};
    }
    case IrOp::abs:
      return integer_range(node.op, children[0], children[0]);
    case IrOp::where:
    case IrOp::where_condition:
      return where_range(children[0], children[1], children[2]);
    case IrOp::from_bool:
      return children[0];
    case IrOp::less:
    case IrOp::less_equal:
    case IrOp::equal:
    case IrOp::not_equal:
      return comparison_range(node.op, children[0], children[1]);
    case IrOp::logical_and:
    case IrOp::logical_or:
    case IrOp::logical_xor:
      return logic_range(node.op, children[0], children[1]);
    case IrOp::logical_not:
      return truth(children[0].can_be_false(), children[0].can_be_true(),
                   children[0].may_be_undefined);
    case IrOp::any_of:
    case IrOp::all_of: {
      const bool is_any = node.op == IrOp::any_of;
      const NodeRange& bound = children[0];
      const NodeRange& body = children[1];
      const bool may_be_empty = bound.has_values() && bound.lo <= 0;
      const bool may_run = bound.hi > 0 && bound.has_values();
      return truth((may_run && body.can_be_true()) || (may_be_empty && !is_any),
                   (may_run && body.can_be_false()) || (may_be_empty && is_any),
                   bound.may_be_undefined || (may_run && body.may_be_undefined));
    }
    default:
      return integer_range(node.op, children[0], children[1]);
  }
}

TableBounds::TableBounds(const IrProgram& program)
    : program_(&program), whole_(program.tables.size()), is_known_(program.tables.size(), false) {}

NodeRange TableBounds::bounds(std::int32_t table, const std::int64_t*, const std::int64_t*) {
  const auto index = static_cast<std::size_t>(table);
  if (!is_known_[index]) {
    whole_[index] = table_range(program_->tables[index]);
    is_known_[index] = true;
  }
  return whole_[index];
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

RangeAnalysis::RangeAnalysis(const IrProgram& program, TableBounds* bounds)
    : program_(&program),
      bounds_(bounds),
      ranges_(program.nodes.size()),
      loop_bound_(program.nodes.size(), 0) {
  if (bounds_ == nullptr) {
    own_bounds_ = std::make_unique<TableBounds>(program);
    bounds_ = own_bounds_.get();
  }
  // Before simplification, loops that share an id may differ in their bound; the largest holds.
  std::vector<std::int64_t> bound_of;
  const auto bound_slot = [&](std::int64_t id) -> std::int64_t& {
    if (static_cast<std::size_t>(id) >= bound_of.size())
      bound_of.resize(static_cast<std::size_t>(id) + 1, 0);
    return bound_of[static_cast<std::size_t>(id)];
  };
  for (const IrNode& node : program.nodes) {
    if (node.op != IrOp::any_of && node.op != IrOp::all_of) continue;
    const IrNode& bound = program.node(node.children[0]);
    std::int64_t& slot = bound_slot(node.value);
    slot = std::max(slot, bound.op == IrOp::constant ? bound.value : kMax);
  }
  for (std::size_t id = 0; id < program.nodes.size(); ++id)
    if (program.nodes[id].op == IrOp::loop) loop_bound_[id] = bound_slot(program.nodes[id].value);
}

std::span<const NodeRange> RangeAnalysis::evaluate(const CellBox& box) {
  for (std::size_t id = 0; id < program_->nodes.size(); ++id) {
    const IrNode& node = program_->nodes[id];
    NodeRange children[4];
    for (int i = 0; i < node.num_children; ++i)
      children[i] = ranges_[static_cast<std::size_t>(node.children[i])];
    NodeRange variable, entries;
    const IrTable* table = nullptr;
    switch (node.op) {
      case IrOp::q:
        variable = {box.q_begin, box.q_end - 1, false};
        break;
      case IrOp::k:
        variable = {box.k_begin, box.k_end - 1, false};
        break;
      case IrOp::loop:
        variable = {0, std::max<std::int64_t>(loop_bound_[id] - 1, 0), false};
        break;
      case IrOp::lookup:
      case IrOp::test: {
        table = &program_->tables[static_cast<std::size_t>(node.value)];
        std::int64_t begin[4], end[4];
        bool ignored = false;
        if (inside_indices(*table, children, begin, end, ignored))
          entries = bounds_->bounds(static_cast<std::int32_t>(node.value), begin, end);
        break;
      }
      default:
        break;
    }
    ranges_[id] = node_range(node, children, variable, table, entries);
  }
  return ranges_;
}

}  // namespace fdma
