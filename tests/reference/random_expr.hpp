// Random well-typed masks with shapes and tables, for property and differential tests.
#pragma once

#include <cstdint>
#include <string>

#include "fdma/formats/block_mask.hpp"
#include "fdma/masks/mask_expr.hpp"
#include "table_set.hpp"

namespace fdma::reference {

/// What a random mask may look like.
struct RandomMaskOptions {
  std::int64_t max_len = 40;     ///< of q_len and kv_len, which differ as often as not
  std::int64_t max_batches = 3;  ///< 1 as often as not; likewise heads
  std::int64_t max_heads = 3;
  int max_depth = 4;             ///< of the condition
  bool allow_undefined = false;  ///< look-ups, divisors and shifts that may leave their range
  bool allow_at = true;
  bool allow_names = true;  ///< named masks, tables fitted to the shape
};

struct RandomMask {
  MaskExpr expr;
  MaskShape shape;
  TableSet tables;
  /// The text, the shape and the tables.
  std::string describe() const;
};

/// The mask of a seed: equal seeds and options give equal masks on every platform. Every table is
/// mentioned by the expression. With allow_undefined false, a cell may still be undefined by
/// overflow or by at(..), and an argument may be one that its name forbids; the oracle tells.
RandomMask make_random_mask(std::uint64_t seed, const RandomMaskOptions& options = {});

}  // namespace fdma::reference
