// M & topk(@scores, w): what the shorthand stands for.
#pragma once

#include <optional>
#include <vector>

#include "fdma/masks/mask_expr.hpp"
#include "fdma/masks/parse.hpp"

namespace fdma {

/// Replaces a topk without `among` by topk(.., among=rest), where rest is the rest of the top-level
/// conjunction, and moves the root there. `nodes` holds such a topk as a `named` node with two
/// children. A diagnostic if one stands anywhere else, or if the conjunction holds several topk.
std::optional<Diagnostic> expand_topk_shorthand(std::vector<ExprNode>& nodes, ExprId& root);

/// Removes the nodes that `root` does not reach; the new root.
ExprId drop_dead_nodes(std::vector<ExprNode>& nodes, ExprId root);

}  // namespace fdma
