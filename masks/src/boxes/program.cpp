// Preparation in one pass, children first. Every node of the source is interned here, which merges
// equal nodes and derives the facts below. Loops were written out before, as far as the budget goes.
//
// Unrolling   any(i in 4 : b[i, k] <= q & q < e[i, k]) becomes eight comparisons of a per-key
//             vector with a per-query number, at which the engine is fast; a loop would be
//             interpreted per cell.
// Diagonal    `q - k < 32` and `k <= q` depend on k - q only. A node is diagonal if its children
//             are, or if it compares linear forms whose difference moves with k - q. Linear forms
//             are followed only where no overflow is possible, so that no undefined cell is lost.
// Open nodes  They mention the variable of a loop that was kept, and have a value only inside it.
#include "boxes/program.hpp"

#include <algorithm>
#include <cstring>
#include <limits>

#include "ir/simplify.hpp"

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
    : unrolled_(unroll(source, kUnrollBudget)),
      q_len_(source.q_len),
      kv_len_(source.kv_len),
      meter_(meter),
      tables_(unrolled_ ? unrolled_->tables : source.tables) {
  const IrProgram& used = unrolled_ ? *unrolled_ : source;
  for (const IrNode& node : used.nodes) {
    if (node.op == IrOp::lookup) tables_.scan(node.value);
    if (is_loop(node.op)) loop_ranges_[node.value] = {0, used.node(node.children[0]).value - 1};
  }
  q_node_ = intern(make(IrOp::q, {}));
  k_node_ = intern(make(IrOp::k, {}));
  std::vector<IrId> mapped;
  for (IrNode node : used.nodes) {
    for (int c = 0; c < node.num_children; ++c) {
      node.children[c] = mapped[static_cast<std::size_t>(node.children[c])];
    }
    mapped.push_back(intern(node));
    if (is_too_nested_) break;
  }
  root_ = is_too_nested_ ? intern(make(IrOp::boolean, {}))
                         : mapped[static_cast<std::size_t>(used.root)];
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

NodeFacts BoxProgram::derive(const IrNode& n) {
  NodeFacts out;
  NodeRange children[4];
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
    if (out.range.may_be_undefined || std::max(slope_q, slope_k) > kMaxSlope ||
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
      out.range = {0, std::max<std::int64_t>(q_len_ - 1, 0), false};
      linear(1, 0);
      return out;
    case IrOp::k:
      out.depends = kOnK;
      out.range = {0, std::max<std::int64_t>(kv_len_ - 1, 0), false};
      linear(0, 1);
      return out;
    case IrOp::loop:
      out.range = loop_ranges_[n.value];
      linear(0, 0);
      return out;
    case IrOp::lookup:
    case IrOp::test:
      out.range = tables_.lookup(n.value, children);
      break;
    default:
      out.range = range_of(n, children);
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

}  // namespace fdma::box
