// topk of the oracle. It sorts the visible keys of each query by score.
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

/// topk(@scores, w, among=M) for one batch element and head.
class TopkCells {
 public:
  /// `among(q, k)` is the value of M at (q, k). A row in which M has an undefined cell is
  /// undefined. Errors: invalid_argument (missing or NaN scores, w below 1), shape_mismatch.
  static Result<TopkCells> make(const std::string& scores, Value w,
                                const std::function<Value(Value q, Value k)>& among,
                                const Tables& tables, const MaskShape& shape, std::int64_t b,
                                std::int64_t h);

  /// The value at (q, k). It is false outside the mask, and undefined if q or k is.
  Value at(Value q, Value k) const;

 private:
  std::int64_t q_len_ = 0, kv_len_ = 0;
  std::vector<Value> cells_;
};

}  // namespace fdma::reference
