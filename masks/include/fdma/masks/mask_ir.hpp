// MaskIr: an expression bound to tables and lengths, with names expanded and constants folded. The
// engines lower it.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/masks/mask_expr.hpp"
#include "fdma/masks/tables.hpp"

namespace fdma {

/// Operators of programs: the rows of operators.def. Integers have 64 bits.
///
/// constant    value
/// q, k        the row and the key of the cell
/// loop        the variable of the enclosing any_of / all_of node with the same `value`
/// lookup      value: index into tables, an integer table; children: one index per dimension
/// boolean     value 0 or 1
/// test        lookup in a boolean table
/// where       condition, integer, integer; where_condition has three conditions
/// equal       compares integers, like less, less_equal and not_equal; a > b is written b < a
/// any_of      value: id of the loop variable; child 0: bound n (mentions neither q nor k nor
///             loops); child 1: condition; likewise all_of
enum class IrOp : std::uint8_t {
#define FDMA_OPERATOR(name, ...) name,
#define FDMA_PROGRAM_OPERATOR(name) name,
#include "fdma/masks/operators.def"
};

/// True for the operators from `boolean` on.
constexpr bool is_condition(IrOp op) { return op >= IrOp::boolean; }

using IrId = std::int32_t;

struct IrNode {
  IrOp op;
  std::int8_t num_children = 0;
  IrId children[4] = {-1, -1, -1, -1};  ///< each smaller than the node's own id
  std::int64_t value = 0;
};

/// A table of a program. Where the table had a batch or head extent, it is reduced to this batch
/// element and head.
///
/// It is either dense (data, dtype, extents, contiguous row-major) or, for 1-dimensional tables of
/// long constant runs, given by runs: entries [run_ends[i - 1], run_ends[i]) are run_values[i], and
/// run_ends.back() = extents[0].
struct IrTable {
  std::string name;
  int rank = 0;
  std::int64_t extents[4] = {1, 1, 1, 1};
  DType dtype = DType::int64;
  const void* data = nullptr;  ///< null for runs
  std::vector<std::int64_t> run_ends;
  std::vector<std::int64_t> run_values;
  std::shared_ptr<const void>
      owner;  ///< keeps `data` alive if FDMA made it; the caller's tables are borrowed

  bool is_runs() const { return data == nullptr; }
  /// Entry at a flat index in [0, product of extents). Cost: O(1); O(log runs) for runs.
  std::int64_t at(std::int64_t index) const;
};

/// The mask of one (batch, head) pair, or of all pairs that share it, as a function of q in
/// [0, q_len) and k in [0, kv_len).
///
/// Invariants  children precede parents; there are no dead nodes; structurally equal
///             nodes are one node
///             b, h, q_len and kv_len are constants, pos is q + (kv_len - q_len)
///             simplified (simplify.hpp) and so canonical: equal expressions bound to equal tables
///             and lengths give equal programs
struct IrProgram {
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  std::vector<IrNode> nodes;
  IrId root = -1;
  std::vector<IrTable> tables;

  const IrNode& node(IrId id) const { return nodes[static_cast<std::size_t>(id)]; }
};

/// A bound mask: one program per group of (batch, head) pairs with the same program.
struct MaskIr {
  MaskShape shape;
  std::vector<IrProgram> programs;
  std::vector<std::int32_t> program_of;  ///< [num_batches * num_heads]
  bool is_per_batch = false;             ///< as in BlockMask
  bool is_per_head = false;
};

/// Binds an expression. The caller's tables must outlive the result. `shape.num_batches` and
/// `num_heads` are the counts that the mask is bound to. They are 1 where the mask mentions no b /
/// h and lengths are the same for all.
///
/// Errors      invalid_argument: missing or unused table, bad parameter, document lengths beyond
///             kv_len, ids not below docs, cyclic parents, ..
///             shape_mismatch: a table of the wrong extent or rank
///             unsupported: topk, which compile selects first
/// Cost        O(nodes) per (batch, head) pair that differs, O(table) where a name derives a table
Result<MaskIr> bind(const MaskExpr& expr, const Tables& tables, const MaskShape& shape);

/// One line per node: "%3 = less_equal %2 %0". Tables are shown as name, extents and dtype (for
/// runs also their count).
std::string dump(const MaskIr& ir);
std::string dump(const IrProgram& program);

}  // namespace fdma
