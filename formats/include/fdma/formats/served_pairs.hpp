// Masks of one batch element or head that cannot be used for several.
#pragma once

#include <cstdint>
#include <string_view>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma {

/// Checks that a mask that was written with b (h) and compiled for one element (head) is not used
/// for several. Counts of the mask other than 1 are not checked. `subject` begins the message,
/// `others` says whose counts they are.
///
/// Example     window(h + 1) of one head, used for 4 heads: "mask: it was written with h and
///             compiled for one head, the tensors have 4; compile it with heads=4"
/// Errors      shape_mismatch
Result<void> check_serves(const BlockMask& mask, std::int64_t num_batches, std::int64_t num_heads,
                          std::string_view subject = "mask: it",
                          std::string_view others = "the tensors have");

/// Marks `made`, a mask of the cells of `source`, as written with b or h where `source` was. One
/// element (head) that was cut out of several was chosen on purpose and may be used for all, so
/// such a mask is not marked.
void mark_as(const BlockMask& source, BlockMask& made);

}  // namespace fdma
