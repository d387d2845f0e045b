// Named masks written out as programs: the text of the prelude is evaluated with the arguments for
// its names. Texts are short and their depth is fixed, so that evaluation recurses.
#include "bind/expand_names.hpp"

#include <cstddef>
#include <span>

#include "bind/program_form.hpp"
#include "language/operators.hpp"
#include "language/prelude.hpp"

namespace fdma {

std::int64_t LoopIds::id_of(std::int64_t depth, std::int64_t bound) {
  for (std::size_t id = 0; id < known_.size(); ++id)
    if (known_[id] == std::pair{depth, bound}) return static_cast<std::int64_t>(id);
  known_.emplace_back(depth, bound);
  return static_cast<std::int64_t>(known_.size()) - 1;
}

// What the names of a text mean at one place.
struct NameExpander::Scope {
  const NameInstance& mask;
  const BoundPair& pair;
  IrId q, k, pos;
  std::int64_t loop_depth;
  std::vector<NamedNumber> loops;  // their variables
  std::vector<IrId> values;        // of nodes evaluated outside of loops; -1: none yet

  const ExprNode& node(ExprId id) const { return mask.text->node(id); }
  // A parameter that is inf, or its negative.
  bool is_infinite(ExprId id) const {
    while (node(id).op == ExprOp::negate) id = node(id).children[0];
    if (node(id).op != ExprOp::variable) return false;
    const IrId* number = find_named(mask.numbers, node(id).symbol);
    return number != nullptr && *number < 0;
  }
};

IrId NameExpander::expand(const NameInstance& mask, const BoundPair& pair, IrId q, IrId k,
                          std::int64_t loop_depth) {
  const IrId sum = builder_.make(IrOp::add, q, builder_.constant(pair.kv_len));
  const IrId pos = builder_.make(IrOp::sub, sum, builder_.constant(pair.q_len));
  Scope scope{mask, pair, q, k, pos, loop_depth, {}, {}};
  scope.values.assign(mask.text->nodes().size(), -1);
  return evaluate(mask.text->root(), scope);
}

IrId NameExpander::evaluate(ExprId id, Scope& scope) {
  if (!scope.loops.empty()) return compute(id, scope);
  const auto place = static_cast<std::size_t>(id);
  if (scope.values[place] < 0) scope.values[place] = compute(id, scope);
  return scope.values[place];
}

IrId NameExpander::compute(ExprId id, Scope& scope) {
  const ExprNode& node = scope.node(id);
  switch (node.op) {
    case ExprOp::literal:
      return builder_.constant(node.value);
    case ExprOp::boolean:
      return builder_.boolean(node.value != 0);
    case ExprOp::variable:
      if (node.symbol == "q") return scope.q;
      if (node.symbol == "k") return scope.k;
      if (node.symbol == "pos") return scope.pos;
      if (node.symbol == "kv_len") return builder_.constant(scope.pair.kv_len);
      if (const IrId* loop = find_named(scope.loops, node.symbol)) return *loop;
      return *find_named(scope.mask.numbers, node.symbol);
    case ExprOp::named:
      return nested(node, scope);
    case ExprOp::any_of:
    case ExprOp::all_of:
      return quantifier(node, scope);
    default:
      break;
  }
  if (node.op == ExprOp::where) {
    const IrId condition = evaluate(node.children[0], scope);
    if (builder_.node(condition).op == IrOp::boolean)  // the side of padding
      return evaluate(node.children[builder_.node(condition).value != 0 ? 1 : 2], scope);
  }
  const OperandTypes types = operator_facts(node.op).types;
  if ((types == OperandTypes::comparison || types == OperandTypes::equality) &&
      (scope.is_infinite(node.children[0]) || scope.is_infinite(node.children[1])))
    return builder_.boolean(true);
  constexpr std::size_t kMostOperands = 4;
  IrId places[kMostOperands] = {};
  const std::span<const IrId> operands(places, node.children.size());
  for (std::size_t i = 0; i < operands.size(); ++i) places[i] = evaluate(node.children[i], scope);
  if (node.op == ExprOp::table) {
    const std::vector<TableRef>& tables = *find_named(scope.mask.tables, node.symbol);
    if (tables[0]->table.rank == static_cast<int>(operands.size()))
      return builder_.lookup(tables[0], operands);
    const auto row = static_cast<std::size_t>(builder_.node(operands[0]).value);
    return builder_.lookup(tables[row], operands.subspan(1));
  }
  const bool on_conditions = is_condition(builder_.node(operands.back()).op);
  return write_operator<IrId>(
      node.op, on_conditions, operands,
      [this](IrOp op, auto... ids) { return builder_.make(op, ids...); },
      [this](std::int64_t value) { return builder_.constant(value); });
}

// A loop over a number that is known.
IrId NameExpander::quantifier(const ExprNode& node, Scope& scope) {
  const bool is_any = node.op == ExprOp::any_of;
  const IrOp op = is_any ? IrOp::any_of : IrOp::all_of;
  const IrId bound = evaluate(node.children[0], scope);
  const std::int64_t count = builder_.node(bound).value;
  const auto body_at = [&](IrId variable) {
    scope.loops.emplace_back(node.symbol, variable);
    const IrId body = evaluate(node.children[1], scope);
    scope.loops.pop_back();
    return body;
  };
  if (count > kMostIntervalsWrittenOut) {
    const std::int64_t loop_id = loops_.id_of(scope.loop_depth, count);
    ++scope.loop_depth;
    const IrId body = body_at(builder_.loop(loop_id, count));
    --scope.loop_depth;
    return builder_.quantifier(op, loop_id, bound, body);
  }
  IrId result = builder_.boolean(!is_any);
  for (std::int64_t i = 0; i < count; ++i)
    result = builder_.make(is_any ? IrOp::logical_or : IrOp::logical_and, result,
                           body_at(builder_.constant(i)));
  return result;
}

// A named mask inside a text; its arguments are tables of the text.
IrId NameExpander::nested(const ExprNode& node, const Scope& scope) {
  const NameForm& form = *form_of(node);
  NameInstance inner;
  inner.text = &prelude_expr(form, false);
  for (std::size_t i = 0; i < node.children.size(); ++i)
    inner.tables.emplace_back(form.parameters[i].name,
                              *find_named(scope.mask.tables, scope.node(node.children[i]).symbol));
  return expand(inner, scope.pair, scope.q, scope.k, scope.loop_depth);
}

}  // namespace fdma
