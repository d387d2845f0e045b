// One recursive evaluation per cell. Everything that is the same for all cells (tables, and named
// masks with their arguments) is prepared once per batch element and head. There is no other
// optimization.
#include "oracle.hpp"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>

#include "oracle_named.hpp"
#include "oracle_tables.hpp"
#include "oracle_topk.hpp"
#include "three_valued.hpp"

namespace fdma::reference {
namespace {

constexpr std::int32_t kMaxDepth = 2000;

/// The values of the variables for one evaluation. at(..) replaces q and k; loops add variables.
struct Place {
  Value q, k;
  const std::string* loop_name = nullptr;
  Value loop_value = {};
  const Place* outer = nullptr;  ///< the place around the innermost loop
};

class Oracle {
 public:
  Oracle(const MaskExpr& expr, const Tables& bound, const MaskShape& shape, std::int64_t b,
         std::int64_t h)
      : expr_(expr),
        bound_(bound),
        shape_(shape),
        b_(b),
        h_(h),
        q_len_(integer(shape.q_len(b))),
        kv_len_(integer(shape.kv_len(b))),
        tables_(expr.nodes().size()),
        named_(expr.nodes().size()),
        topk_(expr.nodes().size()) {}

  Result<void> prepare();
  Value evaluate(ExprId id, const Place& place) const;

 private:
  std::vector<bool> look_ups() const;
  Result<void> find_node_table(ExprId id);
  Result<void> check_type(ExprId id);
  enum class Variable : std::uint8_t { q, k, b, h, pos, q_len, kv_len, loop };
  static Variable find_variable(const std::string& name);
  Value variable(ExprId id, const Place& place) const;
  Value quantifier(const ExprNode& node, const Place& place) const;

  const MaskExpr& expr_;
  const Tables& bound_;
  const MaskShape& shape_;
  std::int64_t b_, h_;
  Value q_len_, kv_len_;
  std::vector<TensorView> tables_;               ///< for `table` nodes
  std::vector<std::optional<NamedMask>> named_;  ///< for `named` nodes except topk
  std::vector<std::optional<TopkCells>> topk_;   ///< for topk nodes
  std::vector<Variable> variables_;              ///< for `variable` nodes
  std::vector<bool> is_condition_;
};

Result<void> Oracle::prepare() {
  std::vector<std::int32_t> depth;
  for (const ExprNode& node : expr_.nodes()) {
    variables_.push_back(find_variable(node.symbol));
    std::int32_t deepest = 0;
    for (const ExprId child : node.children)
      deepest = std::max(deepest, depth[static_cast<std::size_t>(child)]);
    depth.push_back(deepest + 1);
    if (depth.back() > kMaxDepth)
      return Error{ErrorCode::unsupported, "oracle: the expression is too deep to recurse"};
  }
  const std::vector<bool> is_look_up = look_ups();
  for (ExprId id = 0; id < static_cast<ExprId>(expr_.nodes().size()); ++id) {
    const ExprNode& node = expr_.node(id);
    if (node.op == ExprOp::table && is_look_up[static_cast<std::size_t>(id)])
      FDMA_TRY_VOID(find_node_table(id));
    if (node.op == ExprOp::named && node.symbol == "topk") {
      const auto among = [&](Value q, Value k) { return evaluate(node.children[2], Place{q, k}); };
      const Value w = evaluate(node.children[1], Place{integer(0), integer(0)});
      FDMA_TRY(
          topk_[static_cast<std::size_t>(id)],
          TopkCells::make(expr_.node(node.children[0]).symbol, w, among, bound_, shape_, b_, h_));
    } else if (node.op == ExprOp::named) {
      const auto at_origin = [this](ExprId argument) {
        return evaluate(argument, Place{integer(0), integer(0)});
      };
      FDMA_TRY(NamedMask mask, NamedMask::make(expr_, id, bound_, shape_, b_, h_, at_origin));
      named_[static_cast<std::size_t>(id)] = std::move(mask);
    }
    FDMA_TRY_VOID(check_type(id));
  }
  if (!is_condition_[static_cast<std::size_t>(expr_.root())])
    return Error{ErrorCode::invalid_argument, "oracle: the mask is an integer, not a condition"};
  return {};
}

Result<void> Oracle::find_node_table(ExprId id) {
  const ExprNode& node = expr_.node(id);
  FDMA_TRY(TensorView table, find_table(bound_, node.symbol));
  if (table.rank != static_cast<int>(node.children.size()))
    return Error{ErrorCode::shape_mismatch,
                 "oracle: table @" + node.symbol + " needs one index per dimension"};
  tables_[static_cast<std::size_t>(id)] = table;
  return {};
}

// Marks the nodes that are evaluated. A table that only occurs as the whole argument of named masks
// is not, since the named masks read it.
std::vector<bool> Oracle::look_ups() const {
  std::vector<bool> is_look_up(expr_.nodes().size(), false);
  is_look_up[static_cast<std::size_t>(expr_.root())] = true;
  for (const ExprNode& node : expr_.nodes()) {
    const NameForm* form = form_of(node);
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      const ExprNode& child = expr_.node(node.children[i]);
      bool is_whole = false;
      if (form != nullptr && child.op == ExprOp::table && child.children.empty()) {
        const auto bound = bound_.find(child.symbol);
        const ParameterKind kind = form->parameters[i].kind;
        is_whole =
            kind == ParameterKind::table || (kind == ParameterKind::integer_or_table &&
                                             bound != bound_.end() && bound->second.rank > 0);
      }
      if (!is_whole) is_look_up[static_cast<std::size_t>(node.children[i])] = true;
    }
  }
  return is_look_up;
}

// Checks the types of the operands. Since the tables are bound, every node is either an integer or
// a condition.
Result<void> Oracle::check_type(ExprId id) {
  const ExprNode& node = expr_.node(id);
  const auto is_condition = [&](std::size_t child) {
    return static_cast<bool>(is_condition_[static_cast<std::size_t>(node.children[child])]);
  };
  bool result = false;
  bool fits = true;
  const auto all_are = [&](bool wanted) {
    for (std::size_t i = 0; i < node.children.size(); ++i)
      if (is_condition(i) != wanted) fits = false;
  };
  switch (node.op) {
    case ExprOp::literal:
    case ExprOp::variable:
      break;
    case ExprOp::table:
      all_are(false);
      result = tables_[static_cast<std::size_t>(id)].dtype == DType::boolean;
      break;
    case ExprOp::where:
      fits = is_condition(0) && is_condition(1) == is_condition(2);
      result = is_condition(1);
      break;
    case ExprOp::from_bool:
      all_are(true);
      break;
    case ExprOp::less:
    case ExprOp::less_equal:
    case ExprOp::greater:
    case ExprOp::greater_equal:
      all_are(false);
      result = true;
      break;
    case ExprOp::equal:
    case ExprOp::not_equal:
      fits = is_condition(0) == is_condition(1);
      result = true;
      break;
    case ExprOp::boolean:
    case ExprOp::logical_and:
    case ExprOp::logical_or:
    case ExprOp::logical_xor:
    case ExprOp::logical_not:
      all_are(true);
      result = true;
      break;
    case ExprOp::any_of:
    case ExprOp::all_of:
      fits = !is_condition(0) && is_condition(1);
      result = true;
      break;
    case ExprOp::at:
      fits = is_condition(0) && !is_condition(1) && !is_condition(2);
      result = true;
      break;
    case ExprOp::named:
      result = true;
      break;
    default:
      all_are(false);
      break;
  }
  if (!fits)
    return Error{ErrorCode::invalid_argument,
                 "oracle: an integer where a condition belongs, or the other way round"};
  is_condition_.push_back(result);
  return {};
}

Oracle::Variable Oracle::find_variable(const std::string& name) {
  if (name == "q") return Variable::q;
  if (name == "k") return Variable::k;
  if (name == "b") return Variable::b;
  if (name == "h") return Variable::h;
  if (name == "pos") return Variable::pos;
  if (name == "q_len") return Variable::q_len;
  if (name == "kv_len") return Variable::kv_len;
  return Variable::loop;
}

Value Oracle::variable(ExprId id, const Place& place) const {
  switch (variables_[static_cast<std::size_t>(id)]) {
    case Variable::q:
      return place.q;
    case Variable::k:
      return place.k;
    case Variable::b:
      return integer(b_);
    case Variable::h:
      return integer(h_);
    case Variable::pos:
      return sub(add(place.q, kv_len_), q_len_);
    case Variable::q_len:
      return q_len_;
    case Variable::kv_len:
      return kv_len_;
    case Variable::loop:
      break;
  }
  const std::string& name = expr_.node(id).symbol;
  for (const Place* around = &place; around != nullptr; around = around->outer)
    if (around->loop_name != nullptr && *around->loop_name == name) return around->loop_value;
  return kUndefined;
}

Value Oracle::quantifier(const ExprNode& node, const Place& place) const {
  const bool is_any = node.op == ExprOp::any_of;
  const Value count = evaluate(node.children[0], place);
  if (!count.is_defined) return kUndefined;
  Value result = condition(!is_any);
  for (std::int64_t i = 0; i < count.value; ++i) {
    const Place inside{place.q, place.k, &node.symbol, integer(i), &place};
    const Value one = evaluate(node.children[1], inside);
    result = is_any ? logical_or(result, one) : logical_and(result, one);
    if (is_any ? result.is_true() : result.is_false()) break;
  }
  return result;
}

Value Oracle::evaluate(ExprId id, const Place& place) const {
  const ExprNode& node = expr_.node(id);
  const auto child = [&](std::size_t i) { return evaluate(node.children[i], place); };
  // An operator on one integer, or a chain of one on two.
  const auto apply = [&]<class Rule>(Rule rule) {
    Value result = child(0);
    if constexpr (std::is_invocable_v<Rule, Value, Value>) {
      for (std::size_t i = 1; i < node.children.size(); ++i) result = rule(result, child(i));
      return result;
    } else {
      return rule(result);
    }
  };
  switch (node.op) {
    case ExprOp::literal:
      return integer(node.value);
    case ExprOp::boolean:
      return condition(node.value != 0);
    case ExprOp::variable:
      return variable(id, place);
    case ExprOp::table: {
      Value indices[kMaxRank];
      for (std::size_t i = 0; i < node.children.size(); ++i) indices[i] = child(i);
      return read(tables_[static_cast<std::size_t>(id)], indices, node.children.size());
    }
#define FDMA_ARITHMETIC(name, ...) \
  case ExprOp::name:               \
    return apply(                  \
        [](auto... x) -> decltype(reference::name(x...)) { return reference::name(x...); });
#include "fdma/masks/operators.def"
    case ExprOp::negate:
      return negate(child(0));
    case ExprOp::clamp:
      return clamp(child(0), child(1), child(2));
    case ExprOp::where: {
      const Value which = child(0);
      if (!which.is_defined) return kUndefined;
      return which.is_true() ? child(1) : child(2);
    }
    case ExprOp::from_bool:
      return child(0);
    case ExprOp::less:
      return less(child(0), child(1));
    case ExprOp::less_equal:
      return less_equal(child(0), child(1));
    case ExprOp::equal:
      return equal(child(0), child(1));
    case ExprOp::not_equal:
      return logical_not(equal(child(0), child(1)));
    case ExprOp::greater_equal:
      return less_equal(child(1), child(0));
    case ExprOp::greater:
      return less(child(1), child(0));
    case ExprOp::logical_and: {
      const Value left = child(0);
      return left.is_false() ? left : logical_and(left, child(1));
    }
    case ExprOp::logical_or: {
      const Value left = child(0);
      return left.is_true() ? left : logical_or(left, child(1));
    }
    case ExprOp::logical_xor:
      return logical_xor(child(0), child(1));
    case ExprOp::logical_not:
      return logical_not(child(0));
    case ExprOp::any_of:
    case ExprOp::all_of:
      return quantifier(node, place);
    case ExprOp::at: {
      Place moved = place;
      moved.q = child(1);
      moved.k = child(2);
      return evaluate(node.children[0], moved);
    }
    case ExprOp::named: {
      const auto at = static_cast<std::size_t>(id);
      return topk_[at] ? topk_[at]->at(place.q, place.k) : named_[at]->at(place.q, place.k);
    }
  }
  return kUndefined;
}

}  // namespace

Result<std::vector<std::uint8_t>> oracle_cells(const MaskExpr& expr, const Tables& tables,
                                               const MaskShape& shape, std::int64_t b,
                                               std::int64_t h) {
  Oracle oracle(expr, tables, shape, b, h);
  FDMA_TRY_VOID(oracle.prepare());
  std::vector<std::uint8_t> cells;
  cells.reserve(static_cast<std::size_t>(shape.q_len(b) * shape.kv_len(b)));
  for (std::int64_t q = 0; q < shape.q_len(b); ++q) {
    for (std::int64_t k = 0; k < shape.kv_len(b); ++k) {
      const Value cell = oracle.evaluate(expr.root(), Place{integer(q), integer(k)});
      cells.push_back(!cell.is_defined ? kUndefinedCell : cell.value != 0 ? kAttend : kMasked);
    }
  }
  return cells;
}

bool has_undefined_cell(const std::vector<std::uint8_t>& cells) {
  return std::find(cells.begin(), cells.end(), kUndefinedCell) != cells.end();
}

}  // namespace fdma::reference
