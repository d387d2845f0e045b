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

/// The score of an ascending one; of NaN some NaN.
FDMA_HOST_DEVICE inline float score_of_ascending(std::uint32_t ascending) {
  const std::uint32_t bits = ascending ^ ((ascending >> 31) != 0 ? 0x80000000u : 0xFFFFFFFFu);
  float score;
  memcpy(&score, &bits, sizeof score);
  return score;
}

/// The rank of a key in a group of rows that is alone in its piece, from its ascending score; ties
/// go to the lower key.
FDMA_HOST_DEVICE inline std::uint64_t rank_of_ascending(std::uint32_t ascending, std::int32_t key) {
  return std::uint64_t{ascending} << 32 | (~static_cast<std::uint32_t>(key));
}
FDMA_HOST_DEVICE inline std::uint64_t rank_of_key(float score, std::int32_t key) {
  return rank_of_ascending(ascending_score(score), key);
}
FDMA_HOST_DEVICE inline std::int32_t key_of_rank(std::uint64_t rank) {
  return static_cast<std::int32_t>(~static_cast<std::uint32_t>(rank));
}

/// The same in a piece that holds several groups, the `ordinal`-th from 1 on: later groups are
/// better. `local` is the key's index in the piece.
FDMA_HOST_DEVICE inline std::uint64_t packed_rank_of_ascending(std::uint32_t ordinal,
                                                               std::uint32_t ascending, int local) {
  return (std::uint64_t{ordinal} << 32 | ascending) << kPieceBits |
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

/// Samples of a run: its first 32 ranks, then 16 from each stretch that is as long as all before.
/// So a place is known from samples to at most a 16th of itself, and whatever w ranks are the best
/// of some runs, samples tell to w / 16 how many are above one of them.
inline constexpr int kSamples = 128;
/// Their places, and behind them the end of the run.
FDMA_HOST_DEVICE inline int sample_place(int sample) {
  return sample < 32 ? sample : (32 + 2 * (sample % 16)) << (sample / 16 - 2);
}
/// The first sample from a place on.
FDMA_HOST_DEVICE inline int sample_from(int place) {
  int sample = place < 32 ? place : 32;
  for (int length = 32; length <= place && sample < kSamples; length *= 2, sample += 16) {
    if (place <= 2 * length) return sample + (place - length + length / 16 - 1) / (length / 16);
  }
  return sample;
}
/// The last one up to a place.
FDMA_HOST_DEVICE inline int sample_up_to(int place) {
  const int sample = sample_from(place);
  return sample < kSamples && sample_place(sample) == place ? sample : sample - 1;
}

/// Arrivals 0..m-1 in the order of their ranks, for one question: which is the j-th largest of the
/// first few? Two levels of digits of three bits, then leaves of 32 arrivals. Level 0 holds bits 10
/// to 8 of the arrivals in the order of their ranks; level 1 bits 7 to 5, stably sorted by the bits
/// above; a leaf has the 32 arrivals with the same upper bits, and which of them are among its
/// first. Since arrivals are a permutation, nodes are full but for the last one, and where they
/// begin needs no table.
///
/// Example     arrivals 300 0 301 1 2 .. 299; the largest of the first two (j = 1): digits 1 and 0,
///             so it is in the node of digit 1, the largest there of the first one (j = 1); its
///             digit there is 1 (300 = 1 * 256 + 1 * 32 + 12); of the first one of that leaf bit 12
///             is the highest: 300
/// Cost        a question reads two words of 32 bytes and one of 4
struct Arrivals {
  static constexpr int kWords = kPieceKeys / 32;
  static constexpr int kLevels = 2;
  static constexpr int kDigits = 8;

  /// The digits of 32 positions.
  struct alignas(16) Word {
    /// sums[slot_of(d)]: digits of at least d in the words of the same node before this one.
    std::uint16_t sums[kDigits];
    std::uint32_t planes[4];  ///< bits 0, 1 and 2 of the digits; the last one is not used
  };

  const Word* words;  ///< [kLevels][kWords]
  const std::uint32_t*
      leaves;  ///< [kPieceKeys]: the lower bits of the arrivals of a leaf up to there

  static FDMA_HOST_DEVICE int shift_of(int level) { return level == 0 ? 8 : 5; }
  static FDMA_HOST_DEVICE int digit_of(int arrival, int level) {
    return arrival >> shift_of(level) & (kDigits - 1);
  }
  /// Such that the sums of 2 and 6, and those of 1 and 3, of 5 and 7, are neighbours.
  static FDMA_HOST_DEVICE int slot_of(int digit) { return 0x73605241 >> (4 * digit) & 7; }
  static FDMA_HOST_DEVICE int digit_of_slot(int slot) { return 0x75316204 >> (4 * slot) & 7; }

  static FDMA_HOST_DEVICE int count_ones(std::uint32_t word) {
#ifdef __CUDA_ARCH__
    return __popc(word);
#else
    return __builtin_popcount(word);
#endif
  }

  /// Positions whose digit is at least `digit`.
  static FDMA_HOST_DEVICE std::uint32_t at_least(const std::uint32_t* planes, int digit) {
    std::uint32_t found = 0xFFFFFFFFu;
    for (int bit = 0; bit < 3; ++bit) {
      found = (digit >> bit & 1) != 0 ? planes[bit] & found : planes[bit] | found;
    }
    return found;
  }
  /// Positions with this digit.
  static FDMA_HOST_DEVICE std::uint32_t equal_to(const std::uint32_t* planes, int digit) {
    std::uint32_t found = 0xFFFFFFFFu;
    for (int bit = 0; bit < 3; ++bit) {
      found &= (digit >> bit & 1) != 0 ? planes[bit] : ~planes[bit];
    }
    return found;
  }

  /// Where position `at` with this digit goes in the next level or, from the last one, in the
  /// leaves; `equal`: positions of its word with this digit, `before`: such positions of its node
  /// in the words before.
  static FDMA_HOST_DEVICE int next_position(int level, int at, int digit, std::uint32_t equal,
                                            int before) {
    const int node = level == 0 ? 0 : at & ~((1 << shift_of(0)) - 1);
    return node + (digit << shift_of(level)) + before + count_ones(equal & ((1u << (at % 32)) - 1));
  }

  /// The j-th largest (from 1) of the first `count` arrivals; 1 <= j <= count.
  FDMA_HOST_DEVICE int largest(int count, int j) const {
    int node = 0;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int level = 0; level < kLevels; ++level) {
      const int last = node + count - 1;
      const Word word = words[level * kWords + last / 32];
      const std::uint32_t mask = (2u << (last % 32)) - 1;
      // Of the first `count` at least j have digits of `digit` or more: bit by bit the largest such
      // digit. `count` and `above`: those with at least `digit`, and with at least the next one.
      const std::uint32_t low = word.planes[0], middle = word.planes[1], high = word.planes[2];
      int digit = 0, above = 0;
      const auto try_digit = [&](int tried, std::uint32_t found, int sum) {
        const int ones = sum + count_ones(found & mask);
        if (j <= ones) {
          digit = tried;
          count = ones;
        } else {
          above = ones;
        }
      };
      try_digit(4, high, word.sums[0]);
      const bool has_high = digit != 0;
      try_digit(digit + 2, has_high ? high & middle : high | middle,
                has_high ? word.sums[3] : word.sums[2]);
      const bool has_middle = (digit & 2) != 0;
      const std::uint32_t lower = has_middle ? middle & low : middle | low;
      const int sum_1 = has_middle ? word.sums[5] : word.sums[4];
      const int sum_5 = has_middle ? word.sums[7] : word.sums[6];
      try_digit(digit + 1, has_high ? high & lower : high | lower, has_high ? sum_5 : sum_1);
      count -= above;
      j -= above;
      node += digit << shift_of(level);
    }
    const std::uint32_t leaf = leaves[node + count - 1];
    int bit = 0;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int step = 16; step > 0; step /= 2) {
      if (count_ones(leaf >> (bit + step)) >= j) bit += step;
    }
    return node + bit;
  }
};

}  // namespace fdma::zoh
