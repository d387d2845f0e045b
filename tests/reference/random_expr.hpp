// Random well-typed masks with shapes and tables, for property and differential tests.
#pragma once

#include <cstdint>
#include <string>

#include "fdma/formats/block_mask.hpp"
#include "fdma/masks/mask_expr.hpp"
#include "table_set.hpp"

namespace fdma::reference {

/// The limits of a random mask.
struct RandomMaskOptions {
  std::int64_t max_len = 40;     ///< limit of q_len and kv_len, which often differ
  std::int64_t max_batches = 3;  ///< at least half of the masks have 1; the same holds for heads
  std::int64_t max_heads = 3;
  int max_depth = 4;             ///< depth of the condition
  bool allow_undefined = false;  ///< allows look-ups, divisors and shifts outside their range
  bool allow_at = true;
  bool allow_names = true;  ///< allows named masks, whose tables fit the shape
};

struct RandomMask {
  MaskExpr expr;
  MaskShape shape;
  TableSet tables;
  /// The text, the shape and the tables.
  std::string describe() const;
};

/// The mask of a seed. Equal seeds and options give equal masks on every platform. The expression
/// mentions every table. Even without allow_undefined, a cell may be undefined by overflow or by
/// at(..), and an argument may be one that its name forbids; the oracle tells whether that is so.
RandomMask make_random_mask(std::uint64_t seed, const RandomMaskOptions& options = {});

}  // namespace fdma::reference
