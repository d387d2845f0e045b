// Nodes of expressions as Python holds them, and the functions that make them into a MaskExpr.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
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
  nanobind::object table_free_text{};  ///< text_without_tables as a Python object, once it was read
};

/// The first characters of the symbols "#<number>:<wish>" and "%<number>:<wish>", which tables and
/// loop variables without a name have. finish() names them, by the wish if that name is free.
inline constexpr char kAutomaticTable = '#';
inline constexpr char kAutomaticLoop = '%';

/// An operation by its name in ExprOp ("add", "less_equal", "any_of", ..). It may be any but
/// `named`.
///
/// Errors      invalid_argument: no such operation, or another number of operands than it takes
Result<NodeHandle> make_operation(std::string_view op, const std::vector<NodeHandle>& operands,
                                  std::int64_t value, std::string symbol);

/// The value of an operation on integers and conditions (0 or 1) that are known; nothing where it is
/// undefined.
///
/// Errors      invalid_argument: no such operation, no operation on numbers, or another number of
///             operands than it takes
Result<std::optional<std::int64_t>> fold_operation(std::string_view op,
                                                   const std::vector<std::int64_t>& operands);

using NameTriple = std::tuple<std::string, std::string, std::string>;
/// Of each operation that has a name in Python: its name here, in texts, and in Python (a method of
/// an expression or a function of the package).
std::vector<NameTriple> operator_names();

/// Of each form of a named mask its name, its signature and an example, all as texts have them.
std::vector<NameTriple> named_masks();

/// A named mask. `keywords` has an entry for each operand: the name of a keyword-only parameter of
/// the form, or "". topk without `among` is a shorthand that build() completes.
///
/// Errors      invalid_argument: no such name or form, or a number that depends on the cell
Result<NodeHandle> make_named(std::string_view name, const std::vector<NodeHandle>& operands,
                              std::vector<std::string> keywords);

/// A checked expression, and the name that each automatic table has in it.
struct FinishedExpr {
  MaskExpr expr;
  std::map<std::string, std::string> table_names;  ///< name by symbol
};

/// Names and checks the expression of `root`. `same` maps the symbol of an automatic table to that
/// of another table with the same array. With `ignore_wishes` the names depend on the structure
/// alone.
///
/// Errors      those of mask::build; invalid_argument: more operations than a text may have
Result<FinishedExpr> finish(const NodeHandle& root, const std::map<std::string, std::string>& same,
                            bool ignore_wishes);

/// The text of any node, unchecked. The node may be an integer, the body of a loop, or topk without
/// `among`. The text is "(more than .. operations)" if it would have more than a text may have.
std::string text_of(const NodeHandle& root, const std::map<std::string, std::string>& same);

/// The text of a node without tables; empty if the node has tables.
std::optional<std::string> text_without_tables(const NodeHandle& root);

/// The names that text_of writes for automatic tables, by symbol.
std::map<std::string, std::string> table_names_of(const NodeHandle& root,
                                                  const std::map<std::string, std::string>& same);

/// The nodes of a parsed expression. `automatic` maps names of tables to the symbols that they get.
/// Loop variables become automatic ones with `number`.
NodeHandle nodes_of(const MaskExpr& expr, const std::map<std::string, std::string>& automatic,
                    std::int64_t number);

}  // namespace fdma::python
