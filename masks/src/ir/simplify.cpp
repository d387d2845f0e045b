#include "ir/simplify.hpp"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

#include "ir/builder.hpp"

namespace fdma {
namespace {

// The largest bound of the loops of each id, from which the range of a loop node follows.
std::vector<std::int64_t> loop_bounds(const IrProgram& program) {
  std::vector<std::int64_t> bounds;
  for (const IrNode& node : program.nodes) {
    if (node.op != IrOp::any_of && node.op != IrOp::all_of) continue;
    const auto id = static_cast<std::size_t>(node.value);
    if (id >= bounds.size()) bounds.resize(id + 1, 1);
    const IrNode& bound = program.node(node.children[0]);
    bounds[id] =
        std::max(bounds[id], bound.op == IrOp::constant ? bound.value
                                                        : std::numeric_limits<std::int64_t>::max());
  }
  return bounds;
}

// The program made anew, with `quantifier(builder, node, bound, body)` for its loops.
template <class Quantifier>
IrProgram rebuild(const IrProgram& program, Quantifier quantifier) {
  TableStore store;
  IrBuilder builder(store);
  builder.reset(program.q_len, program.kv_len);
  if (program.q_len == 0 || program.kv_len == 0) return builder.finish(builder.boolean(false));
  std::vector<TableRef> tables;
  for (const IrTable& table : program.tables) tables.push_back(store.prepare(table));
  const std::vector<std::int64_t> bounds = loop_bounds(program);
  std::vector<IrId> made(program.nodes.size(), -1);
  for (std::size_t id = 0; id < program.nodes.size(); ++id) {
    const IrNode& node = program.nodes[id];
    IrId children[4] = {-1, -1, -1, -1};
    for (int i = 0; i < node.num_children; ++i)
      children[i] = made[static_cast<std::size_t>(node.children[i])];
    switch (node.op) {
      case IrOp::constant:
        made[id] = builder.constant(node.value);
        break;
      case IrOp::boolean:
        made[id] = builder.boolean(node.value != 0);
        break;
      case IrOp::q:
        made[id] = builder.q();
        break;
      case IrOp::k:
        made[id] = builder.k();
        break;
      case IrOp::loop:
        made[id] = builder.loop(node.value, bounds[static_cast<std::size_t>(node.value)]);
        break;
      case IrOp::lookup:
      case IrOp::test:
        made[id] = builder.lookup(tables[static_cast<std::size_t>(node.value)],
                                  {children, static_cast<std::size_t>(node.num_children)});
        break;
      case IrOp::any_of:
      case IrOp::all_of:
        made[id] = quantifier(builder, node, children[0], children[1]);
        break;
      default:
        made[id] = builder.make(node.op, children[0], children[1], children[2]);
        break;
    }
  }
  return builder.finish(made[static_cast<std::size_t>(program.root)]);
}

}  // namespace

IrProgram simplify(const IrProgram& program) {
  return rebuild(program, [](IrBuilder& builder, const IrNode& loop, IrId bound, IrId body) {
    return builder.quantifier(loop.op, loop.value, bound, body);
  });
}

std::optional<IrProgram> unroll(const IrProgram& program, std::int64_t most_nodes) {
  const bool has_loops = std::any_of(
      program.nodes.begin(), program.nodes.end(),
      [](const IrNode& node) { return node.op == IrOp::any_of || node.op == IrOp::all_of; });
  if (!has_loops) return std::nullopt;
  std::int64_t left = most_nodes;
  return rebuild(program, [&](IrBuilder& builder, const IrNode& loop, IrId bound, IrId body) {
    const std::int64_t count = builder.is_constant(bound) ? builder.node(bound).value : 0;
    const std::vector<IrId> copied = builder.nodes_of_loop(body, loop.value);
    const auto size = static_cast<std::int64_t>(copied.size()) + 1;
    if (count <= 0 || copied.empty() || (count > 1 && count > left / size))
      return builder.quantifier(loop.op, loop.value, bound, body);
    left -= count * size;
    return builder.write_out(loop.op, count, body, copied, TermOrder::of_turns);
  });
}

}  // namespace fdma
