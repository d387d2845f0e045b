// Named masks as ordinary programs: one function per named mask of docs/spec-language.md.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bind/check.hpp"
#include "bind/tables.hpp"
#include "fdma/base/result.hpp"
#include "ir/builder.hpp"

namespace fdma {

/// The batch element and head that a program is for.
struct BoundPair {
  std::int64_t b;
  std::int64_t h;
  std::int64_t q_len;
  std::int64_t kv_len;
};

/// A named mask whose arguments were read, ready to be expanded at any q and k.
struct NameInstance {
  MaskForm form = MaskForm::none;
  std::vector<IrId> numbers;  ///< integer arguments in order; -1 for inf
  std::vector<TableRef> tables;
  std::vector<std::int64_t> values;  ///< derived numbers; the form defines their meaning
  bool is_left = false;
};

/// Gives loops their ids: one per depth and bound.
class LoopIds {
 public:
  std::int64_t id_of(std::int64_t depth, std::int64_t bound);
  void clear() { known_.clear(); }

 private:
  std::vector<std::pair<std::int64_t, std::int64_t>> known_;
};

/// Prepares and expands the named masks of one expression. Tables derived for a batch element are
/// kept for its other heads.
class NameExpander {
 public:
  NameExpander(const CheckedExpr& checked, const BoundTables& tables, const MaskShape& shape,
               TableStore& store, IrBuilder& builder, LoopIds& loops)
      : checked_(checked),
        tables_(tables),
        shape_(shape),
        store_(store),
        builder_(builder),
        loops_(loops),
        kept_(checked.facts.size()) {}

  /// Reads the arguments of a named node. `numbers` are its integer arguments (-1 for inf) for this
  /// pair.
  ///
  /// Errors      invalid_argument, shape_mismatch: arguments that docs/spec-language.md forbids
  Result<NameInstance> prepare(ExprId id, std::vector<IrId> numbers, const BoundPair& pair);

  /// The mask at query row q and key k, inside `loop_depth` loops.
  IrId expand(const NameInstance& mask, const BoundPair& pair, IrId q, IrId k,
              std::int64_t loop_depth);

 private:
  /// The tables derived for a node, and their sources.
  struct Kept {
    bool is_known = false;
    const void* data[2] = {nullptr, nullptr};
    std::int64_t q_len = -1, kv_len = -1;
    std::vector<TableRef> tables;
    std::vector<std::int64_t> values;
  };

  Result<void> read_tables(ExprId id, const BoundPair& pair, NameInstance& mask);
  Result<void> derive(ExprId id, const std::vector<IrTable>& sources, const BoundPair& pair,
                      NameInstance& mask);
  Result<void> read_per_element(ExprId id, const BoundPair& pair, NameInstance& mask);
  Result<void> read_dense(ExprId id, const BoundPair& pair, NameInstance& mask);
  Result<void> read_interval_lists(ExprId id, const BoundPair& pair, NameInstance& mask);
  Result<void> check_numbers(ExprId id, const BoundPair& pair, const NameInstance& mask) const;
  Result<void> check_canvas(ExprId id, const BoundPair& pair, const NameInstance& mask) const;
  TableRequest request(ExprId id, std::size_t argument) const;
  IrTable cut(IrTable table, std::int64_t rows, std::int64_t columns) const;

  IrId both(IrId a, IrId b) { return builder_.make(IrOp::logical_and, a, b); }
  IrId either(IrId a, IrId b) { return builder_.make(IrOp::logical_or, a, b); }
  IrId at_most(IrId a, IrId b) { return builder_.make(IrOp::less_equal, a, b); }
  IrId below(IrId a, IrId b) { return builder_.make(IrOp::less, a, b); }
  IrId same(IrId a, IrId b) { return builder_.make(IrOp::equal, a, b); }
  IrId minus(IrId a, IrId b) { return builder_.make(IrOp::sub, a, b); }
  IrId plus(IrId a, IrId b) { return builder_.make(IrOp::add, a, b); }
  IrId entry(const TableRef& table, IrId i) { return builder_.lookup(table, {&i, 1}); }
  IrId within(IrId lo, IrId x, IrId hi) { return both(at_most(lo, x), below(x, hi)); }
  IrId same_document(const TableRef& ids, IrId pos, IrId k, IrId in_keys);
  IrId interval_lists(const NameInstance& mask, IrId index, IrId position, std::int64_t loop_depth);
  IrId tree(const NameInstance& mask, IrId pos, IrId k, IrId in_keys);
  IrId block_diffusion(const NameInstance& mask, IrId pos, IrId k);
  IrId natten(const NameInstance& mask, IrId pos, IrId k);

  const CheckedExpr& checked_;
  const BoundTables& tables_;
  const MaskShape& shape_;
  TableStore& store_;
  IrBuilder& builder_;
  LoopIds& loops_;
  std::vector<Kept> kept_;
};

}  // namespace fdma
