#include "language/expr_interner.hpp"

#include <utility>

namespace fdma {

std::size_t ExprInterner::Hash::operator()(ExprId id) const {
  const ExprNode& node = self->nodes_[static_cast<std::size_t>(id)];
  std::uint64_t hash = static_cast<std::uint64_t>(node.op) * 0x9E3779B97F4A7C15u;
  const auto mix = [&hash](std::uint64_t value) {
    hash = (hash ^ value) * 0xD6E8FEB86659FD93u;
    hash ^= hash >> 32;
  };
  mix(static_cast<std::uint64_t>(node.value));
  mix(std::hash<std::string>{}(node.symbol));
  for (const ExprId child : node.children) mix(static_cast<std::uint64_t>(child));
  return static_cast<std::size_t>(hash);
}

bool ExprInterner::Equal::operator()(ExprId a, ExprId b) const {
  const ExprNode& x = self->nodes_[static_cast<std::size_t>(a)];
  const ExprNode& y = self->nodes_[static_cast<std::size_t>(b)];
  return x.op == y.op && x.value == y.value && x.symbol == y.symbol && x.children == y.children &&
         x.arg_names == y.arg_names;
}

ExprId ExprInterner::intern(ExprNode node) {
  const auto id = static_cast<ExprId>(nodes_.size());
  nodes_.push_back(std::move(node));
  const auto [place, is_new] = index_.insert(id);
  if (!is_new) nodes_.pop_back();
  return *place;
}

ExprId ExprInterner::add(const MaskExpr& expr) {
  std::vector<ExprId> interned(expr.nodes().size(), -1);
  const auto known = [&](ExprId id) -> ExprId& { return interned[static_cast<std::size_t>(id)]; };
  struct Visit {
    ExprId id;
    std::size_t next_child;
  };
  std::vector<Visit> path = {{expr.root(), 0}};
  while (!path.empty()) {
    Visit& visit = path.back();
    const ExprNode& node = expr.node(visit.id);
    if (visit.next_child < node.children.size()) {
      const ExprId child = node.children[visit.next_child++];
      if (known(child) < 0) path.push_back({child, 0});
      continue;
    }
    ExprNode copy = node;
    for (ExprId& child : copy.children) child = known(child);
    known(visit.id) = intern(std::move(copy));
    path.pop_back();
  }
  return known(expr.root());
}

}  // namespace fdma
