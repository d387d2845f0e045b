// Half-open integer ranges, as stored.
#pragma once

#include <cstdint>

namespace fdma {

/// [begin, end) of keys or of queries. Stored intervals are never empty.
struct Interval {
  std::int32_t begin;
  std::int32_t end;
  friend bool operator==(const Interval&, const Interval&) = default;
};

/// Longest sequence that a mask can have: intervals and tile coordinates are 32-bit.
inline constexpr std::int64_t kMaxLength = (std::int64_t{1} << 31) - 1;

/// The sides of a mask block in cells: block_q query rows by block_kv keys, multiples of 16 up to
/// kMaxBlockSide.
struct BlockShape {
  std::int32_t block_q = 128;
  std::int32_t block_kv = 128;
  friend bool operator==(const BlockShape&, const BlockShape&) = default;
};

inline constexpr std::int32_t kMaxBlockSide = 1024;

/// a / b rounded up, for a >= 0 and b > 0.
constexpr std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// a / b rounded down and up, for any a and b > 0.
constexpr std::int64_t floor_quotient(std::int64_t a, std::int64_t b) {
  return a / b - (a % b < 0 ? 1 : 0);
}
constexpr std::int64_t ceil_quotient(std::int64_t a, std::int64_t b) {
  return a / b + (a % b > 0 ? 1 : 0);
}

}  // namespace fdma
