// Arithmetic for cell sums (cell_sum.hpp): the field of integers modulo 2^61 - 1, at two points at
// once.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace fdma {

/// 2^61 - 1, the modulus.
inline constexpr std::uint64_t kFieldPrime = (std::uint64_t{1} << 61) - 1;

/// One residue for each of the two points; both lie in [0, kFieldPrime).
struct Residues {
  std::uint64_t first = 0;
  std::uint64_t second = 0;
  friend bool operator==(const Residues&, const Residues&) = default;
};

/// The points (x, y) at which the polynomials of masks are evaluated. Each is the least primitive
/// root that is not less than one of the first four 64-bit words of the fraction of pi, taken
/// modulo kFieldPrime. No power of a primitive root with an exponent from 1 to kFieldPrime - 2 is
/// 1.
inline constexpr Residues kPointX{0x043f'6a88'85a3'08de, 0x0409'3822'299f'31d9};
inline constexpr Residues kPointY{0x1319'8a2e'0370'734a, 0x082e'fa98'ec4e'6c8f};

/// Any 64-bit number as a residue.
constexpr std::uint64_t reduce(std::uint64_t value) {
  const std::uint64_t folded = (value & kFieldPrime) + (value >> 61);
  return folded >= kFieldPrime ? folded - kFieldPrime : folded;
}

constexpr std::uint64_t multiply(std::uint64_t a, std::uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  const Wide product = static_cast<Wide>(a) * b;
  return reduce((static_cast<std::uint64_t>(product) & kFieldPrime) +
                static_cast<std::uint64_t>(product >> 61));
}

constexpr Residues operator+(const Residues& a, const Residues& b) {
  return {reduce(a.first + b.first), reduce(a.second + b.second)};
}
constexpr Residues operator-(const Residues& a, const Residues& b) {
  return {reduce(a.first + (kFieldPrime - b.first)), reduce(a.second + (kFieldPrime - b.second))};
}
constexpr Residues operator*(const Residues& a, const Residues& b) {
  return {multiply(a.first, b.first), multiply(a.second, b.second)};
}
constexpr Residues& operator+=(Residues& a, const Residues& b) { return a = a + b; }
constexpr Residues& operator-=(Residues& a, const Residues& b) { return a = a - b; }

inline constexpr Residues kResiduesOne{1, 1};

/// base^exponent. Cost: O(log exponent).
constexpr Residues power(Residues base, std::uint64_t exponent) {
  Residues result = kResiduesOne;
  for (; exponent != 0; exponent >>= 1) {
    if ((exponent & 1) != 0) result = result * base;
    base = base * base;
  }
  return result;
}

/// 1 / value, for residues other than 0.
constexpr Residues inverse(const Residues& value) { return power(value, kFieldPrime - 2); }

/// 1 + ratio + .. + ratio^(count - 1), for any ratio; count >= 1. Cost: O(log count), no division.
constexpr Residues geometric_sum(const Residues& ratio, std::uint64_t count) {
  Residues sum = kResiduesOne, factor = ratio;  // of one term; the power that comes next
  for (int bit = std::bit_width(count) - 2; bit >= 0; --bit) {
    sum += sum * factor;
    factor = factor * factor;
    if ((count >> bit & 1) != 0) {
      sum = sum * ratio + kResiduesOne;
      factor = factor * ratio;
    }
  }
  return sum;
}

/// The powers of a point for every exponent below 2^48, byte by byte of the exponent. A cell needs
/// 32 bits; a pattern may be wider than the mask.
using PowerTable = std::array<std::array<Residues, 256>, 6>;
extern const PowerTable kPowersOfX, kPowersOfY;

inline Residues table_power(const PowerTable& table, std::uint64_t exponent) {
  Residues result = table[0][exponent & 255];
  for (std::size_t byte = 1; (exponent >>= 8) != 0; ++byte) {
    result = result * table[byte][exponent & 255];
  }
  return result;
}
/// x^exponent and y^exponent, for exponents in [0, 2^48). Cost: a product for each byte but one.
inline Residues power_of_x(std::int64_t exponent) {
  return table_power(kPowersOfX, static_cast<std::uint64_t>(exponent));
}
inline Residues power_of_y(std::int64_t exponent) {
  return table_power(kPowersOfY, static_cast<std::uint64_t>(exponent));
}

/// For byte i of a word with value b: the sum of y^(8 i + j) over the bits j of b.
using WordTable = std::array<std::array<Residues, 256>, 8>;
extern const WordTable kBitsOfY;

/// The sum of y^j over the bits j of a word.
inline Residues sum_of_bits(std::uint64_t word) {
  Residues sum{};  // eight residues do not exceed 64 bits
  for (std::size_t byte = 0; byte < 8; ++byte) {
    const Residues& part = kBitsOfY[byte][word >> (8 * byte) & 255];
    sum.first += part.first;
    sum.second += part.second;
  }
  return {reduce(sum.first), reduce(sum.second)};
}

/// 1 / (x - 1) and 1 / (y - 1).
extern const Residues kInverseOfX1, kInverseOfY1;

}  // namespace fdma
