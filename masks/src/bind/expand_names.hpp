// Named masks as ordinary programs: the texts of prelude.def, bound to the arguments of a node.
#pragma once

#include <cstdint>
#include <string_view>
#include <utility>
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

/// A number, or a condition, by its name in the text of a form; the node -1 is inf.
using NamedNumber = std::pair<std::string_view, IrId>;

/// any over intervals is written out for up to this many intervals a key or query.
inline constexpr std::int64_t kMostIntervalsWrittenOut = 64;

/// A named mask whose arguments were read, ready to be expanded at any q and k.
struct NameInstance {
  const MaskExpr* text = nullptr;    ///< of the prelude
  std::vector<NamedNumber> numbers;  ///< arguments and derived numbers
  /// Arguments and derived tables. A list of intervals that is written out has a table for each.
  std::vector<std::pair<std::string_view, std::vector<TableRef>>> tables;
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

  /// Reads the arguments of a named node. `numbers` are its integer arguments for this pair.
  ///
  /// Errors      invalid_argument, shape_mismatch: arguments that docs/spec-language.md forbids
  Result<NameInstance> prepare(ExprId id, std::vector<NamedNumber> numbers, const BoundPair& pair);

  /// The mask at query row q and key k, inside `loop_depth` loops.
  IrId expand(const NameInstance& mask, const BoundPair& pair, IrId q, IrId k,
              std::int64_t loop_depth);

 private:
  /// The tables and numbers of a form that come from the caller's tables, and their sources.
  struct Kept {
    bool is_known = false;
    std::vector<const void*> sources;
    std::int64_t kv_len = -1;
    std::vector<std::pair<std::string_view, TableRef>> tables;
    std::vector<std::pair<std::string_view, std::int64_t>> values;
  };
  struct Scope;

  /// A table of the caller by the name of its parameter.
  struct NamedTable {
    std::string_view name;
    IrTable table;
  };

  // expand_names_tables.cpp
  Result<void> read_table(ExprId id, std::size_t argument, const BoundPair& pair,
                          NameInstance& mask, std::vector<NamedTable>& sources);
  Result<void> derive(ExprId id, const std::vector<NamedTable>& sources, const BoundPair& pair,
                      NameInstance& mask);
  Result<void> derive_anew(ExprId id, const std::vector<NamedTable>& sources, const BoundPair& pair,
                           Kept& kept);
  Result<void> read_per_element(ExprId id, std::size_t argument, const BoundPair& pair,
                                NameInstance& mask);
  Result<void> read_flags(ExprId id, std::size_t argument, const BoundPair& pair,
                          NameInstance& mask);
  Result<void> read_interval_lists(ExprId id, const BoundPair& pair, NameInstance& mask);
  TableRequest request(ExprId id, std::size_t argument) const;
  IrTable cut(IrTable table, std::int64_t rows, std::int64_t columns) const;

  // expand_names_checks.cpp
  Result<void> check_numbers(ExprId id, const BoundPair& pair, const NameInstance& mask) const;
  Result<void> check_canvas(ExprId id, const BoundPair& pair, const NameInstance& mask) const;

  IrId evaluate(ExprId id, Scope& scope);
  IrId compute(ExprId id, Scope& scope);
  IrId quantifier(const ExprNode& node, Scope& scope);
  IrId nested(const ExprNode& node, const Scope& scope);

  const CheckedExpr& checked_;
  const BoundTables& tables_;
  const MaskShape& shape_;
  TableStore& store_;
  IrBuilder& builder_;
  LoopIds& loops_;
  std::vector<Kept> kept_;
};

/// The entry of a name among the numbers or tables of an instance; null if it has none.
template <class Entry>
const Entry* find_named(const std::vector<std::pair<std::string_view, Entry>>& entries,
                        std::string_view name) {
  for (const auto& entry : entries)
    if (entry.first == name) return &entry.second;
  return nullptr;
}

}  // namespace fdma
