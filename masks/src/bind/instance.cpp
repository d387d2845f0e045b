// Substitution without recursion. A node is evaluated at a place: the nodes that stand for q and k
// (at(..) moves them) and for the loop variables around it. Values are kept per (node, place); a
// place is first reduced to what the node mentions, so that shared parts of an expression are made
// once. A stack of open work replaces the call stack: a node whose operands are missing puts them
// on top of itself and is tried again after them.
#include "bind/instance.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "bind/program_form.hpp"

namespace fdma {
namespace {

// any / all over a constant range are unrolled up to this many times ..
constexpr std::int64_t kMostIterations = 64;
// .. and up to this many operators in all.
constexpr std::int64_t kMostOperators = 8192;
// Without q and k in the body (a value per pair) they are unrolled up to this many times.
constexpr std::int64_t kMostScalarIterations = std::int64_t{1} << 18;
// The most nodes of a program. It may also have kMostGrowth times the nodes of the expression.
constexpr std::int64_t kMostNodes = std::int64_t{1} << 18;
constexpr std::int64_t kMostGrowth = 8;

}  // namespace

Instantiator::Instantiator(const CheckedExpr& checked, const BoundTables& tables,
                           const MaskShape& shape)
    : checked_(checked),
      tables_(tables),
      max_nodes_(
          std::max(kMostNodes, kMostGrowth * static_cast<std::int64_t>(checked.facts.size()))),
      builder_(store_),
      names_(checked, tables, shape, store_, builder_, loop_ids_),
      table_of_(checked.facts.size()),
      name_of_(checked.facts.size()) {
  for (std::size_t id = 0; id < checked.facts.size(); ++id) {
    const ExprNode& node = checked.expr->nodes()[id];
    const NodeFacts& facts = checked.facts[id];
    if (facts.is_reachable && !facts.is_argument && node.op == ExprOp::table)
      table_of_[id] = store_.prepare(tables.whole(node.symbol));
  }
}

Result<IrProgram> Instantiator::make(const BoundPair& pair) {
  pair_ = pair;
  builder_.reset(pair.q_len, pair.kv_len);
  loop_ids_.clear();
  places_.clear();
  place_ids_.clear();
  bindings_.clear();
  binding_ids_.clear();
  elsewhere_.clear();
  at_cell_.assign(checked_.facts.size(), -1);
  intern_place(builder_.q(), builder_.k(), -1);
  FDMA_TRY_VOID(prepare_names());
  if (pair.q_len == 0 || pair.kv_len == 0) return builder_.finish(builder_.boolean(false));
  const ExprId root = checked_.expr->root();
  FDMA_TRY_VOID(walk(root));
  return builder_.finish(*find(root, 0));
}

// Prepares all named masks, including those that a loop without iterations never evaluates, because
// faults of their tables do not depend on that.
Result<void> Instantiator::prepare_names() {
  for (std::size_t id = 0; id < checked_.facts.size(); ++id) {
    const NodeFacts& facts = checked_.facts[id];
    const ExprNode& node = checked_.expr->nodes()[id];
    if (!facts.is_reachable || facts.is_argument || node.op != ExprOp::named) continue;
    std::vector<NamedNumber> numbers;
    for (std::size_t i = 0; i < node.children.size(); ++i) {
      const ExprId child = node.children[i];
      const Parameter& parameter = facts.form->parameters[i];
      const ExprNode& argument = checked_.node(child);
      if (parameter.kind == ParameterKind::integer_or_inf && argument.symbol == "inf") {
        numbers.emplace_back(parameter.name, -1);
        continue;
      }
      const bool is_whole_table = argument.op == ExprOp::table && argument.children.empty() &&
                                  tables_.whole(argument.symbol).rank > 0;
      if (parameter.kind == ParameterKind::table || parameter.kind == ParameterKind::side ||
          (parameter.kind == ParameterKind::integer_or_table && is_whole_table))
        continue;
      FDMA_TRY_VOID(walk(child));
      numbers.emplace_back(parameter.name, *find(child, 0));
    }
    FDMA_TRY(name_of_[id], names_.prepare(static_cast<ExprId>(id), std::move(numbers), pair_));
  }
  return {};
}

Result<void> Instantiator::walk(ExprId root) {
  if (find(root, 0) != nullptr) return {};
  stack_.assign(1, Work{root, 0});
  while (!stack_.empty()) {
    const Work work = stack_.back();
    if (find(work.node, work.place) != nullptr) {
      stack_.pop_back();
      continue;
    }
    FDMA_TRY(const IrId value, try_evaluate(work));
    if (builder_.num_nodes() > max_nodes_ ||
        static_cast<std::int64_t>(elsewhere_.size() + stack_.size()) > 4 * max_nodes_)
      return Error{ErrorCode::unsupported,
                   fmt::format("the mask has more than {} nodes once its at(..) and any / all are "
                               "written out",
                               max_nodes_)};
    if (value < 0) continue;
    store(work.node, work.place, value);
    stack_.pop_back();
  }
  return {};
}

const IrId* Instantiator::find(ExprId node, std::int32_t place) const {
  if (place == 0) {
    const IrId& value = at_cell_[static_cast<std::size_t>(node)];
    return value >= 0 ? &value : nullptr;
  }
  const auto found =
      elsewhere_.find(static_cast<std::uint64_t>(node) << 32 | static_cast<std::uint32_t>(place));
  return found != elsewhere_.end() ? &found->second : nullptr;
}

void Instantiator::store(ExprId node, std::int32_t place, IrId value) {
  if (place == 0)
    at_cell_[static_cast<std::size_t>(node)] = value;
  else
    elsewhere_[static_cast<std::uint64_t>(node) << 32 | static_cast<std::uint32_t>(place)] = value;
}

std::int32_t Instantiator::intern_place(IrId q, IrId k, std::int32_t loops) {
  const auto [known, is_new] =
      place_ids_.try_emplace({q, k, loops}, static_cast<std::int32_t>(places_.size()));
  if (is_new) places_.push_back({q, k, loops});
  return known->second;
}

std::int32_t Instantiator::bind_loop(std::int32_t outer, std::string_view symbol, IrId value) {
  const auto [known, is_new] =
      binding_ids_.try_emplace({outer, symbol, value}, static_cast<std::int32_t>(bindings_.size()));
  if (is_new) bindings_.push_back({outer, symbol, value, loop_depth(outer) + 1});
  return known->second;
}

// The place reduced to what the node mentions. Loops that stay loops are kept for the named masks
// inside, whose own loops must not take their ids.
std::int32_t Instantiator::place_of(ExprId node, std::int32_t place) {
  if (place == 0) return 0;
  const NodeFacts& facts = checked_.fact(node);
  const Place at = places_[static_cast<std::size_t>(place)];
  const bool needs_loops = facts.mentions_loop || loop_depth(at.loops) > 0;
  if (!facts.mentions_cell && !facts.mentions_loop) return 0;
  return intern_place(facts.mentions_cell ? at.q : builder_.q(),
                      facts.mentions_cell ? at.k : builder_.k(), needs_loops ? at.loops : -1);
}

IrId Instantiator::need(ExprId node, std::int32_t place) {
  const std::int32_t own = place_of(node, place);
  if (const IrId* value = find(node, own)) return *value;
  stack_.push_back({node, own});
  return -1;
}

Result<IrId> Instantiator::try_evaluate(const Work& work) {
  const ExprNode& node = checked_.node(work.node);
  const Place place = places_[static_cast<std::size_t>(work.place)];
  switch (node.op) {
    case ExprOp::literal:
      return builder_.constant(node.value);
    case ExprOp::boolean:
      return builder_.boolean(node.value != 0);
    case ExprOp::variable:
      return variable(work.node, place);
    case ExprOp::named:
      return names_.expand(name_of_[static_cast<std::size_t>(work.node)], pair_, place.q, place.k,
                           loop_depth(place.loops));
    case ExprOp::any_of:
    case ExprOp::all_of:
      return quantifier(work);
    case ExprOp::at: {
      const IrId q = need(node.children[1], work.place), k = need(node.children[2], work.place);
      if (q < 0 || k < 0) return -1;
      return need(node.children[0], intern_place(q, k, place.loops));
    }
    default:
      break;
  }
  std::vector<IrId> operands(node.children.size());
  bool is_complete = true;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    operands[i] = need(node.children[i], work.place);
    is_complete &= operands[i] >= 0;
  }
  if (!is_complete) return -1;
  if (node.op == ExprOp::table)
    return builder_.lookup(table_of_[static_cast<std::size_t>(work.node)], operands);
  const bool on_conditions =
      !node.children.empty() && checked_.fact(node.children.back()).is_condition;
  return write_operator<IrId>(
      node.op, on_conditions, operands,
      [this](IrOp op, auto... ids) { return builder_.make(op, ids...); },
      [this](std::int64_t value) { return builder_.constant(value); });
}

Result<IrId> Instantiator::variable(ExprId id, const Place& place) {
  const std::string& name = checked_.node(id).symbol;
  if (name == "q") return place.q;
  if (name == "k") return place.k;
  if (name == "b") return builder_.constant(pair_.b);
  if (name == "h") return builder_.constant(pair_.h);
  if (name == "q_len") return builder_.constant(pair_.q_len);
  if (name == "kv_len") return builder_.constant(pair_.kv_len);
  if (name == "pos") {
    const IrId sum = builder_.make(IrOp::add, place.q, builder_.constant(pair_.kv_len));
    return builder_.make(IrOp::sub, sum, builder_.constant(pair_.q_len));
  }
  for (std::int32_t loop = place.loops; loop >= 0;) {
    const Binding& binding = bindings_[static_cast<std::size_t>(loop)];
    if (binding.symbol == name) return binding.value;
    loop = binding.outer;
  }
  return Error{ErrorCode::internal, "variable '" + name + "' is not bound by any loop"};
}

Result<IrId> Instantiator::quantifier(const Work& work) {
  const ExprNode& node = checked_.node(work.node);
  const IrOp op = node.op == ExprOp::any_of ? IrOp::any_of : IrOp::all_of;
  const IrId bound = need(node.children[0], work.place);
  if (bound < 0) return -1;
  // Typing has made sure that the bound is one value per (batch, head).
  if (!builder_.is_constant(bound))  // always undefined
    return builder_.quantifier(op, 0, bound, builder_.boolean(false));
  const std::int64_t count = builder_.node(bound).value;
  if (count <= 0) return builder_.boolean(op == IrOp::all_of);

  const NodeFacts& body = checked_.fact(node.children[1]);
  const Place place = places_[static_cast<std::size_t>(work.place)];
  const bool is_scalar = !body.mentions_cell && !checked_.fact(work.node).mentions_loop;
  const bool is_written_out = count <= kMostIterations
                                  ? count * body.tree_size <= kMostOperators || is_scalar
                                  : is_scalar && count <= kMostScalarIterations;
  const std::int64_t loop_id = loop_ids_.id_of(loop_depth(place.loops), count);
  const IrId variable = builder_.loop(loop_id, count);
  const std::int32_t loops = bind_loop(place.loops, node.symbol, variable);
  const IrId inside = need(node.children[1], intern_place(place.q, place.k, loops));
  if (inside < 0) return -1;
  if (is_written_out) {
    const std::vector<IrId> copied = builder_.nodes_of_loop(inside, loop_id);
    if (!copied.empty()) return builder_.write_out(op, count, inside, copied, TermOrder::canonical);
  }
  return builder_.quantifier(op, loop_id, bound, inside);
}

}  // namespace fdma
