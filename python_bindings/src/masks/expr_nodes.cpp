// Names the loop variables and tables that have no name in Python.
//
// A loop variable is the argument of a lambda, and a table may be an array without a name. Both
// have symbols that are unique in the process, so that any two expressions can be combined. They
// get names when an expression is finished, in one walk that visits operands first:
//
//   tables   in the order of their first use. A table gets the first name of wish, wish1, wish2, ..
//            (for the wish "t": t0, t1, ..) that no other table has
//   loops    inner loops first. A loop gets its wish, else the first letter that no loop inside it
//            has. A name thus depends on the body of the loop and not on the expression around it,
//            so that a shared node has one name
//
// A walk keeps its path on the heap, since users may nest expressions to any depth.
#include "masks/expr_nodes.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <set>
#include <unordered_map>
#include <unordered_set>

#include "fdma/masks/mask_names.hpp"

namespace fdma::python {
namespace {

using mask::BuilderNode;
using mask::BuilderNodePtr;
using Names = std::map<std::string, std::string>;

constexpr std::size_t kMany = ~std::size_t{0};
struct Operation {
  std::string_view name;
  ExprOp op;
  std::size_t least;
  std::size_t most;
  std::string_view spelling;
  std::string_view python;
};
constexpr Operation kOperations[] = {
#define FDMA_OPERATOR(name, spelling, word, binds, least, most, types, parameters, python, ...) \
  {#name, ExprOp::name, least, most, spelling, python},
#define FDMA_LANGUAGE_OPERATOR FDMA_OPERATOR
#include "fdma/masks/operators.def"
};

Error invalid(std::string message) { return {ErrorCode::invalid_argument, std::move(message)}; }

// The operation of a name, for this number of operands.
Result<const Operation*> find_operation(std::string_view name, std::size_t num_operands) {
  const auto* found = std::find_if(
      std::begin(kOperations), std::end(kOperations),
      [&](const Operation& known) { return known.name == name && known.op != ExprOp::named; });
  if (found == std::end(kOperations)) return invalid(fmt::format("op: no operation '{}'", name));
  if (num_operands >= found->least && num_operands <= found->most) return found;
  return invalid(fmt::format("{}: expected {} operands, got {}", name,
                             found->most == kMany ? "two or more"
                             : found->least == found->most
                                 ? fmt::format("{}", found->least)
                                 : fmt::format("{} to {}", found->least, found->most),
                             num_operands));
}

std::vector<BuilderNodePtr> pointers(const std::vector<NodeHandle>& operands) {
  std::vector<BuilderNodePtr> result;
  result.reserve(operands.size());
  for (const NodeHandle& operand : operands) result.push_back(operand.node);
  return result;
}

bool is_loop(ExprOp op) { return op == ExprOp::any_of || op == ExprOp::all_of; }
bool is_automatic(const ExprNode& node) {
  if (node.symbol.empty()) return false;
  return node.symbol[0] == kAutomaticTable || node.symbol[0] == kAutomaticLoop;
}
std::string wish_of(const std::string& symbol) { return symbol.substr(symbol.find(':') + 1); }

// Every node that `root` reaches, operands first, each once.
std::vector<BuilderNodePtr> list_nodes(const BuilderNodePtr& root) {
  std::vector<BuilderNodePtr> listed;
  std::unordered_set<const BuilderNode*> met = {root.get()};
  struct Visit {
    BuilderNodePtr node;
    std::size_t next_operand;
  };
  std::vector<Visit> path = {{root, 0}};
  while (!path.empty()) {
    Visit& visit = path.back();
    if (visit.next_operand < visit.node->operands.size()) {
      const BuilderNodePtr& operand = visit.node->operands[visit.next_operand++];
      if (met.insert(operand.get()).second) path.push_back({operand, 0});
      continue;
    }
    listed.push_back(std::move(visit.node));
    path.pop_back();
  }
  return listed;
}

class Naming {
 public:
  Naming(const std::vector<BuilderNodePtr>& nodes, const Names& same, bool ignore_wishes)
      : same_(same), ignore_wishes_(ignore_wishes) {
    for (const BuilderNodePtr& node : nodes)
      if (node->data.op == ExprOp::table && !is_automatic(node->data))
        taken_tables_.insert(node->data.symbol);
    for (const BuilderNodePtr& node : nodes) name_table(node->data);
    name_loops(nodes);
  }

  const std::string& name_of(const std::string& symbol) const {
    const auto found = names_.find(symbol);
    return found == names_.end() ? symbol : found->second;
  }
  Names table_names() const {
    Names tables;
    for (const auto& [symbol, name] : names_)
      if (symbol[0] == kAutomaticTable) tables.emplace(symbol, name);
    return tables;
  }

 private:
  void name_table(const ExprNode& node) {
    if (node.op != ExprOp::table || !is_automatic(node) || names_.contains(node.symbol)) return;
    const auto other = same_.find(node.symbol);
    const std::string& symbol = other == same_.end() ? node.symbol : other->second;
    if (!names_.contains(symbol)) names_.emplace(symbol, new_table_name(symbol));
    names_.emplace(node.symbol, name_of(symbol));
  }
  std::string new_table_name(const std::string& symbol) {
    std::string wish = ignore_wishes_ ? "" : wish_of(symbol);
    if (!is_identifier(wish)) wish = "t";
    if (wish != "t" && taken_tables_.insert(wish).second) return wish;
    for (int i = wish == "t" ? 0 : 1;; ++i) {
      std::string name = fmt::format("{}{}", wish, i);
      if (taken_tables_.insert(name).second) return name;
    }
  }

  // Names the loop variables. `inside` has, for each node, the names of the loops in it.
  void name_loops(const std::vector<BuilderNodePtr>& nodes) {
    std::unordered_map<const BuilderNode*, std::set<std::string>> inside;
    for (const BuilderNodePtr& node : nodes) {
      std::set<std::string> names;
      for (const BuilderNodePtr& operand : node->operands) {
        const auto found = inside.find(operand.get());
        if (found != inside.end()) names.insert(found->second.begin(), found->second.end());
      }
      if (is_loop(node->data.op)) {
        if (is_automatic(node->data) && !names_.contains(node->data.symbol))
          names_.emplace(node->data.symbol, new_loop_name(node->data.symbol, names));
        names.insert(name_of(node->data.symbol));
      }
      if (!names.empty()) inside.emplace(node.get(), std::move(names));
    }
    // Variables that no loop binds get a name for printing. finish() rejects such an expression.
    for (const BuilderNodePtr& node : nodes)
      if (node->data.op == ExprOp::variable && is_automatic(node->data))
        names_.emplace(node->data.symbol, new_loop_name(node->data.symbol, {}));
  }
  std::string new_loop_name(const std::string& symbol, const std::set<std::string>& inside) const {
    const auto serves = [&](const std::string& name) {
      return is_identifier(name) && !is_reserved(name) && !inside.contains(name);
    };
    std::string wish = wish_of(symbol);
    if (!ignore_wishes_ && serves(wish)) return wish;
    for (const char letter : std::string_view("ijlmnoprstuvwxyz"))
      if (serves(std::string(1, letter))) return std::string(1, letter);
    for (int i = 1;; ++i)
      if (std::string name = fmt::format("i{}", i); serves(name)) return name;
  }

  const Names& same_;
  bool ignore_wishes_;
  Names names_;
  std::set<std::string> taken_tables_;
};

bool is_comparison(const BuilderNode& node) {
  return node.data.op >= ExprOp::less && node.data.op <= ExprOp::greater;
}

// If `node` is a chain, a & b with a = (.. < x) and b = (x < ..), the node x, which the text has
// only once; else null.
const BuilderNode* shared_in_chain(const BuilderNode& node) {
  if (node.data.op != ExprOp::logical_and) return nullptr;
  const BuilderNode* left = node.operands[0].get();
  const BuilderNode& right = *node.operands[1];
  if (left->data.op == ExprOp::logical_and) left = left->operands[1].get();
  if (!is_comparison(*left) || !is_comparison(right)) return nullptr;
  const BuilderNode* shared = left->operands[1].get();
  return shared == right.operands[0].get() ? shared : nullptr;
}

// True if the text would have more operations than a text may have. A node that mentions the
// variable of a loop cannot be a let, so the text has it at every use, and sharing inside loops may
// double the text at every step.
bool is_too_long(const std::vector<BuilderNodePtr>& nodes, const Naming& naming) {
  constexpr std::size_t kMaxBits = 64;  // one bit a name; loops side by side share names
  struct Written {
    std::int64_t operations = 1;
    std::uint64_t loops = 0;  // a bit for each loop whose variable the node mentions
  };
  std::unordered_map<const BuilderNode*, Written> written;
  std::map<std::string, std::uint64_t> bits;
  const auto bit_of = [&](const std::string& symbol) {
    return bits.emplace(symbol, std::uint64_t{1} << std::min(bits.size(), kMaxBits - 1))
        .first->second;
  };
  std::int64_t total = 0;
  for (const BuilderNodePtr& node : nodes) {
    const ExprNode& data = node->data;
    Written own;
    for (const BuilderNodePtr& operand : node->operands) {
      const Written& inner = written.at(operand.get());
      own.loops |= inner.loops;
      if (inner.loops != 0) own.operations += inner.operations;
    }
    const BuilderNode* shared = shared_in_chain(*node);
    if (shared != nullptr && written.at(shared).loops != 0)
      own.operations -= written.at(shared).operations;
    const std::string& name = naming.name_of(data.symbol);
    if (data.op == ExprOp::variable && !is_reserved(name)) own.loops |= bit_of(name);
    if (is_loop(data.op) && bits.size() < kMaxBits) own.loops &= ~bit_of(name);
    own.operations = std::min(own.operations, kMaxExprNodes + 1);
    if (own.loops == 0) total += own.operations;
    if (own.operations > kMaxExprNodes || total > kMaxExprNodes) return true;
    written.emplace(node.get(), own);
  }
  return false;
}

}  // namespace

std::vector<NameTriple> operator_names() {
  std::vector<NameTriple> names;
  for (const Operation& known : kOperations)
    if (!known.python.empty())
      names.emplace_back(std::string(known.name), std::string(known.spelling),
                         std::string(known.python));
  return names;
}

std::vector<NameTriple> named_masks() {
  std::vector<NameTriple> names;
  for (const NameForm& form : name_forms())
    if (form.op == ExprOp::named)
      names.emplace_back(std::string(form.name), std::string(form.signature),
                         std::string(form.example));
  return names;
}

Result<NodeHandle> make_operation(std::string_view op, const std::vector<NodeHandle>& operands,
                                  std::int64_t value, std::string symbol) {
  FDMA_TRY(const Operation* found, find_operation(op, operands.size()));
  bool depends_on_cell = false;
  for (const NodeHandle& operand : operands) depends_on_cell |= operand.depends_on_cell;
  if (found->op == ExprOp::at)
    depends_on_cell = operands[1].depends_on_cell || operands[2].depends_on_cell;
  if (found->op == ExprOp::variable) {
    const auto cell = cell_variables();
    depends_on_cell = symbol == "q" || symbol == "k" || symbol == "pos" ||
                      std::find(cell.begin(), cell.end(), symbol) == cell.end();
    if (symbol == "inf" || symbol == "left" || symbol == "right") depends_on_cell = false;
  }
  return NodeHandle{mask::make_node(found->op, pointers(operands), value, std::move(symbol)),
                    depends_on_cell};
}

Result<std::optional<std::int64_t>> fold_operation(std::string_view op,
                                                   const std::vector<std::int64_t>& operands) {
  FDMA_TRY(const Operation* found, find_operation(op, operands.size()));
  const bool has_value = !operands.empty() && found->op != ExprOp::table && !is_loop(found->op) &&
                         found->op != ExprOp::at;
  if (!has_value) return invalid(fmt::format("{}: no operation on numbers", op));
  return fold_operator(found->op, operands);
}

Result<NodeHandle> make_named(std::string_view name, const std::vector<NodeHandle>& operands,
                              std::vector<std::string> keywords) {
  const std::string shown(name);
  if (keywords.size() != operands.size())
    return invalid(
        fmt::format("{}: {} operands, but {} keywords", shown, operands.size(), keywords.size()));
  const ExprNode encoded{ExprOp::named, 0, shown, std::vector<ExprId>(operands.size()),
                         keywords,      {}};
  const NameForm* form = form_of(encoded);
  const bool is_shorthand = form == nullptr && name == "topk" && operands.size() == 2;
  if (is_shorthand) form = &forms_of(name)[0];
  if (form == nullptr || form->op != ExprOp::named)
    return invalid(fmt::format("{}: no named mask with these arguments", shown));
  for (std::size_t i = 0; i < operands.size(); ++i) {
    const ParameterKind kind = form->parameters[i].kind;
    const bool is_number = kind == ParameterKind::integer ||
                           kind == ParameterKind::integer_or_inf ||
                           kind == ParameterKind::integer_or_table;
    if (is_number && operands[i].depends_on_cell) {
      return invalid(
          fmt::format("{}: {} is one number for every cell of a batch element and head: it cannot "
                      "depend on q, k, pos or a loop variable",
                      shown, form->parameters[i].name));
    }
  }
  return NodeHandle{
      mask::make_node(ExprOp::named, pointers(operands), 0, shown, std::move(keywords)), true};
}

Result<FinishedExpr> finish(const NodeHandle& root, const Names& same, bool ignore_wishes) {
  const std::vector<BuilderNodePtr> nodes = list_nodes(root.node);
  if (std::none_of(nodes.begin(), nodes.end(),
                   [](const BuilderNodePtr& node) { return is_automatic(node->data); })) {
    FDMA_TRY(MaskExpr expr, mask::build(mask::BoolExpr(root.node)));
    return FinishedExpr{std::move(expr), {}};
  }
  const Naming naming(nodes, same, ignore_wishes);
  if (is_too_long(nodes, naming)) {
    return invalid(
        fmt::format("the expression has more than {} operations when it is written out; what is "
                    "shared inside any and all counts at each use",
                    kMaxExprNodes));
  }
  std::unordered_map<const BuilderNode*, BuilderNodePtr> renamed;
  const auto current = [&](const BuilderNodePtr& node) {
    const auto found = renamed.find(node.get());
    return found == renamed.end() ? node : found->second;
  };
  for (const BuilderNodePtr& node : nodes) {
    std::vector<BuilderNodePtr> operands;
    bool is_changed = is_automatic(node->data);
    for (const BuilderNodePtr& operand : node->operands) {
      operands.push_back(current(operand));
      is_changed |= operands.back() != operand;
    }
    if (!is_changed) continue;
    ExprNode data = node->data;
    if (is_automatic(data)) data.symbol = naming.name_of(data.symbol);
    renamed.emplace(node.get(),
                    std::make_shared<const BuilderNode>(std::move(data), std::move(operands)));
  }
  FDMA_TRY(MaskExpr expr, mask::build(mask::BoolExpr(current(root.node))));
  return FinishedExpr{std::move(expr), naming.table_names()};
}

std::string text_of(const NodeHandle& root, const Names& same) {
  const std::vector<BuilderNodePtr> nodes = list_nodes(root.node);
  const Naming naming(nodes, same, false);
  if (is_too_long(nodes, naming)) return fmt::format("(more than {} operations)", kMaxExprNodes);
  std::unordered_map<const BuilderNode*, ExprId> id_of;
  auto listed = std::make_shared<std::vector<ExprNode>>();
  for (const BuilderNodePtr& node : nodes) {
    ExprNode data = node->data;
    data.symbol = naming.name_of(data.symbol);
    for (const BuilderNodePtr& operand : node->operands)
      data.children.push_back(id_of.at(operand.get()));
    id_of.emplace(node.get(), static_cast<ExprId>(listed->size()));
    listed->push_back(std::move(data));
  }
  const auto last = static_cast<ExprId>(listed->size() - 1);
  return to_text(MaskExpr(std::move(listed), last));
}

std::optional<std::string> text_without_tables(const NodeHandle& root) {
  for (const BuilderNodePtr& node : list_nodes(root.node)) {
    if (node->data.op == ExprOp::table) return std::nullopt;
  }
  return text_of(root, {});
}

Names table_names_of(const NodeHandle& root, const Names& same) {
  return Naming(list_nodes(root.node), same, false).table_names();
}

NodeHandle nodes_of(const MaskExpr& expr, const Names& automatic, std::int64_t number) {
  std::vector<NodeHandle> made;
  for (const ExprNode& node : expr.nodes()) {
    ExprNode data = node;
    std::vector<BuilderNodePtr> operands;
    bool depends_on_cell = node.op == ExprOp::named;
    for (const ExprId child : node.children) {
      const NodeHandle& operand = made[static_cast<std::size_t>(child)];
      operands.push_back(operand.node);
      depends_on_cell |= operand.depends_on_cell;
    }
    data.children.clear();
    data.span = {};
    if (node.op == ExprOp::table) {
      const auto found = automatic.find(node.symbol);
      if (found != automatic.end()) data.symbol = found->second;
    }
    const bool is_variable = node.op == ExprOp::variable;
    if (is_loop(node.op) || (is_variable && !is_reserved(node.symbol))) {
      data.symbol = fmt::format("{}{}:{}", kAutomaticLoop, number, node.symbol);
      depends_on_cell = true;
    }
    if (node.op == ExprOp::at) {
      depends_on_cell = made[static_cast<std::size_t>(node.children[1])].depends_on_cell ||
                        made[static_cast<std::size_t>(node.children[2])].depends_on_cell;
    }
    if (is_variable && (node.symbol == "q" || node.symbol == "k" || node.symbol == "pos"))
      depends_on_cell = true;
    made.push_back({std::make_shared<const BuilderNode>(std::move(data), std::move(operands)),
                    depends_on_cell});
  }
  return made[static_cast<std::size_t>(expr.root())];
}

}  // namespace fdma::python
