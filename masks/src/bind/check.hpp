// Type checks of an expression whose tables are known, and the dependencies of each node.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bind/tables.hpp"
#include "fdma/base/result.hpp"
#include "fdma/masks/mask_expr.hpp"
#include "fdma/masks/mask_names.hpp"

namespace fdma {

/// Facts about one node of an expression.
struct NodeFacts {
  bool is_reachable = false;       ///< from the root
  bool is_condition = false;       ///< else an integer
  bool is_argument = false;        ///< a whole table, side or inf: only its named mask reads it
  bool mentions_cell = false;      ///< q, k, pos or a named mask
  bool mentions_loop = false;      ///< a loop variable that is free in the node
  bool is_scalar = false;          ///< one value per (batch, head), made of simple operators
  bool varies = false;             ///< scalar that mentions b or h (lengths not considered)
  std::int64_t tree_size = 1;      ///< operators if nothing were shared; saturates
  const NameForm* form = nullptr;  ///< named masks
};

/// A type-checked expression.
struct CheckedExpr {
  const MaskExpr* expr;
  std::vector<NodeFacts> facts;
  bool has_at = false;
  bool table_varies_by_batch = false;  ///< a named mask reads a table with a batch extent
  bool table_varies_by_head = false;   ///< ... with a head extent

  const ExprNode& node(ExprId id) const { return expr->node(id); }
  const NodeFacts& fact(ExprId id) const { return facts[static_cast<std::size_t>(id)]; }
};

/// For each node, whether it can be reached from the root.
std::vector<bool> reachable_nodes(const MaskExpr& expr);

/// Names of the tables that nodes reachable from the root mention, sorted.
std::vector<std::string> mentioned_tables(const MaskExpr& expr);

/// unsupported if the expression mentions topk, because no other check knows its tables.
Result<void> check_supported(const MaskExpr& expr);

/// Errors      invalid_argument: an integer where a condition belongs or the reverse, a boolean
///             table as an integer
///             shape_mismatch: indices that are not one per dimension
///             internal: an expression that neither parser nor builder makes
Result<CheckedExpr> check_expr(const MaskExpr& expr, const BoundTables& tables);

/// The source text of a node in quotes, or its operator where it was not parsed: for messages.
std::string quote(const MaskExpr& expr, ExprId id);

}  // namespace fdma
