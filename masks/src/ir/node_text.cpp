#include "ir/node_text.hpp"

#include <fmt/format.h>

#include <string_view>

namespace fdma {
namespace {

constexpr int kMaxDepth = 24;

std::string_view spelling_of(IrOp op) {
  switch (op) {
#define FDMA_OPERATOR(name, spelling, ...) \
  case IrOp::name:                         \
    return spelling;
#define FDMA_PROGRAM_OPERATOR(name) \
  case IrOp::name:                  \
    return #name;
#include "fdma/masks/operators.def"
  }
  return {};
}

struct Writer {
  const std::function<const IrNode&(IrId)>& node_of;
  std::span<const IrTable> tables;
  std::size_t max_length;
  std::string text;

  void list(const IrNode& node, int first, int depth) {
    for (int c = first; c < node.num_children; ++c) {
      if (c > first) text += ", ";
      write(node.children[c], depth + 1, false);
    }
  }

  void write(IrId id, int depth, bool is_operand) {
    const IrNode& node = node_of(id);
    if (depth > kMaxDepth || text.size() > max_length) {
      text += "..";
      return;
    }
    const std::string_view spelling = spelling_of(node.op);
    switch (node.op) {
      case IrOp::constant:
        text += fmt::format("{}", node.value);
        return;
      case IrOp::boolean:
        text += node.value != 0 ? "true" : "false";
        return;
      case IrOp::q:
      case IrOp::k:
        text += spelling;
        return;
      case IrOp::loop:
        text += fmt::format("i{}", node.value);
        return;
      case IrOp::lookup:
      case IrOp::test:
        text += fmt::format("@{}[", tables[static_cast<std::size_t>(node.value)].name);
        list(node, 0, depth);
        text += ']';
        return;
      case IrOp::any_of:
      case IrOp::all_of:
        text += fmt::format("{}(i{} in ", spelling, node.value);
        write(node.children[0], depth + 1, false);
        text += ": ";
        list(node, 1, depth);
        text += ')';
        return;
      case IrOp::logical_not:
        text += '~';
        write(node.children[0], depth + 1, true);
        return;
      default:
        break;
    }
    const char first = spelling.front();
    const bool is_infix = node.num_children == 2 && !(first >= 'a' && first <= 'z');
    if (!is_infix) {
      text += node.op == IrOp::where_condition ? "where" : spelling;
      text += '(';
      list(node, 0, depth);
      text += ')';
      return;
    }
    if (is_operand) text += '(';
    write(node.children[0], depth + 1, true);
    text += fmt::format(" {} ", spelling);
    write(node.children[1], depth + 1, true);
    if (is_operand) text += ')';
  }
};

}  // namespace

std::string node_text(const std::function<const IrNode&(IrId)>& node,
                      std::span<const IrTable> tables, IrId id, std::size_t max_length) {
  Writer writer{node, tables, max_length, {}};
  writer.write(id, 0, false);
  return std::move(writer.text);
}

}  // namespace fdma
