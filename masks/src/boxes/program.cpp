// Preparation in one pass, children first. Every node of the source is interned here, which folds
// constants, merges equal nodes and derives the facts below. A loop becomes a chain of copies of
// its body, one per value of the variable.
//
// Unrolling   any(i in 4 : b[i, k] <= q & q < e[i, k]) becomes eight comparisons of a per-key
//             vector with a per-query number, at which the engine is fast; a loop would be
//             interpreted per cell. Only the nodes that mention the variable are copied. Loops
//             whose copies exceed the budget stay loops.
// Diagonal    `q - k < 32` and `k <= q` depend on k - q only. A node is diagonal if its children
//             are, or if it compares linear forms whose difference moves with k - q. Linear forms
//             are followed only where no overflow is possible, so that no undefined cell is lost.
// Open nodes  They mention the variable of a loop that was kept, and have a value only inside it.
#include "boxes/program.hpp"

#include <algorithm>
#include <cstring>

#include "ir/cell_value.hpp"

namespace fdma::box {
namespace {

/// The most nodes that unrolling may add to one program.
constexpr std::int64_t kUnrollBudget = std::int64_t{1} << 16;

IrNode make(IrOp op, std::initializer_list<IrId> children, std::int64_t value = 0) {
  IrNode node{op};
  for (const IrId child : children) node.children[node.num_children++] = child;
  node.value = value;
  return node;
}

bool is_loop(IrOp op) { return op == IrOp::any_of || op == IrOp::all_of; }

}  // namespace

std::size_t BoxProgram::NodeHash::operator()(const IrNode& node) const {
  std::uint64_t hash = static_cast<std::uint64_t>(node.op) * 0x9E3779B97F4A7C15u +
                       static_cast<std::uint64_t>(node.value);
  for (const IrId child : node.children) {
    hash = (hash ^ static_cast<std::uint32_t>(child)) * 0xD6E8FEB86659FD93u;
    hash ^= hash >> 32;
  }
  return hash;
}

bool BoxProgram::NodeEqual::operator()(const IrNode& a, const IrNode& b) const {
  return a.op == b.op && a.value == b.value && a.num_children == b.num_children &&
         std::equal(a.children, a.children + 4, b.children);
}

BoxProgram::BoxProgram(const IrProgram& source, WorkMeter* meter)
    : q_len_(source.q_len),
      kv_len_(source.kv_len),
      meter_(meter),
      tables_(source.tables),
      unroll_budget_(kUnrollBudget) {
  for (const IrNode& node : source.nodes) {
    if (node.op == IrOp::lookup) tables_.range(node.value);
  }
  // Bounds of loops mention no cell, so folding alone gives their values.
  std::vector<IrId> mapped(source.nodes.size(), -1);
  for (const IrNode& node : source.nodes) {
    if (!is_loop(node.op)) continue;
    BoxValue range = BoxValue::integers(0, std::numeric_limits<std::int64_t>::max() - 1);
    const IrNode& bound = source.node(node.children[0]);
    if (bound.op == IrOp::constant && bound.value > 0) {
      range = BoxValue::integers(0, bound.value - 1);
    }
    loop_ranges_[node.value] = range;
  }
  q_node_ = intern(make(IrOp::q, {}));
  k_node_ = intern(make(IrOp::k, {}));
  for (std::size_t i = 0; i < source.nodes.size() && !is_too_nested_; ++i) {
    IrNode node = source.nodes[i];
    for (int c = 0; c < node.num_children; ++c) {
      node.children[c] = mapped[static_cast<std::size_t>(node.children[c])];
    }
    mapped[i] = is_loop(node.op) ? unroll(node) : intern(node);
  }
  root_ = is_too_nested_ ? intern(make(IrOp::boolean, {}))
                         : mapped[static_cast<std::size_t>(source.root)];
}

Axis BoxProgram::axis(IrId id) const {
  const NodeFacts& known = facts(id);
  if (known.depends == 0) return Axis::none;
  if (known.depends == kOnQ) return Axis::query;
  if (known.depends == kOnK) return Axis::key;
  return known.is_diagonal ? Axis::diagonal : Axis::cell;
}

std::span<const std::int64_t> BoxProgram::open_loops(IrId id) const {
  return open_loops_[static_cast<std::size_t>(id)];
}

IrId BoxProgram::intern_constant(std::int64_t value) {
  return intern(make(IrOp::constant, {}, value));
}

IrId BoxProgram::intern(IrNode node) {
  for (int c = node.num_children; c < 4; ++c) node.children[c] = -1;
  IrId folded;
  if (fold(node, folded)) return folded;
  const auto known = ids_.find(node);
  if (known != ids_.end()) return known->second;
  const auto id = static_cast<IrId>(nodes_.size());
  facts_.push_back(derive(node));
  std::vector<std::int64_t> loops;
  if (node.op == IrOp::loop) loops.push_back(node.value);
  for (int c = 0; c < node.num_children; ++c) {
    const auto below = open_loops(node.children[c]);
    loops.insert(loops.end(), below.begin(), below.end());
  }
  if (!loops.empty()) {
    std::sort(loops.begin(), loops.end());
    loops.erase(std::unique(loops.begin(), loops.end()), loops.end());
    if (is_loop(node.op)) std::erase(loops, node.value);
  }
  NodeFacts& facts = facts_.back();
  facts.is_open = !loops.empty();
  facts.loop_depth = is_loop(node.op) ? 1 : 0;
  for (int c = 0; c < node.num_children; ++c) {
    const NodeFacts& below = facts_[static_cast<std::size_t>(node.children[c])];
    facts.loop_depth = std::max(facts.loop_depth, below.loop_depth + (is_loop(node.op) ? 1 : 0));
  }
  is_too_nested_ =
      is_too_nested_ || facts.loop_depth > kMaxLoopDepth || std::ssize(loops) > kMaxLoopDepth;
  open_loops_.push_back(std::move(loops));
  nodes_.push_back(node);
  ids_.emplace(node, id);
  return id;
}

bool BoxProgram::fold(const IrNode& n, IrId& result) {
  const auto child = [&](int c) -> const IrNode& { return node(n.children[c]); };
  const auto is_number = [&](int c) { return child(c).op == IrOp::constant; };
  const auto is_boolean = [&](int c) { return child(c).op == IrOp::boolean; };
  const auto boolean = [&](bool value) {
    result = intern(make(IrOp::boolean, {}, value ? 1 : 0));
    return true;
  };
  switch (n.op) {
    case IrOp::constant:
    case IrOp::boolean:
    case IrOp::q:
    case IrOp::k:
    case IrOp::loop:
    case IrOp::any_of:
    case IrOp::all_of:
      return false;
    case IrOp::lookup:
    case IrOp::test: {
      const IrTable& table = tables_.table(n.value);
      std::int64_t flat = 0;
      for (int c = 0; c < n.num_children; ++c) {
        if (!is_number(c) || child(c).value < 0 || child(c).value >= table.extents[c]) return false;
        flat = flat * table.extents[c] + child(c).value;
      }
      if (n.op == IrOp::test) return boolean(table.at(flat) != 0);
      result = intern_constant(table.at(flat));
      return true;
    }
    case IrOp::less:
    case IrOp::less_equal:
    case IrOp::equal:
    case IrOp::not_equal: {
      if (!is_number(0) || !is_number(1)) return false;
      const std::int64_t a = child(0).value;
      const std::int64_t b = child(1).value;
      return boolean(n.op == IrOp::less         ? a < b
                     : n.op == IrOp::less_equal ? a <= b
                     : n.op == IrOp::equal      ? a == b
                                                : a != b);
    }
    case IrOp::logical_and:
    case IrOp::logical_or: {
      if (n.children[0] == n.children[1]) {
        result = n.children[0];
        return true;
      }
      const std::int64_t neutral = n.op == IrOp::logical_and ? 1 : 0;
      for (int c = 0; c < 2; ++c) {
        if (!is_boolean(c)) continue;
        result = n.children[child(c).value == neutral ? 1 - c : c];
        return true;
      }
      return false;
    }
    case IrOp::logical_xor:
      if (is_boolean(0) && is_boolean(1)) return boolean(child(0).value != child(1).value);
      return false;
    case IrOp::logical_not:
      if (is_boolean(0)) return boolean(child(0).value == 0);
      if (child(0).op != IrOp::logical_not) return false;
      result = child(0).children[0];
      return true;
    case IrOp::where:
    case IrOp::where_condition:
      if (!is_boolean(0)) return false;
      result = n.children[child(0).value != 0 ? 1 : 2];
      return true;
    case IrOp::from_bool:
      if (!is_boolean(0)) return false;
      result = intern_constant(child(0).value);
      return true;
    default: {
      for (int c = 0; c < n.num_children; ++c) {
        if (!is_number(c)) return false;
      }
      std::int64_t value = 0;
      const std::int64_t b = n.num_children > 1 ? child(1).value : 0;
      if (apply_integer(n.op, child(0).value, b, value) != Defect::none) return false;
      result = intern_constant(value);
      return true;
    }
  }
}

NodeFacts BoxProgram::derive(const IrNode& n) {
  NodeFacts out;
  BoxValue children[4];
  out.is_diagonal = n.op != IrOp::q && n.op != IrOp::k;
  for (int c = 0; c < n.num_children; ++c) {
    const NodeFacts& child = facts(n.children[c]);
    out.depends |= child.depends;
    out.is_diagonal = out.is_diagonal && child.is_diagonal;
    children[c] = child.range;
  }
  const auto linear = [&](std::int64_t slope_q, std::int64_t slope_k) {
    // Slopes stay far from 64 bits. A form that passes the range check has small slopes unless a
    // length is 1; a wrapped slope must not pass for a diagonal then.
    constexpr std::int64_t kMaxSlope = std::int64_t{1} << 40;
    if (out.range.may_be(kUndefined) || std::max(slope_q, slope_k) > kMaxSlope ||
        std::min(slope_q, slope_k) < -kMaxSlope) {
      return;
    }
    out.is_linear = true;
    out.slope_q = slope_q;
    out.slope_k = slope_k;
    out.is_diagonal = slope_q == -slope_k;
  };
  switch (n.op) {
    case IrOp::q:
      out.depends = kOnQ;
      out.range = BoxValue::integers(0, std::max<std::int64_t>(q_len_ - 1, 0));
      linear(1, 0);
      return out;
    case IrOp::k:
      out.depends = kOnK;
      out.range = BoxValue::integers(0, std::max<std::int64_t>(kv_len_ - 1, 0));
      linear(0, 1);
      return out;
    case IrOp::loop:
      out.range = loop_ranges_[n.value];
      linear(0, 0);
      return out;
    default:
      out.range = range_of(n, children, tables_);
  }
  if (n.op == IrOp::constant) {
    linear(0, 0);
  } else if (n.num_children == 2 && n.op != IrOp::any_of && n.op != IrOp::all_of) {
    const NodeFacts& a = facts(n.children[0]);
    const NodeFacts& b = facts(n.children[1]);
    if (a.is_linear && b.is_linear) {
      if (n.op == IrOp::add) linear(a.slope_q + b.slope_q, a.slope_k + b.slope_k);
      if (n.op == IrOp::sub) linear(a.slope_q - b.slope_q, a.slope_k - b.slope_k);
      if (n.op == IrOp::mul) {
        const IrNode& left = node(n.children[0]);
        const IrNode& right = node(n.children[1]);
        constexpr std::int64_t kMaxFactor = std::int64_t{1} << 20;
        const auto is_factor = [](const IrNode& f) {
          return f.op == IrOp::constant && f.value >= -kMaxFactor && f.value <= kMaxFactor;
        };
        const auto is_small = [](const NodeFacts& f) {
          return std::max(f.slope_q, f.slope_k) <= kMaxFactor &&
                 std::min(f.slope_q, f.slope_k) >= -kMaxFactor;
        };
        if (is_factor(left) && is_small(b)) {
          linear(left.value * b.slope_q, left.value * b.slope_k);
        } else if (is_factor(right) && is_small(a)) {
          linear(right.value * a.slope_q, right.value * a.slope_k);
        }
      }
      const bool is_comparison = n.op == IrOp::less || n.op == IrOp::less_equal ||
                                 n.op == IrOp::equal || n.op == IrOp::not_equal;
      if (is_comparison && a.slope_q - b.slope_q == b.slope_k - a.slope_k) out.is_diagonal = true;
    }
  }
  return out;
}

IrId BoxProgram::unroll(const IrNode& loop) {
  const bool is_any = loop.op == IrOp::any_of;
  const IrId bound = loop.children[0];
  const IrId body = loop.children[1];
  const auto boolean = [&](bool value) { return intern(make(IrOp::boolean, {}, value ? 1 : 0)); };
  if (node(bound).op != IrOp::constant) {
    // Every bound folds to a number unless it is undefined; the loop is undefined then, too.
    return intern(make(IrOp::less, {bound, bound}));
  }
  const std::int64_t count = node(bound).value;
  if (count <= 0) return boolean(!is_any);
  const auto mentions = [&](IrId id) {
    const auto loops = open_loops(id);
    return std::binary_search(loops.begin(), loops.end(), loop.value);
  };
  if (!mentions(body)) return body;

  // The part of the body that mentions the variable, children first.
  std::vector<IrId> copied{body};
  std::unordered_map<IrId, IrId> copy_of{{body, -1}};
  for (std::size_t i = 0; i < copied.size(); ++i) {
    const IrNode n = node(copied[i]);
    for (int c = 0; c < n.num_children; ++c) {
      if (mentions(n.children[c]) && copy_of.emplace(n.children[c], -1).second) {
        copied.push_back(n.children[c]);
      }
    }
  }
  std::sort(copied.begin(), copied.end());
  const auto size = static_cast<std::int64_t>(copied.size()) + 1;
  if (count > 1 && count > unroll_budget_ / size) return intern(loop);
  unroll_budget_ -= count * size;

  IrId result = -1;
  for (std::int64_t i = 0; i < count; ++i) {
    for (const IrId id : copied) {
      IrNode n = node(id);
      if (n.op == IrOp::loop && n.value == loop.value) {
        copy_of[id] = intern_constant(i);
        continue;
      }
      for (int c = 0; c < n.num_children; ++c) {
        const auto copy = copy_of.find(n.children[c]);
        if (copy != copy_of.end()) n.children[c] = copy->second;
      }
      copy_of[id] = intern(n);
    }
    const IrId term = copy_of[body];
    result = result < 0
                 ? term
                 : intern(make(is_any ? IrOp::logical_or : IrOp::logical_and, {result, term}));
  }
  return result;
}

}  // namespace fdma::box
