// Turns tiles given by columns into rows of bits.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/base/interval.hpp"

namespace fdma {

/// Transposes a 64 x 64 bit matrix in place: bit c of word r becomes bit r of word c. Recursive
/// block swaps, 6 rounds of 32 word pairs (Warren, Hacker's Delight, section 7-3).
void transpose_64x64(std::uint64_t* words);

/// Collects vertical runs of cells of one tile and writes them in bitmap order (bit r * block_kv +
/// c).
///
/// Cost: O(block_kv) words for a call of set; about one transposition per 64 x 64 cells for write.
class ColumnTileReader {
 public:
  explicit ColumnTileReader(BlockShape block);
  /// Sets rows [begin, end) of column c of the tile.
  void set(std::int64_t c, std::int64_t begin, std::int64_t end);
  /// Writes all cells set so far to words [block_q * block_kv / 64], which are 0 on entry, and
  /// forgets them.
  void write(std::uint64_t* words);

 private:
  BlockShape block_;
  std::int64_t words_per_column_;
  std::vector<std::uint64_t> columns_;  // [block_kv rounded up to 64, words_per_column_]
};

}  // namespace fdma
