#include "language/typing.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "language/operators.hpp"

namespace fdma {
namespace {

std::string describe_type(ExprType type) {
  switch (type) {
    case ExprType::integer:
      return "an integer";
    case ExprType::condition:
      return "a condition";
    case ExprType::table:
      return "a table entry";
    case ExprType::symbol:
      return "a word like inf";
    case ExprType::error:
      break;
  }
  return "an error";
}

// What joins two conditions where `op` was written for it; empty: nothing does.
std::string_view joined_by(ExprOp op) {
  switch (op) {
    case ExprOp::add:
      return "conditions are joined by a | b";
    case ExprOp::mul:
      return "conditions are joined by a & b";
    case ExprOp::sub:
      return "what only the left side has is a & ~b";
    default:
      return {};
  }
}

std::string_view remedy(ExprType wanted) {
  return wanted == ExprType::integer ? "int(..) makes an integer of a condition"
                                     : "compare the integer, for example with != 0";
}

std::string operand_name(const ExprNode& node, std::size_t child) {
  if (node.op == ExprOp::table) return fmt::format("index {}", child + 1);
  if (node.children.size() == 1) return "its operand";
  const OperatorFacts& facts = operator_facts(node.op);
  if (facts.types == OperandTypes::quantifier) return child == 0 ? "its bound" : "its body";
  if (facts.is_infix()) return child == 0 ? "its left side" : "its right side";
  return fmt::format("argument {}", child + 1);
}

std::string node_name(const ExprNode& node) {
  return node.op == ExprOp::table ? "@" + node.symbol : fmt::format("'{}'", spelling(node.op));
}

class Inference {
 public:
  Inference(const ExprNode& node, std::span<const ExprFacts> children)
      : node_(node), children_(children) {
    for (const ExprFacts& child : children) {
      facts_.depends_on_cell |= child.depends_on_cell;
      facts_.free_loops |= child.free_loops;
      has_error_ |= child.type == ExprType::error;
    }
  }

  ExprFacts run();
  std::optional<TypeProblem> problem() && { return std::move(problem_); }

 private:
  void need(std::size_t child, ExprType wanted) {
    if (fits(children_[child], wanted)) return;
    if (children_[child].type == ExprType::symbol) return report_symbol(child);
    report(child, fmt::format("{} needs {}, but {} is {}: {}", node_name(node_),
                              wanted == ExprType::integer ? "integers" : "conditions",
                              operand_name(node_, child), describe_type(children_[child].type),
                              are_conditions() && !joined_by(node_.op).empty() ? joined_by(node_.op)
                                                                               : remedy(wanted)));
  }
  bool are_conditions() const {
    return std::all_of(children_.begin(), children_.end(),
                       [](const ExprFacts& child) { return child.type == ExprType::condition; });
  }
  void need_all(ExprType wanted) {
    for (std::size_t i = 0; i < children_.size(); ++i) need(i, wanted);
  }
  // Checks that two values have one type. Returns that type.
  ExprType need_same(std::size_t x, std::size_t y, const char* what) {
    const ExprType a = children_[x].type, b = children_[y].type;
    for (const std::size_t child : {x, y})
      if (children_[child].type == ExprType::symbol) report_symbol(child);
    if (a == ExprType::table) return b;
    if (b == ExprType::table || a == b) return a;
    report(y, fmt::format("{} needs {} of one type, but one is {} and the other {}",
                          node_name(node_), what, describe_type(a), describe_type(b)));
    return ExprType::error;
  }
  void report_symbol(std::size_t child) {
    report(child, fmt::format("{} takes no such word: inf is only a bound of window, dilated and "
                              "sink, left and right are only a side of padding",
                              node_name(node_)));
  }
  void report(std::size_t child, std::string message) {
    if (!problem_ && !has_error_)
      problem_ = TypeProblem{static_cast<int>(child), std::move(message)};
  }
  void check_named();
  void check_variable();

  const ExprNode& node_;
  std::span<const ExprFacts> children_;
  ExprFacts facts_;
  bool has_error_ = false;
  std::optional<TypeProblem> problem_;
};

void Inference::check_variable() {
  facts_.type = ExprType::integer;
  facts_.depends_on_cell = node_.symbol == "q" || node_.symbol == "k" || node_.symbol == "pos";
  if (node_.symbol == "inf" || node_.symbol == "left" || node_.symbol == "right")
    facts_.type = ExprType::symbol;
}

void Inference::check_named() {
  facts_.type = ExprType::condition;
  facts_.depends_on_cell = true;
  const NameForm* form = form_of(node_);
  if (form == nullptr) {
    // A topk without `among`, until the parser has moved the rest of the conjunction into it.
    const std::span<const NameForm> forms = forms_of(node_.symbol);
    if (forms.size() == 1 && node_.children.size() <= forms[0].parameters.size()) form = &forms[0];
  }
  if (form == nullptr) {
    problem_ = TypeProblem{-1, fmt::format("{} has no form with these arguments", node_.symbol)};
    return;
  }
  for (std::size_t i = 0; i < node_.children.size(); ++i) {
    const Parameter& parameter = form->parameters[i];
    const ExprFacts& child = children_[i];
    const auto expected = [&](std::string_view what) {
      report(i, fmt::format("{}: {} must be {}, but this is {}", node_.symbol, parameter.name, what,
                            child.is_whole_table ? "a table" : describe_type(child.type)));
    };
    bool is_number = false;
    switch (parameter.kind) {
      case ParameterKind::integer:
      case ParameterKind::cell_integer:
        is_number = true;
        if (!fits(child, ExprType::integer)) expected("an integer");
        break;
      case ParameterKind::integer_or_inf:
        is_number = child.type != ExprType::symbol;
        if (is_number && !fits(child, ExprType::integer)) expected("an integer or inf");
        break;
      case ParameterKind::integer_or_table:
        is_number = !child.is_whole_table;
        if (is_number && !fits(child, ExprType::integer)) expected("an integer or a table @name");
        break;
      case ParameterKind::table:
        if (!child.is_whole_table)
          expected(child.type == ExprType::table ? "the table itself, written @name without indices"
                                                 : "a table, written @name");
        break;
      case ParameterKind::side:
        if (child.type != ExprType::symbol) expected("left or right");
        break;
      case ParameterKind::condition:
        if (!fits(child, ExprType::condition)) expected("a condition");
        break;
      case ParameterKind::any_value:
        break;
    }
    if (is_number && (child.depends_on_cell || child.free_loops != 0))
      report(i, fmt::format("{}: {} is one number for every cell of a batch element and head: it "
                            "cannot depend on q, k, pos or a loop variable",
                            node_.symbol, parameter.name));
  }
}

ExprFacts Inference::run() {
  facts_.type = ExprType::condition;
  switch (operator_facts(node_.op).types) {
    case OperandTypes::integers:
      need_all(ExprType::integer);
      facts_.type = ExprType::integer;
      break;
    case OperandTypes::comparison:
      need_all(ExprType::integer);
      break;
    case OperandTypes::equality:
      need_same(0, 1, "two sides");
      break;
    case OperandTypes::conditions:
      need_all(ExprType::condition);
      break;
    case OperandTypes::count:
      need_all(ExprType::condition);
      facts_.type = ExprType::integer;
      break;
    case OperandTypes::choice:
      need(0, ExprType::condition);
      facts_.type = need_same(1, 2, "two branches");
      break;
    case OperandTypes::quantifier:
      need(0, ExprType::integer);
      need(1, ExprType::condition);
      if (children_[0].depends_on_cell || children_[0].free_loops != 0)
        report(0, fmt::format("the bound of {} is one number for every cell of a batch element and "
                              "head: it cannot depend on q, k, pos or a loop variable",
                              node_name(node_)));
      break;
    case OperandTypes::moved:
      need(0, ExprType::condition);
      need(1, ExprType::integer);
      need(2, ExprType::integer);
      facts_.depends_on_cell = children_[1].depends_on_cell || children_[2].depends_on_cell;
      break;
    case OperandTypes::variable:
      check_variable();
      break;
    case OperandTypes::entry:
      need_all(ExprType::integer);
      facts_.type = ExprType::table;
      facts_.is_whole_table = children_.empty();
      break;
    case OperandTypes::mask:
      check_named();
      break;
  }
  if (has_error_ || problem_) facts_.type = ExprType::error;
  return facts_;
}

}  // namespace

bool fits(const ExprFacts& facts, ExprType wanted) {
  return facts.type == wanted || facts.type == ExprType::table || facts.type == ExprType::error;
}

ExprFacts infer(const ExprNode& node, std::span<const ExprFacts> children,
                std::optional<TypeProblem>& problem) {
  Inference inference(node, children);
  const ExprFacts facts = inference.run();
  problem = std::move(inference).problem();
  return facts;
}

}  // namespace fdma
