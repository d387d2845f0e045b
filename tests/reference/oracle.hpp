// The oracle evaluates a mask cell by cell, directly from the expression.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/masks/mask_expr.hpp"
#include "fdma/masks/tables.hpp"

namespace fdma::reference {

/// A cell of the oracle's answer.
enum Cell : std::uint8_t { kMasked = 0, kAttend = 1, kUndefinedCell = 2 };

/// The cells of batch element b and head h: q_len(b) * kv_len(b) bytes, row-major, each a Cell.
///
/// The oracle is slow and obvious. It evaluates the expression at every cell by the rules of
/// docs/spec-language.md and shares nothing with the compiler. It is for tests only.
///
/// Errors      invalid_argument: a missing table or one of the wrong type, document lengths beyond
///             kv_len, ids not below docs, cyclic parents, parameters that a name forbids;
///             shape_mismatch: a table of wrong rank or extent; unsupported: an expression deeper
///             than 2,000 nodes (evaluation recurses)
/// Cost        5 to 100 ns a cell for masks of a few nodes; topk also sorts each row once
Result<std::vector<std::uint8_t>> oracle_cells(const MaskExpr& expr, const Tables& tables,
                                               const MaskShape& shape, std::int64_t b,
                                               std::int64_t h);

/// True iff some cell is undefined. Every other component reports such a mask as an error.
bool has_undefined_cell(const std::vector<std::uint8_t>& cells);

}  // namespace fdma::reference
