// A bit string in which a row that begins at any bit can be read at a byte address.
#pragma once

#include <bit>
#include <cstdint>
#include <span>
#include <vector>

#include "boxes/row_bits.hpp"

namespace fdma::box {

/// Eight copies of a bit string, shifted by 0..7 bits, and running counts of its ones.
///
/// Cost        one byte and a half per bit
class ShiftedBits {
 public:
  ShiftedBits() = default;
  /// Bits [0, length) of `words`, which is zero past them and one word longer than needed.
  ShiftedBits(const std::vector<std::uint64_t>& words, std::int64_t length)
      : stride_((length + 63) / 64 + 1 + kRowSlackBytes / 8) {
    copies_.resize(static_cast<std::size_t>(8 * stride_));
    const std::int64_t num_words = (length + 63) / 64;
    for (int shift = 0; shift < 8; ++shift) {
      std::uint64_t* out = copies_.data() + shift * stride_;
      for (std::int64_t w = 0; w < num_words; ++w) {
        const auto at = static_cast<std::size_t>(w);
        out[w] = words[at] >> shift;
        if (shift > 0) out[w] |= words[at + 1] << (64 - shift);
      }
    }
    ones_before_.reserve(static_cast<std::size_t>(num_words) + 2);
    std::int64_t ones = 0;
    for (std::int64_t w = 0; w <= num_words; ++w) {
      ones_before_.push_back(ones);
      ones += std::popcount(words[static_cast<std::size_t>(w)]);
    }
  }
  bool empty() const { return copies_.empty(); }
  /// The string from bit `begin` on, readable to kRowSlackBytes past its end.
  const std::uint8_t* from(std::int64_t begin) const {
    return reinterpret_cast<const std::uint8_t*>(copies_.data() + (begin % 8) * stride_) +
           begin / 8;
  }
  /// Ones in [begin, end).
  std::int64_t count(std::int64_t begin, std::int64_t end) const {
    return ones_before(end) - ones_before(begin);
  }

 private:
  std::int64_t ones_before(std::int64_t at) const {
    return ones_before_[static_cast<std::size_t>(at / 64)] +
           std::popcount(copies_[static_cast<std::size_t>(at / 64)] & low_bits(at % 64));
  }
  std::int64_t stride_ = 0;
  std::vector<std::uint64_t> copies_;
  std::vector<std::int64_t> ones_before_;
};

}  // namespace fdma::box
