// Rows of cells as bits, and the vector kernels that make and combine them.
//
// Bit k of a row lies in byte k / 8, least significant first: 64-bit words in little-endian memory.
// Operands are byte pointers because a row may start at any byte of a longer bit string.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

namespace fdma::box {

static_assert(std::endian::native == std::endian::little, "bit rows are stored little-endian");

/// Bytes that a kernel may read past the last word of an operand.
inline constexpr int kRowSlackBytes = 64;

/// The kernels, chosen once for this machine's processor. `words` counts 64-bit words. Outputs do
/// not overlap inputs.
struct RowKernels {
  /// out = (a ^ flip_a) & (b ^ flip_b).
  void (*and_rows)(std::uint64_t* out, const std::uint8_t* a, std::uint64_t flip_a,
                   const std::uint8_t* b, std::uint64_t flip_b, std::int64_t words);
  /// out = a ^ b.
  void (*xor_rows)(std::uint64_t* out, const std::uint8_t* a, const std::uint8_t* b,
                   std::int64_t words);
  /// out = a ^ flip, and: every &= out, some |= out.
  void (*store_row)(std::uint64_t* out, const std::uint8_t* a, std::uint64_t flip,
                    std::uint64_t* every, std::uint64_t* some, std::int64_t words);
  /// Bit i = (values[i] <= bound), for 64 * words values.
  void (*at_most_8)(std::uint64_t* out, const std::int8_t* values, std::int8_t bound,
                    std::int64_t words);
  void (*at_most_16)(std::uint64_t* out, const std::int16_t* values, std::int16_t bound,
                     std::int64_t words);
  void (*at_most_32)(std::uint64_t* out, const std::int32_t* values, std::int32_t bound,
                     std::int64_t words);
  void (*at_most_64)(std::uint64_t* out, const std::int64_t* values, std::int64_t bound,
                     std::int64_t words);
  /// Bit i = (values[i] == value).
  void (*equal_8)(std::uint64_t* out, const std::int8_t* values, std::int8_t value,
                  std::int64_t words);
  void (*equal_16)(std::uint64_t* out, const std::int16_t* values, std::int16_t value,
                   std::int64_t words);
  void (*equal_32)(std::uint64_t* out, const std::int32_t* values, std::int32_t value,
                   std::int64_t words);
  void (*equal_64)(std::uint64_t* out, const std::int64_t* values, std::int64_t value,
                   std::int64_t words);
  /// Bit i = (a[i] < b[i]) and (a[i] == b[i]).
  void (*less_pairs)(std::uint64_t* out, const std::int64_t* a, const std::int64_t* b,
                     std::int64_t words);
  void (*equal_pairs)(std::uint64_t* out, const std::int64_t* a, const std::int64_t* b,
                      std::int64_t words);
  /// Bit i = (bytes[i] != 0).
  void (*non_zero_bytes)(std::uint64_t* out, const std::uint8_t* bytes, std::int64_t words);
  const char* name;
};

/// The fastest set that this processor runs.
const RowKernels& row_kernels();

/// Every set that this processor runs, the portable one first; for tests.
std::span<const RowKernels* const> all_row_kernels();

/// True iff some / every bit of [begin, end) is set.
bool any_bit(const std::uint64_t* words, std::int64_t begin, std::int64_t end);
bool all_bits(const std::uint64_t* words, std::int64_t begin, std::int64_t end);

/// Copies `num_bits` bits from bit `begin` of `words` to bit 0 of `out`; the last word of `out` is
/// filled with zeros. Reads at most one word past the end.
void copy_bits(std::uint64_t* out, const std::uint64_t* words, std::int64_t begin,
               std::int64_t num_bits);

/// The low `count` bits of a word, count in [0, 64].
constexpr std::uint64_t low_bits(std::int64_t count) {
  return count >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << count) - 1;
}

}  // namespace fdma::box
