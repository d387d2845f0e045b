#include "bind/check.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "language/operators.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kLargestSize = std::int64_t{1} << 40;
constexpr std::int64_t kLoopWeight = 8;  // factor of a loop body in tree_size

class Checker {
 public:
  Checker(const MaskExpr& expr, const BoundTables& tables) : tables_(tables) {
    checked_.expr = &expr;
    checked_.facts.resize(expr.nodes().size());
  }

  Result<CheckedExpr> run() {
    const MaskExpr& expr = *checked_.expr;
    const std::vector<bool> is_reachable = reachable_nodes(expr);
    for (std::size_t id = 0; id < is_reachable.size(); ++id)
      fact(id).is_reachable = is_reachable[id];
    mark_arguments();
    loops_of_.resize(is_reachable.size());
    for (std::size_t id = 0; id < is_reachable.size(); ++id)
      if (is_reachable[id] && !fact(id).is_argument) FDMA_TRY_VOID(check(static_cast<ExprId>(id)));
    if (!checked_.fact(expr.root()).is_condition)
      return Error{ErrorCode::invalid_argument,
                   quote(expr, expr.root()) + " is an integer; a mask is a condition"};
    return std::move(checked_);
  }

 private:
  NodeFacts& fact(std::size_t id) { return checked_.facts[id]; }
  const NodeFacts& child_fact(const ExprNode& node, std::size_t i) const {
    return checked_.fact(node.children[i]);
  }

  // Marks nodes that are only arguments read whole; they are no expressions of their own.
  void mark_arguments() {
    const MaskExpr& expr = *checked_.expr;
    std::vector<bool> is_value(checked_.facts.size(), false);
    is_value[static_cast<std::size_t>(expr.root())] = true;
    for (std::size_t id = 0; id < checked_.facts.size(); ++id) {
      if (!fact(id).is_reachable) continue;
      const ExprNode& node = expr.nodes()[id];
      fact(id).form = form_of(node);
      for (std::size_t i = 0; i < node.children.size(); ++i) {
        const bool is_whole =
            fact(id).form != nullptr && is_whole_argument(*fact(id).form, node, i);
        if (!is_whole) is_value[static_cast<std::size_t>(node.children[i])] = true;
      }
    }
    for (std::size_t id = 0; id < checked_.facts.size(); ++id) fact(id).is_argument = !is_value[id];
  }

  bool is_whole_argument(const NameForm& form, const ExprNode& node, std::size_t i) const {
    const ExprNode& child = checked_.node(node.children[i]);
    const bool is_table = child.op == ExprOp::table && child.children.empty();
    switch (form.parameters[i].kind) {
      case ParameterKind::table:
      case ParameterKind::side:
        return true;
      case ParameterKind::integer_or_inf:
        return child.op == ExprOp::variable && child.symbol == "inf";
      case ParameterKind::integer_or_table:
        return is_table && tables_.whole(child.symbol).rank > 0;
      default:
        return false;
    }
  }

  Error wrong_type(ExprId id, std::size_t operand, bool wanted_condition) const {
    const ExprNode& node = checked_.node(id);
    const ExprNode& child = checked_.node(node.children[operand]);
    std::string got = wanted_condition ? "an integer" : "a condition";
    if (child.op == ExprOp::table)
      got = fmt::format("an entry of table '{}', {}", child.symbol,
                        describe(tables_.whole(child.symbol)));
    return {ErrorCode::invalid_argument,
            fmt::format("{}: expected {}, got {}", quote(*checked_.expr, id),
                        wanted_condition ? "a condition" : "an integer", got)};
  }

  Result<void> expect(ExprId id, std::size_t first, std::size_t last, bool condition) const {
    const ExprNode& node = checked_.node(id);
    for (std::size_t i = first; i < last; ++i)
      if (child_fact(node, i).is_condition != condition || child_fact(node, i).is_argument)
        return wrong_type(id, i, condition);
    return {};
  }

  Result<void> check_types(ExprId id) {
    const ExprNode& node = checked_.node(id);
    const std::size_t count = node.children.size();
    bool& is_condition = checked_.facts[static_cast<std::size_t>(id)].is_condition;
    is_condition = true;
    switch (operator_facts(node.op).types) {
      case OperandTypes::integers:
        is_condition = false;
        return expect(id, 0, count, false);
      case OperandTypes::variable:
        is_condition = false;
        return {};
      case OperandTypes::comparison:
        return expect(id, 0, count, false);
      case OperandTypes::equality:
        return expect(id, 1, count, child_fact(node, 0).is_condition);
      case OperandTypes::conditions:
        return expect(id, 0, count, true);
      case OperandTypes::count:
        is_condition = false;
        return expect(id, 0, count, true);
      case OperandTypes::choice:
        is_condition = child_fact(node, 1).is_condition;
        FDMA_TRY_VOID(expect(id, 0, 1, true));
        return expect(id, 2, count, is_condition);
      case OperandTypes::quantifier:
        FDMA_TRY_VOID(expect(id, 0, 1, false));
        return expect(id, 1, count, true);
      case OperandTypes::moved:
        checked_.has_at = true;
        FDMA_TRY_VOID(expect(id, 0, 1, true));
        return expect(id, 1, count, false);
      case OperandTypes::entry:
        return check_table(id);
      case OperandTypes::mask:
        return check_named(id);
    }
    return {};
  }

  Result<void> check_table(ExprId id) {
    const ExprNode& node = checked_.node(id);
    const IrTable& table = tables_.whole(node.symbol);
    checked_.facts[static_cast<std::size_t>(id)].is_condition = table.dtype == DType::boolean;
    if (table.rank != static_cast<int>(node.children.size())) {
      const bool may_be_mask =
          node.children.empty() && table.dtype == DType::boolean && table.rank > 1;
      return Error{ErrorCode::shape_mismatch,
                   fmt::format("{}: table '{}' is {}: expected {} {}, got {}{}",
                               quote(*checked_.expr, id), node.symbol, describe(table), table.rank,
                               table.rank == 1 ? "index" : "indices", node.children.size(),
                               may_be_mask ? fmt::format("; a table of cells is the mask bits(@{})",
                                                         node.symbol)
                                           : "")};
    }
    return expect(id, 0, node.children.size(), false);
  }

  Result<void> check_named(ExprId id) {
    const ExprNode& node = checked_.node(id);
    const NameForm* form = checked_.fact(id).form;
    if (form == nullptr)
      return Error{ErrorCode::internal,
                   "no form of the mask '" + node.symbol + "' has these arguments"};
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      const NodeFacts& child = child_fact(node, i);
      if (!child.is_argument && child.is_condition) return wrong_type(id, i, false);
      if (checked_.node(node.children[i]).op != ExprOp::table) continue;
      const int rank = tables_.whole(checked_.node(node.children[i]).symbol).rank;
      checked_.table_varies_by_batch |= rank > rank_of(form->parameters[i].table);
      checked_.table_varies_by_head |= rank == 4;
    }
    return {};
  }

  Result<void> check(ExprId id) {
    FDMA_TRY_VOID(check_types(id));
    const ExprNode& node = checked_.node(id);
    NodeFacts& own = checked_.facts[static_cast<std::size_t>(id)];
    own.is_scalar = node.op != ExprOp::named && node.op != ExprOp::at &&
                    node.op != ExprOp::any_of && node.op != ExprOp::all_of;
    std::vector<std::string_view>& loops = loops_of_[static_cast<std::size_t>(id)];
    for (const ExprId child_id : node.children) {
      const NodeFacts& child = checked_.fact(child_id);
      if (child.is_argument) continue;
      own.mentions_cell |= child.mentions_cell;
      own.is_scalar &= child.is_scalar;
      own.varies |= child.varies;
      own.tree_size = std::min(kLargestSize, own.tree_size + child.tree_size);
      for (const std::string_view loop : loops_of_[static_cast<std::size_t>(child_id)])
        if (std::find(loops.begin(), loops.end(), loop) == loops.end()) loops.push_back(loop);
    }
    switch (node.op) {
      case ExprOp::named:
        own.mentions_cell = true;
        break;
      case ExprOp::variable:
        if (node.symbol == "q" || node.symbol == "k" || node.symbol == "pos")
          own.mentions_cell = true;
        else if (node.symbol == "b" || node.symbol == "h")
          own.varies = true;
        else if (node.symbol != "q_len" && node.symbol != "kv_len")
          loops.push_back(node.symbol);
        break;
      case ExprOp::any_of:
      case ExprOp::all_of:
        // The bound cannot mention the loop's own variable; the parser ensures that.
        loops.erase(std::remove(loops.begin(), loops.end(), node.symbol), loops.end());
        own.tree_size = std::min(kLargestSize, own.tree_size * kLoopWeight);
        break;
      default:
        break;
    }
    own.mentions_loop = !loops.empty();
    own.is_scalar &= !own.mentions_cell && !own.mentions_loop;
    return {};
  }

  const BoundTables& tables_;
  CheckedExpr checked_;
  std::vector<std::vector<std::string_view>> loops_of_;  // free loop variables of each node
};

}  // namespace

std::vector<bool> reachable_nodes(const MaskExpr& expr) {
  std::vector<bool> is_reachable(expr.nodes().size(), false);
  if (expr.root() >= 0) is_reachable[static_cast<std::size_t>(expr.root())] = true;
  for (std::size_t id = expr.nodes().size(); id-- > 0;)
    if (is_reachable[id])
      for (const ExprId child : expr.nodes()[id].children)
        is_reachable[static_cast<std::size_t>(child)] = true;
  return is_reachable;
}

std::vector<std::string> mentioned_tables(const MaskExpr& expr) {
  const std::vector<bool> is_reachable = reachable_nodes(expr);
  std::vector<std::string> names;
  for (std::size_t id = 0; id < is_reachable.size(); ++id)
    if (is_reachable[id] && expr.nodes()[id].op == ExprOp::table)
      names.push_back(expr.nodes()[id].symbol);
  std::sort(names.begin(), names.end());
  names.erase(std::unique(names.begin(), names.end()), names.end());
  return names;
}

Result<void> check_supported(const MaskExpr& expr) {
  std::vector<bool> is_reachable(expr.nodes().size(), false);
  is_reachable[static_cast<std::size_t>(expr.root())] = true;
  for (ExprId id = expr.root(); id >= 0; --id) {
    if (!is_reachable[static_cast<std::size_t>(id)]) continue;
    const ExprNode& node = expr.node(id);
    for (const ExprId child : node.children) is_reachable[static_cast<std::size_t>(child)] = true;
    if (node.op == ExprOp::named && node.symbol == "topk")
      return Error{
          ErrorCode::unsupported,
          quote(expr, id) +
              ": topk selects keys by scores before a mask is bound: call compile, or give "
              "the selection as intervals(begin=, end=)"};
  }
  return {};
}

Result<CheckedExpr> check_expr(const MaskExpr& expr, const BoundTables& tables) {
  return Checker(expr, tables).run();
}

std::string quote(const MaskExpr& expr, ExprId id) {
  const ExprNode& node = expr.node(id);
  const std::string& text = expr.text();
  if (node.span.begin >= 0 && node.span.end > node.span.begin &&
      static_cast<std::size_t>(node.span.end) <= text.size()) {
    constexpr std::size_t kLongest = 60;
    std::string excerpt = text.substr(static_cast<std::size_t>(node.span.begin),
                                      static_cast<std::size_t>(node.span.end - node.span.begin));
    if (excerpt.size() > kLongest) excerpt = excerpt.substr(0, kLongest - 3) + "...";
    return "'" + excerpt + "'";
  }
  if (node.op == ExprOp::named || node.op == ExprOp::table || node.op == ExprOp::variable)
    return (node.op == ExprOp::table ? "'@" : "'") + node.symbol + "'";
  return std::string("'") + spelling(node.op) + "'";
}

}  // namespace fdma
