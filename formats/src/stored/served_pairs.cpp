#include "fdma/formats/served_pairs.hpp"

#include <fmt/format.h>

namespace fdma {

Result<void> check_serves(const BlockMask& mask, std::int64_t num_batches, std::int64_t num_heads,
                          std::string_view subject, std::string_view others) {
  if (mask.is_per_batch && mask.shape.num_batches == 1 && num_batches > 1) {
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("{} was written with b, or with a table that has an entry for each "
                             "batch element, and compiled for one, {} {}; compile it with batch={}",
                             subject, others, num_batches, num_batches)};
  }
  if (mask.is_per_head && mask.shape.num_heads == 1 && num_heads > 1) {
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("{} was written with h and compiled for one head, {} {}; compile "
                             "it with heads={}",
                             subject, others, num_heads, num_heads)};
  }
  return {};
}

void mark_as(const BlockMask& source, BlockMask& made) {
  const auto is_chosen = [](std::int64_t of, std::int64_t count) { return of > 1 && count == 1; };
  made.is_per_batch =
      source.is_per_batch && !is_chosen(source.shape.num_batches, made.shape.num_batches);
  made.is_per_head = source.is_per_head && !is_chosen(source.shape.num_heads, made.shape.num_heads);
}

}  // namespace fdma
