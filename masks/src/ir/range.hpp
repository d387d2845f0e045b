// The possible values of the nodes of a program over a box of cells: interval arithmetic with a
// flag for undefined cells.
//
// Idea. Every node gets the smallest and largest value that it can take on the cells of a box where
// it is defined, and whether it may be undefined on some cell of the box. Operands are taken as
// independent, so ranges may be too wide (q - q over [0, 8) gives [-7, 7]) but never too narrow. On
// a box of one cell they are exact, except inside any / all, where the loop variable stands for all
// its values at once. Logic follows the three-valued rules: `false & undefined` is false, so a
// guard that is false over the whole box makes the guarded part harmless.
//
// Cost. One pass over the nodes per box: a few nanoseconds a node and one TableBounds query per
// table node.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "fdma/masks/mask_ir.hpp"

namespace fdma {

/// The range of a node over a box.
///
/// Integers    lo, hi: bounds of the defined values
/// Conditions  0 is false and 1 is true
/// Invariants  lo > hi (always lo = 1, hi = 0) means that no cell has a defined value
struct NodeRange {
  std::int64_t lo = 1;
  std::int64_t hi = 0;
  bool may_be_undefined = false;

  bool has_values() const { return lo <= hi; }
  bool is_constant() const { return lo == hi && !may_be_undefined; }
  bool can_be_true() const { return hi > 0; }
  bool can_be_false() const { return lo <= 0; }
  friend bool operator==(const NodeRange&, const NodeRange&) = default;
};

/// Cells [q_begin, q_end) x [k_begin, k_end), not empty.
struct CellBox {
  std::int64_t q_begin;
  std::int64_t q_end;
  std::int64_t k_begin;
  std::int64_t k_end;
};

/// Bounds of the entries of a part of a table. Override to use pyramids; the default answers for
/// the whole table, which it scans at the first question.
class TableBounds {
 public:
  explicit TableBounds(const IrProgram& program);
  virtual ~TableBounds() = default;
  /// lo and hi of the entries with begin[d] <= index d < end[d] for each d below the rank, a
  /// non-empty box inside the extents. They may be wider than the entries, never narrower.
  virtual NodeRange bounds(std::int32_t table, const std::int64_t* begin, const std::int64_t* end);

 private:
  const IrProgram* program_;
  std::vector<NodeRange> whole_;
  std::vector<bool> is_known_;
};

/// Smallest and largest entry of a table; booleans are 0 and 1. Cost: one pass, O(runs) for runs.
/// Large tables of rank 2 and above get the limits of their dtype instead.
NodeRange table_range(const IrTable& table);

/// The range of one node from those of its children. For lookup and test, `table_entries` is the
/// range of the whole table. For q, k and loop, `variable` is their own range.
NodeRange node_range(const IrNode& node, const NodeRange* children, const NodeRange& variable,
                     const IrTable* table, const NodeRange& table_entries);

/// The variables that a node mentions.
enum Mentions : std::uint8_t { kMentionsQ = 1, kMentionsK = 2, kMentionsLoop = 4 };
/// One mask of Mentions per node.
std::vector<std::uint8_t> node_mentions(const IrProgram& program);

/// Ranges of all nodes of a program, box by box. Not thread-safe; one analysis a thread.
class RangeAnalysis {
 public:
  /// `bounds` may be null, which means whole tables. It and the program must outlive the analysis.
  explicit RangeAnalysis(const IrProgram& program, TableBounds* bounds = nullptr);
  /// One range per node; valid until the next call.
  std::span<const NodeRange> evaluate(const CellBox& box);
  /// The root's range.
  NodeRange root(const CellBox& box) { return evaluate(box).back(); }

 private:
  const IrProgram* program_;
  TableBounds* bounds_;
  std::unique_ptr<TableBounds> own_bounds_;
  std::vector<NodeRange> ranges_;
  std::vector<std::int64_t> loop_bound_;  // per node: bound of a loop node's loop
};

}  // namespace fdma
