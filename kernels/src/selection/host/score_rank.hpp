// Scores and keys as integers that compare like the ranking.
#pragma once

#include <bit>
#include <cstdint>

namespace fdma {

/// A larger rank is better: a higher score, or among equal scores (-0 equals +0) the lower key. No
/// score is NaN.
inline std::uint64_t score_rank(float score, std::int64_t key) {
  // -0 + 0 is +0. Float bits ascend as integers once the bits of negative floats are inverted.
  const auto bits = std::bit_cast<std::uint32_t>(score + 0.0F);
  const std::uint32_t ascending = bits ^ ((bits >> 31) != 0 ? 0xFFFFFFFFu : 0x80000000u);
  return std::uint64_t{ascending} << 32 | static_cast<std::uint32_t>(~key);
}

inline std::int32_t key_of_rank(std::uint64_t rank) {
  return static_cast<std::int32_t>(~static_cast<std::uint32_t>(rank));
}

}  // namespace fdma
