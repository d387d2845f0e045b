#include "segment/bit_transpose.hpp"

#include <algorithm>

#include "fdma/formats/segment_builder.hpp"

namespace fdma {

void transpose_64x64(std::uint64_t* words) {
  std::uint64_t mask = 0x00000000FFFFFFFFu;
  for (int j = 32; j != 0; j >>= 1, mask ^= mask << j) {
    for (int k = 0; k < 64; k = ((k | j) + 1) & ~j) {
      const std::uint64_t swap = ((words[k] >> j) ^ words[k | j]) & mask;
      words[k] ^= swap << j;
      words[k | j] ^= swap;
    }
  }
}

ColumnTileReader::ColumnTileReader(BlockShape block)
    : block_(block),
      words_per_column_(ceil_div(block.block_q, 64)),
      columns_(static_cast<std::size_t>(ceil_div(block.block_kv, 64) * 64 * words_per_column_)) {}

void ColumnTileReader::set(std::int64_t c, std::int64_t begin, std::int64_t end) {
  set_bits(columns_.data() + c * words_per_column_, begin, end);
}

void ColumnTileReader::write(std::uint64_t* words) {
  const std::int64_t block_q = block_.block_q, block_kv = block_.block_kv;
  std::uint64_t square[64];
  for (std::int64_t c = 0; c < block_kv; c += 64) {
    const std::int64_t width = std::min<std::int64_t>(64, block_kv - c);
    for (std::int64_t r = 0; r < block_q; r += 64) {
      for (std::int64_t i = 0; i < 64; ++i) {
        square[i] = columns_[static_cast<std::size_t>((c + i) * words_per_column_ + r / 64)];
      }
      transpose_64x64(square);
      const std::int64_t height = std::min<std::int64_t>(64, block_q - r);
      for (std::int64_t i = 0; i < height; ++i) {
        const std::int64_t bit = (r + i) * block_kv + c;
        words[bit / 64] |= square[i] << (bit % 64);
        if (bit % 64 + width > 64) words[bit / 64 + 1] |= square[i] >> (64 - bit % 64);
      }
    }
  }
  std::fill(columns_.begin(), columns_.end(), 0);
}

}  // namespace fdma
