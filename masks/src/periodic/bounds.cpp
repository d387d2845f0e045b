#include "periodic/bounds.hpp"

#include <algorithm>
#include <bit>

namespace fdma::periodic {
namespace {

class Bounds {
 public:
  Bounds(const IrProgram& program, const TableRanges& tables, BlockShape block,
         std::span<const Slot> slots, std::span<Contents> contents)
      : program_(program),
        tables_(tables),
        block_(block),
        slots_(slots),
        contents_(contents),
        ranges_(program.nodes.size()) {
    const std::vector<std::uint8_t> mentions = node_mentions(program);
    for (std::size_t id = 0; id < mentions.size(); ++id) {
      if (mentions[id] == 0) {
        visit(id, {});
      } else {
        ((mentions[id] & kMentionsK) == 0 ? of_rows_ : of_cells_).push_back(id);
      }
    }
  }

  // Decides slots [first, end), which are those of one tile row.
  void decide_row(std::size_t first, std::size_t end) {
    const std::int64_t q0 = std::int64_t{slots_[first].row} * block_.block_q;
    const NodeRange rows{q0, std::min(program_.q_len, q0 + block_.block_q) - 1, false};
    for (const std::size_t id : of_rows_) visit(id, rows);
    decide(first, end);
  }

 private:
  // `variable` is the range of q or k, whichever the node is if it is one.
  void visit(std::size_t id, const NodeRange& variable) {
    const IrNode& n = program_.nodes[id];
    if (n.op == IrOp::q || n.op == IrOp::k) {
      ranges_[id] = variable;
      return;
    }
    NodeRange children[4];
    for (int c = 0; c < n.num_children; ++c) {
      children[c] = ranges_[static_cast<std::size_t>(n.children[c])];
    }
    const bool is_table = n.op == IrOp::lookup || n.op == IrOp::test;
    ranges_[id] = is_table ? tables_.lookup(n.value, children) : range_of(n, children);
  }

  void decide(std::size_t first, std::size_t end) {
    const std::int32_t first_col = slots_[first].col, last_col = slots_[end - 1].col;
    const NodeRange keys{
        std::int64_t{first_col} * block_.block_kv,
        std::min(program_.kv_len, (std::int64_t{last_col} + 1) * block_.block_kv) - 1, false};
    for (const std::size_t id : of_cells_) visit(id, keys);
    const NodeRange& root = ranges_[static_cast<std::size_t>(program_.root)];
    if (root.is_constant()) {
      std::fill(contents_.begin() + static_cast<std::ptrdiff_t>(first),
                contents_.begin() + static_cast<std::ptrdiff_t>(end),
                root.lo != 0 ? kFullTile : kEmptyTile);
      return;
    }
    if (first + 1 == end) return;
    // The last column without the bits below the first one in which the columns differ.
    const auto differ = static_cast<std::uint32_t>(first_col ^ last_col);
    const int bit = std::bit_width(differ) - 1;
    const std::int32_t border = last_col >> bit << bit;
    const auto middle = static_cast<std::size_t>(
        std::lower_bound(slots_.begin() + static_cast<std::ptrdiff_t>(first),
                         slots_.begin() + static_cast<std::ptrdiff_t>(end), border,
                         [](const Slot& slot, std::int32_t col) { return slot.col < col; }) -
        slots_.begin());
    decide(first, middle);
    decide(middle, end);
  }

  const IrProgram& program_;
  const TableRanges& tables_;
  const BlockShape block_;
  const std::span<const Slot> slots_;
  const std::span<Contents> contents_;
  std::vector<NodeRange> ranges_;
  std::vector<std::size_t> of_rows_;   // nodes that mention q alone
  std::vector<std::size_t> of_cells_;  // nodes that mention k
};

}  // namespace

std::vector<Contents> bound_slots(const IrProgram& program, const TableRanges& tables,
                                  BlockShape block, std::span<const Slot> slots, WorkMeter& meter) {
  std::vector<Contents> contents(slots.size(), kUndecidedTile);
  Bounds bounds(program, tables, block, slots, contents);
  for (std::size_t first = 0; first < slots.size();) {
    if (meter.must_stop()) break;
    std::size_t end = first + 1;
    while (end < slots.size() && slots[end].row == slots[first].row) ++end;
    bounds.decide_row(first, end);
    first = end;
  }
  return contents;
}

}  // namespace fdma::periodic
