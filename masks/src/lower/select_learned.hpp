// Selects the keys of the topk in an expression, which then is an ordinary mask.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "fdma/masks/lower.hpp"
#include "fdma/masks/mask_expr.hpp"
#include "fdma/masks/tables.hpp"

namespace fdma {

/// An expression without topk, and the tables that it uses in place of the caller's.
struct SelectedExpr {
  MaskExpr expr;
  Tables tables;
  std::vector<std::shared_ptr<std::vector<std::int32_t>>> storage;  ///< of derived tables
  /// Set instead of expr where the whole mask is one topk: the selection as a mask.
  std::optional<BlockMask> mask;
};

/// Replaces every topk, innermost first, by the query intervals in which each key is kept.
///
/// Errors      those of compiling `among`
///             invalid_argument, shape_mismatch: scores that are no float32 table of [kv_len],
///             [heads_kv, kv_len] or [batch, heads_kv, kv_len], NaN, w < 1
///             unsupported: an `among` inside any / all that uses their variable
/// Cost        one compilation of `among`, and of w where it is no literal; one selection per
///             distinct (mask, row of scores, w)
Result<SelectedExpr> select_learned(const MaskExpr& expr, const Tables& tables,
                                    const MaskShape& shape, const LowerOptions& options);

}  // namespace fdma
