// Ranks of keys, runs of them, and the one question that selection in parallel asks.
//
// A rank is a 64-bit integer: larger is better, no two keys share one, 0 is a key that nobody sees.
// A run is an array of ranks in descending order.
#pragma once

#include <cstdint>
#include <cstring>

#include "fdma/kernels/host_device.hpp"

namespace fdma::zoh {

/// Keys of a piece at most: what one thread block sorts.
inline constexpr int kPieceBits = 11;
inline constexpr int kPieceKeys = 1 << kPieceBits;

/// Integers that compare like scores: -0 equals +0, NaN lies below -infinity.
FDMA_HOST_DEVICE inline std::uint32_t ascending_score(float score) {
  std::uint32_t bits;
  memcpy(&bits, &score, sizeof bits);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0;
  if (bits == 0x80000000u) bits = 0;
  return bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u);
}

/// The rank of a key in a group of rows that is alone in its piece; ties go to the lower key.
FDMA_HOST_DEVICE inline std::uint64_t rank_of_key(float score, std::int32_t key) {
  return std::uint64_t{ascending_score(score)} << 32 | (~static_cast<std::uint32_t>(key));
}
FDMA_HOST_DEVICE inline std::int32_t key_of_rank(std::uint64_t rank) {
  return static_cast<std::int32_t>(~static_cast<std::uint32_t>(rank));
}

/// The rank in a piece that holds several groups, the `ordinal`-th from 1 on: later groups are
/// better. `local` is the key's index in the piece.
FDMA_HOST_DEVICE inline std::uint64_t packed_rank(std::uint32_t ordinal, float score, int local) {
  return (std::uint64_t{ordinal} << 32 | ascending_score(score)) << kPieceBits |
         static_cast<std::uint32_t>(kPieceKeys - 1 - local);
}
FDMA_HOST_DEVICE inline int local_of_packed_rank(std::uint64_t rank) {
  return kPieceKeys - 1 - static_cast<int>(rank & (kPieceKeys - 1));
}

/// How many of run[begin, end) are `rank` or better, plus begin: the first place of a worse one.
FDMA_HOST_DEVICE inline int end_of_at_least(const std::uint64_t* run, int begin, int end,
                                            std::uint64_t rank) {
  while (begin < end) {
    const int middle = (begin + end) / 2;
    if (run[middle] >= rank) {
      begin = middle + 1;
    } else {
      end = middle;
    }
  }
  return begin;
}

/// The same as end_of_at_least, where a window often lies on one side as a whole.
FDMA_HOST_DEVICE inline int split_window(const std::uint64_t* run, int begin, int end,
                                         std::uint64_t rank) {
  if (begin == end || run[end - 1] >= rank) return end;
  if (run[begin] < rank) return begin;
  return end_of_at_least(run, begin + 1, end - 1, rank);
}

/// Arrivals 0..m-1 in the order of their ranks, as a wavelet tree: bit `b` of the arrivals, level
/// by level, each level stably sorted by the bits above b. Since the arrivals are a permutation,
/// nodes are full but for the last one, and where they begin needs no table: at level b the node of
/// position p begins at v = p with the low b + 1 bits cleared, and v / 2 ones lie before it.
///
/// Example     arrivals 2 0 3 1: level 1 holds 1 0 1 0; then 0 1 | 2 3 is ordered 0 1 2 3 by level
///             0, which holds 0 1 0 1. The largest of the first two arrivals (j = 1, x = 2): level
///             1 has one 1 among two, so it is 2 or 3; in node 2 one arrival, its bit is 0: 2
/// Cost        kWords words and as many sums a level; a question takes one of each per level
struct Arrivals {
  static constexpr int kWords = kPieceKeys / 32;

  const std::uint32_t* words;  ///< [levels][kWords]
  const std::uint16_t* sums;   ///< [levels][kWords]: ones in the words before
  int num_levels;

  static FDMA_HOST_DEVICE int levels_for(int count) {
    int levels = 0;
    while ((1 << levels) < count) ++levels;
    return levels;
  }

  static FDMA_HOST_DEVICE int count_ones(std::uint32_t word) {
#ifdef __CUDA_ARCH__
    return __popc(word);
#else
    return __builtin_popcount(word);
#endif
  }

  /// Ones among the first `end` positions of a level.
  FDMA_HOST_DEVICE int ones_before(int level, int end) const {
    if (end == kPieceKeys) return kPieceKeys / 2;
    const int word = level * kWords + end / 32;
    return sums[word] + count_ones(words[word] & ((1u << (end % 32)) - 1));
  }

  /// Where position `at` with this bit goes in the next level below `level`.
  FDMA_HOST_DEVICE int next_position(int level, int at, bool bit) const {
    const int node = at & ~((2 << level) - 1);
    const int ones = ones_before(level, at) - node / 2;
    return bit ? node + (1 << level) + ones : at - ones;
  }

  /// The j-th largest (from 1) of the first `count` arrivals; 1 <= j <= count.
  FDMA_HOST_DEVICE int largest(int count, int j) const {
    int node = 0;
    for (int level = num_levels - 1; level >= 0; --level) {
      const int ones = ones_before(level, node + count) - node / 2;
      if (j <= ones) {
        node += 1 << level;
        count = ones;
      } else {
        j -= ones;
        count -= ones;
      }
    }
    return node;
  }
};

}  // namespace fdma::zoh
