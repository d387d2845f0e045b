// Names the cell at which a mask leaves the layout of another library.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>

#include "fdma/formats/block_mask.hpp"

namespace fdma::interop {

struct CellPosition {
  std::int64_t batch, head, q, k;
};

/// "batch 0, head 1, query row 5, key 7"
inline std::string cell_text(const CellPosition& cell) {
  return fmt::format("batch {}, head {}, query row {}, key {}", cell.batch, cell.head, cell.q,
                     cell.k);
}

/// The first cell, by batch element, head, row and key, in which two masks of the same shape
/// differ. Cost: O(query rows * intervals per row) for each distinct pair of groups.
std::optional<CellPosition> first_difference(const BlockMask& a, const BlockMask& b);

/// Checks that every batch element has one mask for all of its heads; `peer` names the library that
/// needs it. The error names the first cell in which a head differs from the first head.
Result<void> check_equal_heads(const BlockMask& mask, std::string_view interop);

}  // namespace fdma::interop
