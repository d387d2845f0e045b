// Whether a mask was written with b or h, that is for each batch element or head.
#pragma once

#include "fdma/masks/mask_expr.hpp"
#include "fdma/masks/tables.hpp"

namespace fdma {

/// The values of BlockMask::is_per_batch and is_per_head for the compiled mask.
struct WrittenWith {
  bool batch = false;
  bool head = false;
};

/// True for b and h that the expression mentions, and for tables of named masks that have an extent
/// for batch elements or heads, whatever its value: padding(lengths=@t) is k < t[b]. The table of
/// `bits` is a mask itself, so its extents of 1 serve all; so do scores of one KV head.
WrittenWith written_with(const MaskExpr& expr, const Tables& tables);

}  // namespace fdma
