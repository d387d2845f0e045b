#include "stored/cell_field.hpp"

namespace fdma {
namespace {

constexpr PowerTable powers_of(Residues point) {
  PowerTable table{};
  for (auto& level : table) {
    level[0] = kResiduesOne;
    for (std::size_t i = 1; i < level.size(); ++i) level[i] = level[i - 1] * point;
    point = level.back() * point;
  }
  return table;
}

constexpr WordTable bits_of(const Residues& point) {
  WordTable table{};
  Residues bit = kResiduesOne;
  for (auto& byte : table) {
    for (std::size_t j = 1; j < byte.size(); j *= 2, bit = bit * point) {
      for (std::size_t i = 0; i < j; ++i) byte[j + i] = byte[i] + bit;
    }
  }
  return table;
}

}  // namespace

constexpr PowerTable kPowersOfX = powers_of(kPointX);
constexpr PowerTable kPowersOfY = powers_of(kPointY);
constexpr WordTable kBitsOfY = bits_of(kPointY);
constexpr Residues kInverseOfX1 = inverse(kPointX - kResiduesOne);
constexpr Residues kInverseOfY1 = inverse(kPointY - kResiduesOne);

}  // namespace fdma
