// Transposes bitmaps to the order of a backend, 8 x 8 bits at a time. The planner calls it once
// per stored bitmap.
#include "plan/bitmap_order.hpp"

#include <array>

namespace fdma {
namespace {

// Transposes 8 x 8 bits: bit c of byte r becomes bit r of byte c (Warren, Hacker's Delight, section
// 7-3).
std::uint64_t transpose_8x8(std::uint64_t x) {
  std::uint64_t t = (x ^ (x >> 7)) & 0x00AA00AA00AA00AAu;
  x ^= t ^ (t << 7);
  t = (x ^ (x >> 14)) & 0x0000CCCC0000CCCCu;
  x ^= t ^ (t << 14);
  t = (x ^ (x >> 28)) & 0x00000000F0F0F0F0u;
  return x ^ t ^ (t << 28);
}

// Packs bits 0 and 1 of each byte into 16 adjacent bits.
std::uint32_t pairs_of_bytes(std::uint64_t x) {
  x &= 0x0303030303030303u;
  x = (x | x >> 6) & 0x000F000F000F000Fu;
  x = (x | x >> 12) & 0x000000FF000000FFu;
  return static_cast<std::uint32_t>((x | x >> 24) & 0xFFFFu);
}

}  // namespace

void thread_fragments_from_row_major(const std::uint64_t* row_major,
                                     std::uint64_t* thread_fragments) {
  // Rows r and r + 8 of a group of 16 belong to the four threads of a quad. Thread t of the quad
  // has columns 2t and 2t + 1 of every 8.
  for (int r = 0; r < 128; ++r) {
    const int quad = r / 16 * 8 + r % 8;
    const int shift = r % 16 < 8 ? 0 : 32;
    for (int t = 0; t < 4; ++t) {
      const std::uint32_t word = pairs_of_bytes(row_major[2 * r] >> (2 * t)) |
                                 pairs_of_bytes(row_major[2 * r + 1] >> (2 * t)) << 16;
      std::uint64_t& out = thread_fragments[quad * 4 + t];
      out = shift == 0 ? word : out | std::uint64_t{word} << shift;
    }
  }
}

void packed_thread_fragments_from_row_major(const std::uint64_t* row_major, int heads_per_tile,
                                            std::uint64_t* thread_fragments) {
  std::array<std::uint64_t, 256> rows;
  for (std::size_t r = 0; r < 128; ++r) {
    const std::uint64_t* row = row_major + 2 * (r / static_cast<std::size_t>(heads_per_tile));
    rows[2 * r] = row[0];
    rows[2 * r + 1] = row[1];
  }
  thread_fragments_from_row_major(rows.data(), thread_fragments);
}

void key_major_from_row_major(const std::uint64_t* row_major, BlockShape block,
                              std::uint64_t* key_major) {
  // Block sides are multiples of 16, so that rows of either order are whole bytes.
  const std::int64_t row_bytes = block.block_kv / 8, key_bytes = block.block_q / 8;
  const auto* in = reinterpret_cast<const unsigned char*>(row_major);
  auto* out = reinterpret_cast<unsigned char*>(key_major);
  for (std::int64_t r = 0; r < key_bytes; ++r) {
    for (std::int64_t c = 0; c < row_bytes; ++c) {
      std::uint64_t cells = 0;
      for (std::int64_t i = 0; i < 8; ++i) {
        cells |= std::uint64_t{in[(8 * r + i) * row_bytes + c]} << (8 * i);
      }
      cells = transpose_8x8(cells);
      for (std::int64_t i = 0; i < 8; ++i) {
        out[(8 * c + i) * key_bytes + r] = static_cast<unsigned char>(cells >> (8 * i));
      }
    }
  }
}

}  // namespace fdma
