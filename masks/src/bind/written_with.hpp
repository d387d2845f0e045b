// Whether a mask was written for one batch element or head at a time.
#pragma once

#include "fdma/masks/mask_expr.hpp"
#include "fdma/masks/tables.hpp"

namespace fdma {

/// What BlockMask::is_per_batch and is_per_head of the compiled mask are.
struct WrittenWith {
  bool batch = false;
  bool head = false;
};

/// True for what the expression mentions, b and h, and for tables of named masks that have an
/// extent for batch elements or heads, whatever it is: padding(lengths=@t) is k < t[b]. The table
/// of bits is a mask itself, whose extents of 1 serve all, and scores of one KV head do, too.
WrittenWith written_with(const MaskExpr& expr, const Tables& tables);

}  // namespace fdma
