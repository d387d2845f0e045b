// The top-level conjunction is the tree of `&` nodes at the root. If exactly one of its members
// M1 .. Mn is a topk, and that one has no `among`, the root becomes
// topk(scores, w, among=M1 & .. & Mn without it). Example: `causal & topk(@s, 64) & window(512)` is
// `topk(@s, 64, among=causal & window(512))`. Not an example: `causal | topk(@s, 64)`.
#include "language/topk_shorthand.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

namespace fdma {
namespace {

bool is_topk(const ExprNode& node) { return node.op == ExprOp::named && node.symbol == "topk"; }
bool lacks_among(const ExprNode& node) { return is_topk(node) && node.children.size() == 2; }

// Marks the nodes that `root` reaches. Children come before their parents, so one pass is enough.
std::vector<bool> reachable(const std::vector<ExprNode>& nodes, ExprId root) {
  std::vector<bool> is_live(nodes.size(), false);
  is_live[static_cast<std::size_t>(root)] = true;
  for (std::size_t id = static_cast<std::size_t>(root) + 1; id-- > 0;)
    if (is_live[id])
      for (const ExprId child : nodes[id].children) is_live[static_cast<std::size_t>(child)] = true;
  return is_live;
}

Diagnostic complain(const ExprNode& node, const char* message) {
  Diagnostic diagnostic;
  diagnostic.span = node.span;
  diagnostic.message = message;
  return diagnostic;
}

}  // namespace

std::optional<Diagnostic> expand_topk_shorthand(std::vector<ExprNode>& nodes, ExprId& root) {
  if (std::none_of(nodes.begin(), nodes.end(), lacks_among)) return std::nullopt;
  const auto node = [&](ExprId id) -> const ExprNode& {
    return nodes[static_cast<std::size_t>(id)];
  };
  // A member or conjunction met twice (by let) counts once, because a & a is a.
  std::vector<ExprId> members, open = {root};
  std::vector<bool> is_met(nodes.size(), false);
  while (!open.empty()) {
    const ExprId id = open.back();
    open.pop_back();
    if (is_met[static_cast<std::size_t>(id)]) continue;
    is_met[static_cast<std::size_t>(id)] = true;
    if (node(id).op == ExprOp::logical_and) {
      open.push_back(node(id).children[1]);
      open.push_back(node(id).children[0]);
    } else {
      members.push_back(id);
    }
  }
  ExprId selected = -1;
  int num_topk = 0;
  for (const ExprId id : members) {
    if (!is_topk(node(id))) continue;
    ++num_topk;
    if (lacks_among(node(id))) selected = id;
  }
  if (selected >= 0 && num_topk > 1)
    return complain(node(selected),
                    "topk without among= must be the only topk of its conjunction: write "
                    "topk(@scores, w, among=M)");
  if (selected >= 0 && members.size() > 1) {
    ExprId rest = -1;
    for (const ExprId id : members) {
      if (id == selected) continue;
      if (rest >= 0) {
        const SourceSpan span{std::min(node(rest).span.begin, node(id).span.begin),
                              std::max(node(rest).span.end, node(id).span.end)};
        nodes.push_back(ExprNode{ExprOp::logical_and, 0, {}, {rest, id}, {}, span});
      }
      rest = rest < 0 ? id : static_cast<ExprId>(nodes.size() - 1);
    }
    ExprNode whole = node(selected);
    whole.children.push_back(rest);
    whole.arg_names.push_back("among");
    nodes.push_back(std::move(whole));
    root = static_cast<ExprId>(nodes.size() - 1);
  }
  const std::vector<bool> is_live = reachable(nodes, root);
  for (std::size_t id = 0; id < nodes.size(); ++id)
    if (is_live[id] && lacks_among(nodes[id]))
      return complain(nodes[id],
                      "topk needs among= here: write topk(@scores, w, among=M); only in the "
                      "top-level conjunction `M & topk(@scores, w)` is it implied");
  return std::nullopt;
}

ExprId drop_dead_nodes(std::vector<ExprNode>& nodes, ExprId root) {
  const std::vector<bool> is_live = reachable(nodes, root);
  std::vector<ExprId> new_id(nodes.size(), -1);
  std::size_t count = 0;
  for (std::size_t id = 0; id < nodes.size(); ++id) {
    if (!is_live[id]) continue;
    new_id[id] = static_cast<ExprId>(count);
    for (ExprId& child : nodes[id].children) child = new_id[static_cast<std::size_t>(child)];
    if (count != id) nodes[count] = std::move(nodes[id]);
    ++count;
  }
  nodes.resize(count, ExprNode{});
  return new_id[static_cast<std::size_t>(root)];
}

}  // namespace fdma
