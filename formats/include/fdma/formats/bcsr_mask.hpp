// BcsrMask: block compressed sparse rows.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/base/interval.hpp"

namespace fdma {

/// Block compressed sparse row (BCSR) mask: for each tile row, the sorted tile columns that are not
/// empty.
///
/// Example     causal, q_len = kv_len = 32, blocks 16 x 16:
///             row_offsets = {0, 1, 3}, col_indices = {0, 0, 1}, bitmap_index = {0, -1, 0}
/// Shapes      row_offsets   [num_tile_rows + 1] int64
///             col_indices   [num_blocks] int32
///             bitmap_index  [num_blocks] int32
///             bitmaps       [num_bitmaps, block_q * block_kv / 64] uint64
/// Invariants  columns strictly increase in a row
///             bitmap_index is kFullBlock or the index of a bitmap
///             no bitmap is all true or all false over the cells that exist
///             bitmaps are distinct and numbered by first occurrence
/// Cost        8 B a tile row, 8 B a block, block_q * block_kv / 8 B a distinct bitmap
/// See         cuSPARSE BSR for the names
struct BcsrMask {
  static constexpr std::int32_t kFullBlock = -1;

  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  BlockShape block;
  std::vector<std::int64_t> row_offsets;
  std::vector<std::int32_t> col_indices;
  std::vector<std::int32_t> bitmap_index;
  std::vector<std::uint64_t> bitmaps;

  std::int64_t num_tile_rows() const { return ceil_div(q_len, block.block_q); }
  std::int64_t num_tile_cols() const { return ceil_div(kv_len, block.block_kv); }
  std::int64_t size_bytes() const;
  friend bool operator==(const BcsrMask&, const BcsrMask&) = default;
};

}  // namespace fdma
