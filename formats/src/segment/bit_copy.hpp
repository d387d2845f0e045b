// Moves ranges of bits between rows of bits and bitmaps, whatever their alignment.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

#include "fdma/formats/segment_builder.hpp"

namespace fdma {

/// Writes the low `count` bits of `bits` (the others are 0) at [begin, begin + count) of `words`,
/// which are 0 there; count in [1, 64].
inline void write_bits(std::uint64_t* words, std::int64_t begin, std::uint64_t bits, int count) {
  const std::int64_t word = begin / 64;
  const int shift = static_cast<int>(begin % 64);
  words[word] |= bits << shift;
  if (shift + count > 64) words[word + 1] |= bits >> (64 - shift);
}

/// Copies bits [from, from + count) of `source` to [to, to + count) of `words`, which are 0 there.
inline void copy_bits(std::uint64_t* words, std::int64_t to, const std::uint64_t* source,
                      std::int64_t from, std::int64_t count) {
  if ((to | from) % 64 == 0) {
    const std::int64_t whole = count / 64;
    std::copy_n(source + from / 64, whole, words + to / 64);
    to += whole * 64;
    from += whole * 64;
    count -= whole * 64;
  }
  while (count > 0) {
    const int width = static_cast<int>(std::min<std::int64_t>(count, 64));
    write_bits(words, to, read_bits(source, from, width), width);
    to += width;
    from += width;
    count -= width;
  }
}

/// True iff every bit of [begin, end) is `value`.
inline bool all_bits_are(const std::uint64_t* words, std::int64_t begin, std::int64_t end,
                         bool value) {
  const std::uint64_t flip = value ? ~std::uint64_t{0} : 0;
  while (begin < end) {
    const int width = static_cast<int>(std::min<std::int64_t>(end - begin, 64 - begin % 64));
    const std::uint64_t bits = (words[begin / 64] ^ flip) >> (begin % 64);
    if ((width == 64 ? bits : bits & ((std::uint64_t{1} << width) - 1)) != 0) return false;
    begin += width;
  }
  return true;
}

/// First position in [begin, end) whose bit is `value`, or end.
inline std::int64_t find_bit(const std::uint64_t* words, std::int64_t begin, std::int64_t end,
                             bool value) {
  const std::uint64_t flip = value ? 0 : ~std::uint64_t{0};
  while (begin < end) {
    const std::uint64_t bits = (words[begin / 64] ^ flip) >> (begin % 64);
    if (bits != 0) return std::min(end, begin + std::countr_zero(bits));
    begin += 64 - begin % 64;
  }
  return end;
}

}  // namespace fdma
