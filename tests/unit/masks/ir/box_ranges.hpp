// The ranges of all nodes of a program over boxes of cells, from the rules of ir/range.hpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "fdma/masks/mask_ir.hpp"
#include "ir/range.hpp"

namespace fdma::ir_test {

/// Cells [q_begin, q_end) x [k_begin, k_end), not empty.
struct CellBox {
  std::int64_t q_begin;
  std::int64_t q_end;
  std::int64_t k_begin;
  std::int64_t k_end;
};

class BoxRanges {
 public:
  explicit BoxRanges(const IrProgram& program) : program_(program), tables_(program.tables) {
    for (std::size_t i = 0; i < program.tables.size(); ++i)
      tables_.scan(static_cast<std::int64_t>(i));
  }

  /// The root's range.
  NodeRange root(const CellBox& box) const {
    std::vector<NodeRange> ranges;
    for (const IrNode& node : program_.nodes) {
      NodeRange children[4];
      for (int i = 0; i < node.num_children; ++i)
        children[i] = ranges[static_cast<std::size_t>(node.children[i])];
      switch (node.op) {
        case IrOp::q:
          ranges.push_back({box.q_begin, box.q_end - 1, false});
          break;
        case IrOp::k:
          ranges.push_back({box.k_begin, box.k_end - 1, false});
          break;
        case IrOp::loop:
          ranges.push_back({0, last_turn(node.value), false});
          break;
        case IrOp::lookup:
        case IrOp::test:
          ranges.push_back(tables_.lookup(node.value, children));
          break;
        default:
          ranges.push_back(range_of(node, children));
      }
    }
    return ranges[static_cast<std::size_t>(program_.root)];
  }

 private:
  std::int64_t last_turn(std::int64_t loop) const {
    std::int64_t last = 0;
    for (const IrNode& node : program_.nodes)
      if ((node.op == IrOp::any_of || node.op == IrOp::all_of) && node.value == loop)
        last = std::max(last, program_.node(node.children[0]).value - 1);
    return last;
  }

  const IrProgram& program_;
  TableRanges tables_;
};

}  // namespace fdma::ir_test
