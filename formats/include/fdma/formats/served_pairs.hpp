// Masks of one batch element or head that do not serve several.
#pragma once

#include <cstdint>
#include <string_view>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma {

/// shape_mismatch where a mask that was written with b (h) and compiled for one element (head)
/// would serve several. Counts other than 1 are not looked at.
///
/// Example     window(h + 1) of one head, for 4: "mask: it was written with h and compiled for one
/// head, the tensors have 4; compile it with heads=4"
/// `subject` begins the message, `others` says whose counts they are
Result<void> check_serves(const BlockMask& mask, std::int64_t num_batches, std::int64_t num_heads,
                          std::string_view subject = "mask: it",
                          std::string_view others = "the tensors have");

/// Marks a mask that was made of the cells of `source` as written with what that was written with.
/// One element (head) that was taken out of several was chosen, so that it may serve all: such a
/// mask is not marked.
void mark_as(const BlockMask& source, BlockMask& made);

}  // namespace fdma
