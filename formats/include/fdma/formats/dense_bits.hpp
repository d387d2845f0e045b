// DenseBits: one bit per cell.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/base/interval.hpp"

namespace fdma {

/// A dense mask of one bit per cell: exchange, oracle, small masks.
///
/// Shapes      words [q_len, ceil(kv_len / 64)] uint64, bit k % 64 of word k / 64 is key k
/// Invariants  bits past kv_len are 0
/// Cost        q_len * ceil(kv_len / 64) * 8 B
struct DenseBits {
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  std::vector<std::uint64_t> words;

  std::int64_t words_per_row() const { return ceil_div(kv_len, 64); }
  bool at(std::int64_t q, std::int64_t k) const {
    return (words[static_cast<std::size_t>(q * words_per_row() + k / 64)] >> (k % 64)) & 1;
  }
  std::int64_t size_bytes() const { return static_cast<std::int64_t>(words.size()) * 8; }
  friend bool operator==(const DenseBits&, const DenseBits&) = default;
};

}  // namespace fdma
