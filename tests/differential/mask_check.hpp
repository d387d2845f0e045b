// One mask, every way of compiling it, against the oracle.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/mask_expr.hpp"
#include "fdma/masks/tables.hpp"

namespace fdma::differential {

/// What the oracle says of a mask.
struct Expectation {
  MaskShape shape;
  std::vector<std::vector<std::uint8_t>> cells;  ///< per (batch, head): 0, 1, 2 (undefined)
  bool is_error = false;                         ///< refused before any cell is looked at
  bool has_undefined = false;
};
Expectation expect_mask(const MaskExpr& expr, const Tables& tables, const MaskShape& shape);

/// What to compare beyond both engines' cells.
struct CheckOptions {
  bool formats = true;    ///< every format and back
  bool threads = true;    ///< 1, 2 and 5 threads give equal arrays
  bool canonical = true;  ///< validate at its deepest level
};

/// How often things were checked: a differential test that compares nothing passes too.
struct CheckCounts {
  std::int64_t masks = 0;
  std::int64_t cells = 0;
  std::int64_t undefined = 0;
  std::int64_t in_interval_form = 0;
  std::int64_t in_parametric_form = 0;
};

/// The differences, one a line; empty if there are none.
///
/// Automatic and box form must have the oracle's cells and equal arrays; interval form likewise
/// where it does not decline. A mask with an undefined cell must be an error that names the first
/// such cell of its (batch, head) pair.
std::string check_mask(const MaskExpr& expr, const Tables& tables, const Expectation& expected,
                       BlockShape block, const CheckOptions& options, CheckCounts& counts);

}  // namespace fdma::differential
