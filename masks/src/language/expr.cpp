// Queries of expressions: equality, names mentioned, the dump.
#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "fdma/masks/mask_expr.hpp"
#include "language/expr_interner.hpp"
#include "language/operators.hpp"

namespace fdma {

bool operator==(const MaskExpr& a, const MaskExpr& b) {
  if (a.empty() || b.empty()) return a.empty() == b.empty();
  ExprInterner interner;
  const ExprId root = interner.add(a);
  return interner.add(b) == root;
}

std::string dump(const MaskExpr& expr) {
  std::string out;
  if (expr.empty()) return out;
  for (std::size_t id = 0; id < expr.nodes().size(); ++id) {
    const ExprNode& node = expr.nodes()[id];
    out += fmt::format("%{} = ", id);
    switch (node.op) {
      case ExprOp::literal:
        out += fmt::format("{}", node.value);
        break;
      case ExprOp::boolean:
        out += node.value != 0 ? "true" : "false";
        break;
      case ExprOp::variable:
        out += node.symbol;
        break;
      case ExprOp::table:
        out += "@" + node.symbol;
        break;
      case ExprOp::named:
        out += node.symbol;
        break;
      case ExprOp::negate:
        out += "negate";
        break;
      default:
        out += spelling(node.op);
        if (!node.symbol.empty()) out += " " + node.symbol;
        break;
    }
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      const bool has_name = i < node.arg_names.size() && !node.arg_names[i].empty();
      out += has_name ? fmt::format(" {}=%{}", node.arg_names[i], node.children[i])
                      : fmt::format(" %{}", node.children[i]);
    }
    out += '\n';
  }
  return out;
}

std::vector<std::string> table_names(const MaskExpr& expr) {
  std::set<std::string> names;
  if (!expr.empty())
    for (const ExprNode& node : expr.nodes())
      if (node.op == ExprOp::table) names.insert(node.symbol);
  return {names.begin(), names.end()};
}

bool mentions_variable(const MaskExpr& expr, std::string_view name) {
  if (expr.empty()) return false;
  const bool is_in_names = name != "b" && name != "h";
  return std::any_of(expr.nodes().begin(), expr.nodes().end(), [&](const ExprNode& node) {
    return (node.op == ExprOp::variable && node.symbol == name) ||
           (node.op == ExprOp::named && is_in_names);
  });
}

}  // namespace fdma
