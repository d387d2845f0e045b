// The text form of bound masks.
#include "fdma/masks/mask_ir.hpp"

#include <fmt/format.h>

#include <cstddef>
#include <iterator>
#include <string_view>

namespace fdma {
namespace {

constexpr std::string_view kNames[] = {
#define FDMA_OPERATOR(name, ...) #name,
#define FDMA_PROGRAM_OPERATOR(name) #name,
#include "fdma/masks/operators.def"
};

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
  fmt::format_to(out, "%{} = {}", id, kNames[static_cast<std::size_t>(node.op)]);
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
