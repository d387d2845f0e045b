// topk of the oracle: per query, the visible keys sorted by score.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/masks/tables.hpp"
#include "three_valued.hpp"

namespace fdma::reference {

/// topk(@scores, w, among=M) of one batch element and head.
class TopkCells {
 public:
  /// `among(q, k)` is M there. A row in which M has an undefined cell is undefined.
  /// Errors: invalid_argument (missing or NaN scores, w below 1), shape_mismatch.
  static Result<TopkCells> make(const std::string& scores, Value w,
                                const std::function<Value(Value q, Value k)>& among,
                                const Tables& tables, const MaskShape& shape, std::int64_t b,
                                std::int64_t h);

  /// False outside the mask; undefined where q or k is.
  Value at(Value q, Value k) const;

 private:
  std::int64_t q_len_ = 0, kv_len_ = 0;
  std::vector<Value> cells_;
};

}  // namespace fdma::reference
