// Ranks of keys, runs of ranks, and the query on which parallel selection is built. Host and device
// share the code.
//
// A rank is a 64-bit integer: larger is better, no two keys share one, and 0 is a key that no query
// sees. A run is an array of ranks in descending order.
#pragma once

#include <cstdint>
#include <cstring>

#include "fdma/kernels/host_device.hpp"

namespace fdma::zoh {

/// Maximum number of keys of a key segment, which is what one thread block sorts.
inline constexpr int kKeySegmentBits = 11;
inline constexpr int kKeySegmentSize = 1 << kKeySegmentBits;

/// Maps scores to integers that compare like them: -0 equals +0, and NaN lies below -infinity.
FDMA_HOST_DEVICE inline std::uint32_t ascending_score(float score) {
  std::uint32_t bits;
  memcpy(&bits, &score, sizeof bits);
  if ((bits & 0x7FFFFFFFu) > 0x7F800000u) return 0;
  if (bits == 0x80000000u) bits = 0;
  return bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u);
}

/// The inverse of ascending_score; for NaN some NaN.
FDMA_HOST_DEVICE inline float score_of_ascending(std::uint32_t ascending) {
  const std::uint32_t bits = ascending ^ ((ascending >> 31) != 0 ? 0x80000000u : 0xFFFFFFFFu);
  float score;
  memcpy(&score, &bits, sizeof score);
  return score;
}

/// The rank of a key, from its ascending score, in a group of rows that is alone in its key
/// segment. Ties go to the lower key.
FDMA_HOST_DEVICE inline std::uint64_t rank_of_ascending(std::uint32_t ascending, std::int32_t key) {
  return std::uint64_t{ascending} << 32 | (~static_cast<std::uint32_t>(key));
}
FDMA_HOST_DEVICE inline std::uint64_t rank_of_key(float score, std::int32_t key) {
  return rank_of_ascending(ascending_score(score), key);
}
FDMA_HOST_DEVICE inline std::int32_t key_of_rank(std::uint64_t rank) {
  return static_cast<std::int32_t>(~static_cast<std::uint32_t>(rank));
}

/// The rank in a key segment that holds several groups, for the `ordinal`-th group, counted from 1.
/// Later groups rank above earlier ones. `local` is the key's index in the key segment.
FDMA_HOST_DEVICE inline std::uint64_t packed_rank_of_ascending(std::uint32_t ordinal,
                                                               std::uint32_t ascending, int local) {
  return (std::uint64_t{ordinal} << 32 | ascending) << kKeySegmentBits |
         static_cast<std::uint32_t>(kKeySegmentSize - 1 - local);
}
FDMA_HOST_DEVICE inline int local_of_packed_rank(std::uint64_t rank) {
  return kKeySegmentSize - 1 - static_cast<int>(rank & (kKeySegmentSize - 1));
}

/// The first place of run[begin, end) whose rank is worse than `rank`: begin plus the number of
/// ranks that are `rank` or better.
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

/// The same as end_of_at_least, but fast if the window lies on one side as a whole.
FDMA_HOST_DEVICE inline int split_window(const std::uint64_t* run, int begin, int end,
                                         std::uint64_t rank) {
  if (begin == end || run[end - 1] >= rank) return end;
  if (run[begin] < rank) return begin;
  return end_of_at_least(run, begin + 1, end - 1, rank);
}

/// Samples of a run are its first 32 ranks, then 16 from each section that is as long as all before
/// it. Samples therefore determine a place to at most a 16th of itself. For the best w ranks of
/// some runs, they tell to within w / 16 how many are above one of them.
inline constexpr int kSamples = 128;
/// The place of each sample, and after the last one the end of the run.
FDMA_HOST_DEVICE inline int sample_place(int sample) {
  return sample < 32 ? sample : (32 + 2 * (sample % 16)) << (sample / 16 - 2);
}
/// The first sample at a place or after it.
FDMA_HOST_DEVICE inline int sample_from(int place) {
  int sample = place < 32 ? place : 32;
  for (int length = 32; length <= place && sample < kSamples; length *= 2, sample += 16) {
    if (place <= 2 * length) return sample + (place - length + length / 16 - 1) / (length / 16);
  }
  return sample;
}
/// The last sample at a place or before it.
FDMA_HOST_DEVICE inline int sample_up_to(int place) {
  const int sample = sample_from(place);
  return sample < kSamples && sample_place(sample) == place ? sample : sample - 1;
}

/// Insertions 0..m-1 in the order of their ranks, for one query: the j-th largest of the first few.
/// The structure has two levels of digits of three bits, then leaves of 32 insertions. Level 0
/// holds bits 10 to 8 of the insertions in the order of their ranks. Level 1 holds bits 7 to 5,
/// stably sorted by the bits above. A leaf holds the 32 insertions with the same upper bits, and
/// which of them are among its first ones. Insertions are a permutation, so all nodes but the last
/// are full, and their begins need no table.
///
/// Example     insertions 300 0 301 1 2 .. 299; the largest of the first two (j = 1): their digits
///             are 1 and 0, so it is in the node of digit 1, as the largest (j = 1) of the first
///             one there; its digit there is 1 (300 = 1 * 256 + 1 * 32 + 12); in that leaf the
///             highest bit of the first one is bit 12: 300
/// Cost        a query reads two words of 32 bytes and one of 4
struct InsertionTree {
  static constexpr int kWords = kKeySegmentSize / 32;
  static constexpr int kLevels = 2;
  static constexpr int kDigits = 8;

  /// The digits of 32 positions.
  struct alignas(16) Word {
    /// sums[slot_of(d)]: number of digits of at least d in the earlier words of the same node.
    std::uint16_t sums[kDigits];
    /// Bits 0, 1 and 2 of the digits; the last plane is not used
    std::uint32_t planes[4];
  };

  const Word* words;  ///< [kLevels][kWords]
  const std::uint32_t*
      leaves;  ///< [kKeySegmentSize]: the lower bits of the insertions of a leaf up to there

  static FDMA_HOST_DEVICE int shift_of(int level) { return level == 0 ? 8 : 5; }
  static FDMA_HOST_DEVICE int digit_of(int insertion, int level) {
    return insertion >> shift_of(level) & (kDigits - 1);
  }
  /// The order makes the sums of 2 and 6 neighbours, and those of 1 and 3, and of 5 and 7.
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

  /// The position of an element with this digit, now at `at`, in the next level or, from the last
  /// level, in the leaves. `equal` are the positions of its word with this digit, and `before` is
  /// the number of such positions of its node in earlier words.
  static FDMA_HOST_DEVICE int next_position(int level, int at, int digit, std::uint32_t equal,
                                            int before) {
    const int node = level == 0 ? 0 : at & ~((1 << shift_of(0)) - 1);
    return node + (digit << shift_of(level)) + before + count_ones(equal & ((1u << (at % 32)) - 1));
  }

  /// The j-th largest (from 1) of the first `count` insertions; 1 <= j <= count.
  FDMA_HOST_DEVICE int largest(int count, int j) const {
    int node = 0;
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
    for (int level = 0; level < kLevels; ++level) {
      const int last = node + count - 1;
      const Word word = words[level * kWords + last / 32];
      const std::uint32_t mask = (2u << (last % 32)) - 1;
      // At least j of the first `count` have digits of `digit` or more. The loop finds the largest
      // such digit bit by bit. `count` and `above` are the numbers with at least `digit` and with
      // more than it.
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
