// An expression as text.
//
// Equal subexpressions are first merged into one node (expr_interner.hpp), so the text depends on
// the structure only. A node that is used more than once, is not tiny and mentions no loop variable
// is written once, as a `let`. Everything else is written in place, with parentheses only where the
// precedences of docs/spec-language.md need them. A conjunction of comparisons that share their
// inner operands is written as the chain that it came from:
//
//     0 <= q - k & q - k < 4                         0 <= q - k < 4
//     q // 9 % 2 == 0 | q // 9 % 2 == k              let x1 = q // 9 % 2; x1 == 0 | x1 == k
//
// The lets keep the text linear in the nodes. Inside loop bodies the chains do so for every mask
// that came from a text, because chains are the only way to share nodes there.
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "fdma/masks/mask_expr.hpp"
#include "fdma/masks/mask_names.hpp"
#include "language/expr_interner.hpp"
#include "language/operators.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kSmallestLet = 4;  ///< nodes, all written out

bool is_comparison(ExprOp op) { return precedence_of(op) == kCompare; }

class Writer {
 public:
  explicit Writer(const MaskExpr& expr) {
    root_ = interner_.add(expr);
    measure();
    choose_chains();
    choose_lets();
  }

  std::string text() {
    for (ExprId id = 0; id < num_nodes(); ++id) {
      if (!is_let(id)) continue;
      const std::string name = fresh_name();
      out_ += "let " + name + " = ";
      write(id);
      out_ += "; ";
      let_names_[static_cast<std::size_t>(id)] = name;
    }
    write(root_);
    return std::move(out_);
  }

 private:
  // A piece still to be written: a node, or (id -1) plain text.
  struct Task {
    ExprId id;
    int least_precedence;
    std::string text;
  };

  ExprId num_nodes() const { return static_cast<ExprId>(interner_.nodes().size()); }
  const ExprNode& node(ExprId id) const { return interner_.nodes()[static_cast<std::size_t>(id)]; }
  bool is_let(ExprId id) const { return is_let_[static_cast<std::size_t>(id)]; }
  bool is_chain(ExprId id) const { return is_chain_[static_cast<std::size_t>(id)]; }

  void measure();
  void choose_chains();
  void choose_lets();
  bool is_loop_variable(const ExprNode& n) const;
  std::string fresh_name();
  void write(ExprId id);
  void expand(ExprId id, int least_precedence);
  void expand_chain(ExprId id);
  void expand_call(const ExprNode& n);
  void text_task(std::string text) { tasks_.push_back({-1, 0, std::move(text)}); }
  void node_task(ExprId id, int least_precedence) { tasks_.push_back({id, least_precedence, {}}); }
  // Tasks are pushed in reading order and then reversed, because the stack is read from its end.
  template <class Fill>
  void in_order(Fill fill) {
    const auto first = static_cast<std::ptrdiff_t>(tasks_.size());
    fill();
    std::reverse(tasks_.begin() + first, tasks_.end());
  }

  ExprInterner interner_;
  ExprId root_ = -1;
  std::vector<std::int64_t> size_;  ///< nodes when written out, saturating
  std::vector<bool> is_open_;       ///< mentions a loop variable of an enclosing loop
  std::vector<std::int64_t> uses_;
  std::vector<bool> is_chain_;
  std::vector<bool> is_let_;
  std::vector<std::string> let_names_;
  std::vector<std::string> taken_;  ///< names of loop variables, sorted
  int num_names_ = 0;
  std::vector<Task> tasks_;
  std::string out_;
};

bool Writer::is_loop_variable(const ExprNode& n) const {
  return n.op == ExprOp::variable && !is_reserved(n.symbol);
}

void Writer::measure() {
  const auto count = static_cast<std::size_t>(num_nodes());
  size_.assign(count, 1);
  uses_.assign(count, 0);
  is_open_.assign(count, false);
  let_names_.resize(count);
  std::vector<std::vector<std::string>> free(count);
  for (std::size_t id = 0; id < count; ++id) {
    const ExprNode& n = interner_.nodes()[id];
    if (is_loop_variable(n)) free[id].push_back(n.symbol);
    for (const ExprId child : n.children) {
      const auto c = static_cast<std::size_t>(child);
      ++uses_[c];
      size_[id] = std::min(size_[id] + size_[c], kSmallestLet);
      for (const std::string& name : free[c]) {
        const auto place = std::lower_bound(free[id].begin(), free[id].end(), name);
        if (place == free[id].end() || *place != name) free[id].insert(place, name);
      }
    }
    if (n.op == ExprOp::any_of || n.op == ExprOp::all_of) {
      std::erase(free[id], n.symbol);
      taken_.push_back(n.symbol);
    }
    is_open_[id] = !free[id].empty();
  }
  std::sort(taken_.begin(), taken_.end());
}

// A conjunction is a chain link if its right side is a comparison that begins with the operand with
// which the left side, a comparison or a chain, ends, and neither side will be a let.
void Writer::choose_chains() {
  const auto may_be_let = [&](ExprId id) {
    const auto i = static_cast<std::size_t>(id);
    return uses_[i] > 1 && size_[i] >= kSmallestLet && !is_open_[i];
  };
  is_chain_.assign(size_.size(), false);
  for (ExprId id = 0; id < num_nodes(); ++id) {
    const ExprNode& n = node(id);
    if (n.op != ExprOp::logical_and || may_be_let(n.children[0]) || may_be_let(n.children[1]))
      continue;
    const ExprNode& left = node(n.children[0]);
    const ExprNode& right = node(n.children[1]);
    const bool ends_in_comparison = is_comparison(left.op) || is_chain(n.children[0]);
    if (!ends_in_comparison || !is_comparison(right.op)) continue;
    const ExprNode& last = is_comparison(left.op) ? left : node(left.children[1]);
    is_chain_[static_cast<std::size_t>(id)] = last.children[1] == right.children[0];
  }
}

void Writer::choose_lets() {
  // A chain writes the operand that two links share once.
  for (ExprId id = 0; id < num_nodes(); ++id)
    if (is_chain(id)) --uses_[static_cast<std::size_t>(node(node(id).children[1]).children[0])];
  is_let_.assign(size_.size(), false);
  for (std::size_t id = 0; id < size_.size(); ++id)
    is_let_[id] = uses_[id] > 1 && size_[id] >= kSmallestLet && !is_open_[id];
}

std::string Writer::fresh_name() {
  for (;;) {
    std::string name = fmt::format("x{}", ++num_names_);
    if (!std::binary_search(taken_.begin(), taken_.end(), name)) return name;
  }
}

void Writer::write(ExprId id) {
  node_task(id, 0);
  while (!tasks_.empty()) {
    const Task task = std::move(tasks_.back());
    tasks_.pop_back();
    if (task.id < 0)
      out_ += task.text;
    else if (const std::string& name = let_names_[static_cast<std::size_t>(task.id)]; !name.empty())
      out_ += name;
    else
      expand(task.id, task.least_precedence);
  }
}

void Writer::expand(ExprId id, int least_precedence) {
  const ExprNode& n = node(id);
  const int own = is_chain(id) ? kCompare : precedence_of(n.op);
  in_order([&] {
    if (own < least_precedence) text_task("(");
    if (is_chain(id)) {
      expand_chain(id);
    } else if (own == kAtom) {
      expand_call(n);
    } else if (operator_facts(n.op).is_prefix()) {
      // -(5) is the negation of 5; -5 would be a literal.
      const ExprNode& operand = node(n.children[0]);
      const bool is_number =
          n.op == ExprOp::negate && operand.op == ExprOp::literal && operand.value >= 0;
      text_task(spelling(n.op));
      if (is_number) text_task("(");
      node_task(n.children[0], own);
      if (is_number) text_task(")");
    } else {
      const bool is_left_associative = own != kCompare;
      node_task(n.children[0], is_left_associative ? own : own + 1);
      text_task(fmt::format(" {} ", spelling(n.op)));
      node_task(n.children[1], own + 1);
    }
    if (own < least_precedence) text_task(")");
  });
}

void Writer::expand_chain(ExprId id) {
  std::vector<ExprId> links;
  for (; is_chain(id); id = node(id).children[0]) links.push_back(node(id).children[1]);
  links.push_back(id);
  std::reverse(links.begin(), links.end());
  node_task(node(links[0]).children[0], kCompare + 1);
  for (const ExprId link : links) {
    text_task(fmt::format(" {} ", spelling(node(link).op)));
    node_task(node(link).children[1], kCompare + 1);
  }
}

void Writer::expand_call(const ExprNode& n) {
  const auto list = [&](const char* open, const char* close) {
    for (std::size_t i = 0; i < n.children.size(); ++i) {
      text_task(i == 0 ? open : ", ");
      if (n.op == ExprOp::named && !n.arg_names[i].empty()) text_task(n.arg_names[i] + "=");
      if (n.op == ExprOp::at && i > 0) text_task(i == 1 ? "q=" : "k=");
      node_task(n.children[i], 0);
    }
    if (!n.children.empty()) text_task(close);
  };
  switch (n.op) {
    case ExprOp::literal:
      text_task(fmt::format("{}", n.value));
      break;
    case ExprOp::boolean:
      text_task(n.value != 0 ? "true" : "false");
      break;
    case ExprOp::variable:
      text_task(n.symbol);
      break;
    case ExprOp::table:
      text_task("@" + n.symbol);
      list("[", "]");
      break;
    case ExprOp::any_of:
    case ExprOp::all_of:
      text_task(fmt::format("{}({} in ", spelling(n.op), n.symbol));
      node_task(n.children[0], 0);
      text_task(" : ");
      node_task(n.children[1], 0);
      text_task(")");
      break;
    case ExprOp::named:
      text_task(n.symbol);
      list("(", ")");
      break;
    default:
      text_task(spelling(n.op));
      list("(", ")");
      break;
  }
}

}  // namespace

std::string to_text(const MaskExpr& expr) {
  return expr.empty() ? std::string() : Writer(expr).text();
}

}  // namespace fdma
