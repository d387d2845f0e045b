// The texts of the named masks (prelude.def) as expressions.
#pragma once

#include "fdma/masks/mask_expr.hpp"
#include "fdma/masks/mask_names.hpp"

namespace fdma {

/// The expression that a form of name_forms() stands for; `of_table` where its integer_or_table
/// parameter is a table. Parameters and derived numbers are `variable` nodes, tables `table` nodes.
/// Empty for topk. Parsed at the first use; any number of threads may ask.
const MaskExpr& prelude_expr(const NameForm& form, bool of_table);

}  // namespace fdma
