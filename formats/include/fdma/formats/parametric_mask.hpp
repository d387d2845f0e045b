// ParametricMask: a closed form that a kernel evaluates itself.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "fdma/base/interval.hpp"

namespace fdma {

inline constexpr std::int64_t kUnbounded = std::numeric_limits<std::int64_t>::max();

/// A mask given by a few integers. With pos = q + pos_offset, key k is visible iff all three hold:
///   kv_begin <= k < kv_end
///   cu_seqlens is empty, or cu_seqlens[d] <= pos, k < cu_seqlens[d + 1] for one document d
///   k < prefix, or k <= pos + right and (k >= pos - left or k < sink)
///
/// Example     causal & window(1024), q_len = kv_len = n: left 1023, right 0
/// Shapes      cu_seqlens [num_documents + 1], not decreasing, or empty
/// Invariants  0 <= kv_begin <= kv_end <= kv_len
///             left and right may be negative or kUnbounded
///             prefix and sink lie in [0, kv_len]
/// Cost        72 B, and 8 B a document border
struct ParametricMask {
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  std::int64_t pos_offset = 0;
  std::int64_t left = kUnbounded;
  std::int64_t right = kUnbounded;
  std::int64_t prefix = 0;
  std::int64_t sink = 0;
  std::int64_t kv_begin = 0;
  std::int64_t kv_end = 0;
  std::vector<std::int64_t> cu_seqlens;
  std::int64_t size_bytes() const { return 72 + 8 * static_cast<std::int64_t>(cu_seqlens.size()); }
  friend bool operator==(const ParametricMask&, const ParametricMask&) = default;
};

}  // namespace fdma
