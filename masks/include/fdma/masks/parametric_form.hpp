// The closed form of a compiled mask, read from the words of its expression.
#pragma once

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/masks/mask_expr.hpp"
#include "fdma/masks/tables.hpp"

namespace fdma {

/// The mask that compile made of `expr` and `tables`, in format parametric.
///
/// If the expression joins causal, window, prefix, sink, padding and documents (cu_seqlens,
/// lengths) in a way that has a closed form, the parameters are those of the text, even where the
/// cells do not show them: a window of 4,096 stays one where a single query sees 4,096 keys. A
/// closed-form plan needs this because its calls may lower the lengths. For all other masks the
/// parameters are those of the cells (convert).
///
/// Example     causal & (window(1024) | sink(4)): left 1023, right 0, sink 4
/// Errors      unsupported where the cells have no closed form
/// Cost        that of convert; that of comparing the cells where the words are enough
Result<BlockMask> parametric_form(const BlockMask& compiled, const MaskExpr& expr,
                                  const Tables& tables);

}  // namespace fdma
