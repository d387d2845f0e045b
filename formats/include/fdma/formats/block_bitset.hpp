// BlockBitset: two bit planes over tiles.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/base/interval.hpp"

namespace fdma {

/// Block bit set: an active bit and a full bit for each tile, and a bitmap for each partial tile.
///
/// Shapes      active, full     [num_tile_rows, words_per_row] uint64; the bit is the tile column,
///                              least significant first
///             partial_offsets  [num_tile_rows + 1] int64
///             bitmap_index     [num_partial] int32, partial tiles in row-major order
///             bitmaps          [num_bitmaps, block_q * block_kv / 64] uint64
/// Invariants  a full tile is active
///             bits past the last tile column are 0
///             bitmaps are distinct and numbered by first occurrence
///             no bitmap is all true or all false over the cells that exist
/// Cost        2 bits a tile, 4 B a partial tile, block_q * block_kv / 8 B a distinct bitmap
struct BlockBitset {
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  BlockShape block;
  std::vector<std::uint64_t> active;
  std::vector<std::uint64_t> full;
  std::vector<std::int64_t> partial_offsets;
  std::vector<std::int32_t> bitmap_index;
  std::vector<std::uint64_t> bitmaps;

  std::int64_t num_tile_rows() const { return ceil_div(q_len, block.block_q); }
  std::int64_t num_tile_cols() const { return ceil_div(kv_len, block.block_kv); }
  std::int64_t words_per_row() const { return ceil_div(num_tile_cols(), 64); }
  std::int64_t size_bytes() const;
  friend bool operator==(const BlockBitset&, const BlockBitset&) = default;
};

}  // namespace fdma
