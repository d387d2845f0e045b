// The meaning of the short form M & topk(@scores, w).
#pragma once

#include <optional>
#include <vector>

#include "fdma/masks/mask_expr.hpp"
#include "fdma/masks/parse.hpp"

namespace fdma {

/// Replaces a topk without `among` by topk(.., among=rest), where rest is the rest of the top-level
/// conjunction, and makes it the root. Such a topk is a `named` node with two children. Returns a
/// diagnostic if one stands anywhere else, or if the conjunction holds several topk.
std::optional<Diagnostic> expand_topk_shorthand(std::vector<ExprNode>& nodes, ExprId& root);

/// Removes the nodes that `root` does not reach. Returns the new root.
ExprId drop_dead_nodes(std::vector<ExprNode>& nodes, ExprId root);

}  // namespace fdma
