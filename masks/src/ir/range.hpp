// The possible values of the nodes of a program over a box of cells: interval arithmetic with a
// flag for undefined cells.
//
// Idea. Every node gets the smallest and largest value that it can take on the cells of a box where
// it is defined, and whether it may be undefined on some cell of the box. Operands are taken as
// independent, so ranges may be too wide (q - q over [0, 8) gives [-7, 7]) but never too narrow. On
// a box of one cell they are exact, except inside any / all, where the loop variable stands for all
// its values at once. Logic follows the three-valued rules: `false & undefined` is false, so a
// guard that is false over the whole box makes the guarded part harmless. The range covers the
// defined values only, so `k - 3000` behind a guard still has tight bounds.
//
// Binding asks for the ranges over all cells, box form for those of its boxes, and constants are
// folded as ranges of one value (fold).
//
// Cost. A few nanoseconds a node; a look-up reads at most 64 entries of its table.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fdma/masks/mask_ir.hpp"
#include "ir/node_range.hpp"

namespace fdma {

/// The range of a node from the ranges of its children. Not for q, k, loop, lookup and test. For
/// any_of and all_of, child 1 is the body over all values of the loop variable.
NodeRange range_of(const IrNode& node, const NodeRange* children);

/// The range of a look-up in a table from the ranges of its indices. `entries` are the bounds of
/// the whole table; a few entries are read one by one instead.
NodeRange lookup_range(const IrTable& table, const NodeRange& entries, const NodeRange* indices);

/// Smallest and largest entry of a table; booleans are 0 and 1. Cost: one pass, O(runs) for runs.
/// Tables of rank 2 and above with more than `most_scanned` entries get the limits of their dtype.
NodeRange table_range(const IrTable& table, std::int64_t most_scanned);

/// The bounds of the tables of a program.
class TableRanges {
 public:
  explicit TableRanges(std::span<const IrTable> tables);
  const IrTable& table(std::int64_t index) const {
    return tables_[static_cast<std::size_t>(index)];
  }
  std::span<const IrTable> tables() const { return tables_; }
  /// Finds the bounds of a table, which are those of its dtype until then. Not thread-safe.
  void scan(std::int64_t index);
  NodeRange lookup(std::int64_t index, const NodeRange* indices) const {
    const auto at = static_cast<std::size_t>(index);
    return lookup_range(tables_[at], ranges_[at], indices);
  }

 private:
  std::span<const IrTable> tables_;
  std::vector<NodeRange> ranges_;
};

/// An operand or a result that is known: a value (conditions are 0 and 1), or none.
struct Folded {
  std::int64_t value = 0;
  bool is_defined = false;
};

/// The value of an operator on known operands, in three-valued logic. Not for nodes without
/// operands, look-ups and quantifiers.
///
/// Example     fold(IrOp::logical_and, {false, undefined}) is false
Folded fold(IrOp op, std::span<const Folded> operands);

/// The variables that a node mentions.
enum Mentions : std::uint8_t { kMentionsQ = 1, kMentionsK = 2, kMentionsLoop = 4 };
/// One mask of Mentions per node.
std::vector<std::uint8_t> node_mentions(const IrProgram& program);

}  // namespace fdma
