// The text form of bound masks.
#include "fdma/masks/mask_ir.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <iterator>
#include <string_view>

namespace fdma {
namespace {

std::string_view name_of(IrOp op) {
  switch (op) {
    case IrOp::constant:
      return "constant";
    case IrOp::q:
      return "q";
    case IrOp::k:
      return "k";
    case IrOp::loop:
      return "loop";
    case IrOp::lookup:
      return "lookup";
    case IrOp::add:
      return "add";
    case IrOp::sub:
      return "sub";
    case IrOp::mul:
      return "mul";
    case IrOp::floor_div:
      return "floor_div";
    case IrOp::mod:
      return "mod";
    case IrOp::min:
      return "min";
    case IrOp::max:
      return "max";
    case IrOp::abs:
      return "abs";
    case IrOp::shl:
      return "shl";
    case IrOp::shr:
      return "shr";
    case IrOp::bit_and:
      return "bit_and";
    case IrOp::bit_or:
      return "bit_or";
    case IrOp::bit_xor:
      return "bit_xor";
    case IrOp::where:
      return "where";
    case IrOp::from_bool:
      return "from_bool";
    case IrOp::boolean:
      return "boolean";
    case IrOp::test:
      return "test";
    case IrOp::less:
      return "less";
    case IrOp::less_equal:
      return "less_equal";
    case IrOp::equal:
      return "equal";
    case IrOp::not_equal:
      return "not_equal";
    case IrOp::logical_and:
      return "logical_and";
    case IrOp::logical_or:
      return "logical_or";
    case IrOp::logical_xor:
      return "logical_xor";
    case IrOp::logical_not:
      return "logical_not";
    case IrOp::where_condition:
      return "where_condition";
    case IrOp::any_of:
      return "any_of";
    case IrOp::all_of:
      return "all_of";
  }
  return "unknown";
}

template <class Out>
void write_table(Out out, std::size_t index, const IrTable& table) {
  fmt::format_to(out, "@{} = {} {} [", index, table.name, to_string(table.dtype));
  for (int d = 0; d < table.rank; ++d)
    fmt::format_to(out, "{}{}", d > 0 ? ", " : "", table.extents[d]);
  fmt::format_to(out, "]");
  if (table.is_runs())
    fmt::format_to(out, " {} run{}", table.run_ends.size(), table.run_ends.size() == 1 ? "" : "s");
  fmt::format_to(out, "\n");
}

template <class Out>
void write_node(Out out, std::size_t id, const IrNode& node) {
  fmt::format_to(out, "%{} = {}", id, name_of(node.op));
  switch (node.op) {
    case IrOp::constant:
    case IrOp::boolean:
    case IrOp::loop:
    case IrOp::any_of:
    case IrOp::all_of:
      fmt::format_to(out, " {}", node.value);
      break;
    case IrOp::lookup:
    case IrOp::test:
      fmt::format_to(out, " @{}", node.value);
      break;
    default:
      break;
  }
  for (int i = 0; i < node.num_children; ++i) fmt::format_to(out, " %{}", node.children[i]);
  fmt::format_to(out, "\n");
}

template <class Out>
void write_program(Out out, const IrProgram& program) {
  for (std::size_t i = 0; i < program.tables.size(); ++i) write_table(out, i, program.tables[i]);
  for (std::size_t i = 0; i < program.nodes.size(); ++i) write_node(out, i, program.nodes[i]);
}

}  // namespace

std::string dump(const IrProgram& program) {
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "program: q_len {}, kv_len {}\n", program.q_len, program.kv_len);
  write_program(out, program);
  return text;
}

std::string dump(const MaskIr& ir) {
  std::string text;
  const auto out = std::back_inserter(text);
  fmt::format_to(out, "mask_ir: num_batches {}, num_heads {}, programs {}\n", ir.shape.num_batches,
                 ir.shape.num_heads, ir.programs.size());
  if (ir.programs.size() > 1) {
    fmt::format_to(out, "program_of:");
    for (std::size_t i = 0; i < ir.program_of.size();) {
      std::size_t end = i;
      while (end < ir.program_of.size() && ir.program_of[end] == ir.program_of[i]) ++end;
      fmt::format_to(out, " {}", ir.program_of[i]);
      if (end - i > 1) fmt::format_to(out, "*{}", end - i);
      i = end;
    }
    fmt::format_to(out, "\n");
  }
  for (std::size_t p = 0; p < ir.programs.size(); ++p) {
    const IrProgram& program = ir.programs[p];
    fmt::format_to(out, "program {}: q_len {}, kv_len {}\n", p, program.q_len, program.kv_len);
    write_program(out, program);
  }
  return text;
}

}  // namespace fdma
