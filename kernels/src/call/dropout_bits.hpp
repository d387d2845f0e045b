// Which pairs dropout keeps, the same on every backend, in every tiling and in both passes.
//
// Philox4x32-7 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011) turns a
// counter of four words and a key of two into four random words. A counter stands for four pairs of
// one query head, two rows eight apart and two keys eight apart, which one thread of an accumulator
// fragment holds in both passes:
//
//   key      low seed, high seed xor high offset
//   counter  low offset, b * heads_q + h, block_of(q), block_of(k)
//   word     2 * half_of(q) + half_of(k)
//
// A pair is kept iff its word is at least rate * 2^32, rounded. Kept weights are multiplied by
// 1 / (1 - rate).
#pragma once

#include <cmath>
#include <cstdint>

#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/host_device.hpp"

namespace fdma {

/// The number of rounds, their multipliers, and what is added to the key after each.
inline constexpr int kPhiloxRounds = 7;
inline constexpr std::uint32_t kPhiloxMultiplier0 = 0xD2511F53U, kPhiloxMultiplier1 = 0xCD9E8D57U;
inline constexpr std::uint32_t kPhiloxKeyStep0 = 0x9E3779B9U, kPhiloxKeyStep1 = 0xBB67AE85U;

struct PhiloxWords {
  std::uint32_t word[4];
};

/// Philox4x32-7 of a counter and a key.
FDMA_HOST_DEVICE constexpr PhiloxWords philox(PhiloxWords counter, std::uint32_t key_0,
                                              std::uint32_t key_1) {
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const std::uint64_t product_0 = std::uint64_t{kPhiloxMultiplier0} * counter.word[0];
    const std::uint64_t product_1 = std::uint64_t{kPhiloxMultiplier1} * counter.word[2];
    counter = {{static_cast<std::uint32_t>(product_1 >> 32) ^ counter.word[1] ^ key_0,
                static_cast<std::uint32_t>(product_1),
                static_cast<std::uint32_t>(product_0 >> 32) ^ counter.word[3] ^ key_1,
                static_cast<std::uint32_t>(product_0)}};
    key_0 += kPhiloxKeyStep0;
    key_1 += kPhiloxKeyStep1;
  }
  return counter;
}

/// The dropout of a call. The seed and the offset may be read where the call runs, so they are set
/// apart from the other members, which the host computes.
struct DropoutBits {
  std::uint32_t key_0 = 0, key_1 = 0;  ///< of Philox
  std::uint32_t counter_0 = 0;         ///< the first word of all counters
  std::uint32_t threshold = 0;         ///< words below it are dropped
  float factor = 1;                    ///< of the weights that are kept

  FDMA_HOST_DEVICE constexpr void set_seed(std::uint64_t seed, std::uint64_t offset) {
    key_0 = static_cast<std::uint32_t>(seed);
    key_1 = static_cast<std::uint32_t>(seed >> 32) ^ static_cast<std::uint32_t>(offset >> 32);
    counter_0 = static_cast<std::uint32_t>(offset);
  }

  /// The index of the rows or keys that share counters with this one, and the half that it is in:
  /// bit 0 of its word if it is a key, bit 1 if it is a query.
  FDMA_HOST_DEVICE static constexpr std::uint32_t block_of(std::int64_t position) {
    return static_cast<std::uint32_t>(position / 16 * 8 + position % 8);
  }
  FDMA_HOST_DEVICE static constexpr int half_of(std::int64_t position) {
    return static_cast<int>(position / 8 % 2);
  }

  /// The words of the pairs of two blocks. `head` is b * heads_q + h.
  FDMA_HOST_DEVICE constexpr PhiloxWords words(std::uint32_t head, std::uint32_t q_block,
                                               std::uint32_t k_block) const {
    return philox({{counter_0, head, q_block, k_block}}, key_0, key_1);
  }
  FDMA_HOST_DEVICE constexpr bool keeps(std::uint32_t word) const { return word >= threshold; }
  /// True iff the pair of query q and key k is kept.
  FDMA_HOST_DEVICE constexpr bool keeps(std::uint32_t head, std::int64_t q, std::int64_t k) const {
    return keeps(words(head, block_of(q), block_of(k)).word[2 * half_of(q) + half_of(k)]);
  }
};

/// The threshold and the factor of a rate, which is in [0, 1). A rate so close to 1 that its
/// threshold is 2^32 keeps nothing: its factor is 0.
inline DropoutBits dropout_bits_of_rate(double rate) {
  DropoutBits bits;
  const double threshold = std::round(rate * 4294967296.0);
  const bool keeps_any = threshold < 4294967296.0;
  bits.threshold = keeps_any ? static_cast<std::uint32_t>(threshold) : 0xffffffffU;
  bits.factor = keeps_any ? static_cast<float>(1 / (1 - rate)) : 0.0F;
  return bits;
}

/// The dropout of a call on the host, whose memory the pointers point to.
inline DropoutBits dropout_bits(const Dropout& dropout) {
  DropoutBits bits = dropout_bits_of_rate(dropout.rate);
  bits.set_seed(dropout.seed_at != nullptr ? *dropout.seed_at : dropout.seed,
                dropout.offset_at != nullptr ? *dropout.offset_at : dropout.offset);
  return bits;
}

}  // namespace fdma
