// build: from the builder's shared nodes to a checked MaskExpr.
//
// One walk lists the nodes with operands first. One pass over the list infers types as the parser
// does and keeps the loops in order. The types of C++ exclude most faults, but a loop variable is
// only a name until its loop is built around it.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "fdma/masks/mask_builder.hpp"
#include "fdma/masks/mask_names.hpp"
#include "language/topk_shorthand.hpp"
#include "language/typing.hpp"

namespace fdma::mask {
namespace {

Error invalid(std::string message) {
  return Error{ErrorCode::invalid_argument, std::move(message)};
}

std::vector<ExprNode> list_nodes(const BuilderNodePtr& root) {
  std::vector<ExprNode> nodes;
  std::unordered_map<const BuilderNode*, ExprId> id_of;
  struct Visit {
    const BuilderNode* node;
    std::size_t next_operand;
  };
  std::vector<Visit> path = {{root.get(), 0}};
  while (!path.empty() && static_cast<std::int64_t>(nodes.size()) <= kMaxExprNodes) {
    Visit& visit = path.back();
    const BuilderNode& node = *visit.node;
    if (visit.next_operand < node.operands.size()) {
      const BuilderNode* operand = node.operands[visit.next_operand++].get();
      if (!id_of.contains(operand)) path.push_back({operand, 0});
      continue;
    }
    ExprNode listed = node.data;
    for (const BuilderNodePtr& operand : node.operands)
      listed.children.push_back(id_of.at(operand.get()));
    id_of.emplace(&node, static_cast<ExprId>(nodes.size()));
    nodes.push_back(std::move(listed));
    path.pop_back();
  }
  return nodes;
}

// The facts of a node beside its type that the checks need: the loops inside it and their depth.
struct Loops {
  std::uint64_t bound = 0;
  int depth = 0;
};

class Checker {
 public:
  explicit Checker(const std::vector<ExprNode>& nodes) : nodes_(nodes) {}
  Result<void> run();

 private:
  Result<void> check_name(const ExprNode& node) const;
  Result<std::uint64_t> bit_of(const std::string& loop_variable);
  Result<void> check_loop(const ExprNode& node, ExprFacts& facts, Loops& loops);

  const std::vector<ExprNode>& nodes_;
  std::vector<ExprFacts> facts_;
  std::vector<Loops> loops_;
  std::vector<std::string> loop_variables_;
};

bool is_language_variable(const std::string& name) {
  const auto cell = cell_variables();
  return name == "inf" || name == "left" || name == "right" ||
         std::find(cell.begin(), cell.end(), name) != cell.end();
}

Result<void> Checker::check_name(const ExprNode& node) const {
  const bool is_loop = node.op == ExprOp::any_of || node.op == ExprOp::all_of ||
                       (node.op == ExprOp::variable && !is_language_variable(node.symbol));
  if ((is_loop || node.op == ExprOp::table) && !is_identifier(node.symbol))
    return invalid(
        fmt::format("{} \"{}\": a name has letters, digits and underscores and does not "
                    "begin with a digit",
                    is_loop ? "loop variable" : "table", node.symbol));
  if (is_loop && is_reserved(node.symbol))
    return invalid(fmt::format("loop variable \"{}\" is a word of the language", node.symbol));
  return {};
}

Result<std::uint64_t> Checker::bit_of(const std::string& loop_variable) {
  constexpr std::size_t kMaxNames = 64;
  const auto place = std::find(loop_variables_.begin(), loop_variables_.end(), loop_variable);
  const auto index = static_cast<std::size_t>(place - loop_variables_.begin());
  if (index >= kMaxNames)
    return invalid(fmt::format("more than {} different loop variables", kMaxNames));
  if (place == loop_variables_.end()) loop_variables_.push_back(loop_variable);
  return std::uint64_t{1} << index;
}

Result<void> Checker::check_loop(const ExprNode& node, ExprFacts& facts, Loops& loops) {
  FDMA_TRY(const std::uint64_t bit, bit_of(node.symbol));
  if (loops.bound & bit)
    return invalid(fmt::format("loop variable \"{0}\" is used by a loop and again by one inside it",
                               node.symbol));
  if (facts_[static_cast<std::size_t>(node.children[0])].free_loops & bit)
    return invalid(fmt::format("the bound of the loop over \"{0}\" mentions {0}", node.symbol));
  facts.free_loops &= ~bit;
  loops.bound |= bit;
  if (++loops.depth > kMaxLoopDepth)
    return invalid(fmt::format("any_of and all_of nest at most {} deep", kMaxLoopDepth));
  return {};
}

Result<void> Checker::run() {
  std::vector<ExprFacts> operands;
  for (const ExprNode& node : nodes_) {
    FDMA_TRY_VOID(check_name(node));
    Loops loops;
    operands.clear();
    for (const ExprId child : node.children) {
      const auto c = static_cast<std::size_t>(child);
      operands.push_back(facts_[c]);
      loops.bound |= loops_[c].bound;
      loops.depth = std::max(loops.depth, loops_[c].depth);
    }
    std::optional<TypeProblem> problem;
    ExprFacts facts = infer(node, operands, problem);
    if (node.op == ExprOp::any_of || node.op == ExprOp::all_of)
      FDMA_TRY_VOID(check_loop(node, facts, loops));
    if (problem) return invalid(problem->message);
    if (node.op == ExprOp::variable && !is_language_variable(node.symbol)) {
      FDMA_TRY(facts.free_loops, bit_of(node.symbol));
    }
    facts_.push_back(facts);
    loops_.push_back(loops);
  }
  for (std::size_t i = 0; i < loop_variables_.size(); ++i)
    if (facts_.back().free_loops >> i & 1)
      return invalid(fmt::format("loop variable \"{}\" is used outside any_of and all_of",
                                 loop_variables_[i]));
  return {};
}

}  // namespace

Result<MaskExpr> build(const BoolExpr& mask) {
  std::vector<ExprNode> nodes = list_nodes(mask.node());
  if (static_cast<std::int64_t>(nodes.size()) > kMaxExprNodes)
    return invalid(fmt::format("the expression has more than {} operations", kMaxExprNodes));
  auto root = static_cast<ExprId>(nodes.size() - 1);
  if (auto problem = expand_topk_shorthand(nodes, root))
    return invalid(std::move(problem->message));
  root = drop_dead_nodes(nodes, root);
  FDMA_TRY_VOID(Checker(nodes).run());
  const auto shared = std::make_shared<const std::vector<ExprNode>>(std::move(nodes));
  return MaskExpr(shared, root, to_text(MaskExpr(shared, root)));
}

}  // namespace fdma::mask
