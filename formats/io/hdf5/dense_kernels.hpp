// Vector code for dense masks: packs values to bits, merges rows of bits, undoes the byte shuffle,
// computes Fletcher's checksum.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fdma::io {

/// The meaning of a value, read as a little-endian number of `size_bytes`.
///
/// Example     int16, big-endian: size_bytes 2, one 0x0100
///             float16, drop_below -32752: first 0xf7ff, last 0xfc00 (patterns of negative values
///             grow with the magnitude)
struct ValueRule {
  int size_bytes = 1;        ///< 1, 2, 4 or 8
  bool is_floating = false;  ///< +-0 keeps, patterns [first, last] drop; else 0 drops, `one` keeps
  bool is_swapped = false;   ///< floating: the bytes are big-endian
  bool is_inverted = false;  ///< integers: 0 keeps, `one` drops
  std::uint64_t one = 1;
  std::uint64_t first = 0;
  std::uint64_t last = 0;
};

/// Rows of values, aligned for their size, and the place for their bits.
struct PackBox {
  const std::byte* values = nullptr;
  std::int64_t value_stride = 0;  ///< bytes from row to row; 0 repeats one row
  std::int64_t num_rows = 0;
  std::int64_t num_cols = 0;
  std::uint64_t* bits = nullptr;
  std::int64_t bit_stride = 0;  ///< words from row to row
  std::int64_t bit_begin = 0;   ///< first bit of a row, from `bits` on
  bool ends_row = false;        ///< nothing else is written after the last bit in its word
};

/// Writes the bit of every value. Returns true iff every value is keep or drop. Words whose bits
/// all belong to the box (or the last ones of the row, see ends_row) are stored. The other words,
/// which several threads may share, must be 0 before the first box that touches them; they take its
/// bits atomically.
bool pack_rows(const ValueRule& rule, const PackBox& box);

/// The result of pack_rows for one value: 1 keeps, 0 drops, -1 is neither. The same for any target.
int judge_value(const ValueRule& rule, const std::byte* value);

/// any |= each row, all &= each row.
void merge_rows(const std::uint64_t* rows, std::int64_t stride, std::int64_t num_rows,
                std::int64_t num_words, std::uint64_t* any, std::uint64_t* all);

/// Undoes HDF5's shuffle: byte b of element i comes from planes[b * count + i]. Bytes after the
/// last whole element keep their places.
void unshuffle(const std::byte* planes, std::int64_t num_bytes, std::int64_t element_bytes,
               std::byte* values);

/// Fletcher's checksum as HDF5 computes it: over big-endian 16-bit words, an odd last byte padded.
std::uint32_t fletcher32(const std::byte* bytes, std::int64_t count);

}  // namespace fdma::io
