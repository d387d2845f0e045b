// Nodes of expressions as Python holds them, and how they become a finished MaskExpr.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/masks/mask_builder.hpp"
#include "fdma/masks/mask_expr.hpp"

namespace fdma::python {

/// One operation over shared operands, and whether its value may differ from cell to cell.
struct NodeHandle {
  mask::BuilderNodePtr node;
  bool depends_on_cell = false;
  nanobind::object table_free_text{};  ///< text_without_tables as Python has it, once it was asked
};

/// Symbols of tables and loop variables that have no name of the user's yet: "#<number>:<wish>" and
/// "%<number>:<wish>". finish() names them: as wished where nothing else is called so.
inline constexpr char kAutomaticTable = '#';
inline constexpr char kAutomaticLoop = '%';

/// An operation by its name in ExprOp ("add", "less_equal", "any_of", ..), all but `named`.
///
/// Errors      invalid_argument: no such operation, or another number of operands than it takes
Result<NodeHandle> make_operation(std::string_view op, const std::vector<NodeHandle>& operands,
                                  std::int64_t value, std::string symbol);

/// A named mask. `keywords` are the names of the form's keyword-only parameters, "" for the others,
/// in the order of `operands`; topk without `among` is the shorthand that build() completes.
///
/// Errors      invalid_argument: no such name or form, or a number that depends on the cell
Result<NodeHandle> make_named(std::string_view name, const std::vector<NodeHandle>& operands,
                              std::vector<std::string> keywords);

/// A checked expression, and the name that each automatic table has in it.
struct FinishedExpr {
  MaskExpr expr;
  std::map<std::string, std::string> table_names;  ///< name by symbol
};

/// `same` maps symbols of automatic tables to that of another with the same array. With
/// `ignore_wishes` names depend on the structure alone.
///
/// Errors      those of mask::build; invalid_argument: more operations than a text may have
Result<FinishedExpr> finish(const NodeHandle& root, const std::map<std::string, std::string>& same,
                            bool ignore_wishes);

/// The text of any node as it stands, unchecked: integers, bodies of loops, topk without `among`.
/// "(more than .. operations)" where a text may not have as many.
std::string text_of(const NodeHandle& root, const std::map<std::string, std::string>& same);

/// The text of a node that has no tables, and none where it has some.
std::optional<std::string> text_without_tables(const NodeHandle& root);

/// The names that text_of writes for automatic tables, by symbol.
std::map<std::string, std::string> table_names_of(const NodeHandle& root,
                                                  const std::map<std::string, std::string>& same);

/// The nodes of a parsed expression. Tables in `automatic` get the symbol that stands beside their
/// name; loop variables become automatic ones with `number`.
NodeHandle nodes_of(const MaskExpr& expr, const std::map<std::string, std::string>& automatic,
                    std::int64_t number);

}  // namespace fdma::python
