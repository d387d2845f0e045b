// A run begins at every one that follows a zero: popcount(w & ~(w << 1 | carry)). The loops are
// written once and compiled for plain x86-64, for machines with popcnt, and for AVX-512 with vector
// popcounts. The fastest one that runs here is chosen once. Rows narrower than a word take a slower
// loop.
#include "segment/bit_scan.hpp"

#include <algorithm>
#include <bit>

#include "fdma/formats/segment_builder.hpp"

namespace fdma {
namespace {

// For a tile whose rows are whole words: counts the starts of every word by itself, less the words
// that continue a run of the word before. `before` is the tile to the left, or null.
#define FDMA_BIT_SCAN_KERNELS(suffix, attribute)                                                  \
  attribute std::int64_t tile_starts_##suffix(const std::uint64_t* tile,                          \
                                              const std::uint64_t* before, std::int64_t num_rows, \
                                              std::int64_t words_per_row) {                       \
    const std::int64_t num_words = num_rows * words_per_row;                                      \
    std::int64_t count = 0;                                                                       \
    for (std::int64_t i = 0; i < num_words; ++i) {                                                \
      count += std::popcount(tile[i] & ~(tile[i] << 1));                                          \
    }                                                                                             \
    std::uint64_t continued = 0;                                                                  \
    for (std::int64_t c = 1; c < words_per_row; ++c) {                                            \
      for (std::int64_t i = c; i < num_words; i += words_per_row) {                               \
        continued += tile[i] & (tile[i - 1] >> 63) & 1;                                           \
      }                                                                                           \
    }                                                                                             \
    if (before != nullptr) {                                                                      \
      for (std::int64_t i = 0; i < num_words; i += words_per_row) {                               \
        continued += tile[i] & (before[i + words_per_row - 1] >> 63) & 1;                         \
      }                                                                                           \
    }                                                                                             \
    return count - static_cast<std::int64_t>(continued);                                          \
  }                                                                                               \
  attribute std::int64_t and_not_##suffix(const std::uint64_t* a, const std::uint64_t* b,         \
                                          std::int64_t num_words) {                               \
    std::int64_t count = 0;                                                                       \
    for (std::int64_t i = 0; i < num_words; ++i) count += std::popcount(a[i] & ~b[i]);            \
    return count;                                                                                 \
  }

FDMA_BIT_SCAN_KERNELS(portable, )

struct Kernels {
  std::int64_t (*tile_starts)(const std::uint64_t*, const std::uint64_t*, std::int64_t,
                              std::int64_t);
  std::int64_t (*and_not)(const std::uint64_t*, const std::uint64_t*, std::int64_t);
};

#if defined(__x86_64__)
FDMA_BIT_SCAN_KERNELS(popcnt, __attribute__((target("popcnt"))))
FDMA_BIT_SCAN_KERNELS(avx512, __attribute__((target("popcnt,avx512f,avx512vl,avx512vpopcntdq"))))
#endif

Kernels choose() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512vpopcntdq") && __builtin_cpu_supports("avx512vl")) {
    return {tile_starts_avx512, and_not_avx512};
  }
  if (__builtin_cpu_supports("popcnt")) return {tile_starts_popcnt, and_not_popcnt};
#endif
  return {tile_starts_portable, and_not_portable};
}

const Kernels& kernels() {
  static const Kernels chosen = choose();
  return chosen;
}

}  // namespace

std::int64_t count_row_starts(const std::uint64_t* words, std::int64_t num_tiles, BlockShape block,
                              std::int64_t limit) {
  const std::int64_t block_kv = block.block_kv;
  const std::int64_t words_per_bitmap = std::int64_t{block.block_q} * block_kv / 64;
  std::int64_t count = 0;
  if (block_kv % 64 == 0) {
    for (std::int64_t tile = 0; tile < num_tiles && count <= limit; ++tile) {
      const std::uint64_t* at = words + tile * words_per_bitmap;
      count += kernels().tile_starts(at, tile == 0 ? nullptr : at - words_per_bitmap, block.block_q,
                                     block_kv / 64);
    }
    return count;
  }
  for (std::int64_t r = 0; r < block.block_q && count <= limit; ++r) {
    std::uint64_t carry = 0;  // last bit of the cells before
    for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
      const std::uint64_t* bitmap = words + tile * words_per_bitmap;
      for (std::int64_t c = 0; c < block_kv; c += 64) {
        const int width = static_cast<int>(std::min<std::int64_t>(64, block_kv - c));
        const std::uint64_t bits = read_bits(bitmap, r * block_kv + c, width);
        count += std::popcount(bits & ~(bits << 1 | carry));
        carry = bits >> (width - 1) & 1;
      }
    }
  }
  return count;
}

std::int64_t count_column_starts(const std::uint64_t* words, BlockShape block) {
  const std::int64_t block_kv = block.block_kv;
  if (block_kv % 64 == 0) {
    const std::int64_t words_per_row = block_kv / 64;
    return kernels().and_not(words + words_per_row, words, (block.block_q - 1) * words_per_row);
  }
  std::int64_t count = 0;
  for (std::int64_t bit = block_kv; bit < std::int64_t{block.block_q} * block_kv;) {
    const int width = static_cast<int>(std::min<std::int64_t>(64, block_kv - bit % block_kv));
    count += std::popcount(read_bits(words, bit, width) & ~read_bits(words, bit - block_kv, width));
    bit += width;
  }
  return count;
}

std::int64_t count_and_not(const std::uint64_t* a, const std::uint64_t* b, std::int64_t num_words) {
  return kernels().and_not(a, b, num_words);
}

}  // namespace fdma
