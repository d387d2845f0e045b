// Compares the mask fragments of a band, of all lanes together, with the intervals of its rows.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <random>
#include <string>

#include "cuda/band_fragments.hpp"

namespace fdma {
namespace {

constexpr int kRows = 128, kWarpgroup = 128;

// Returns two words for each of 256 threads, as kernels store them.
std::array<std::uint32_t, 512> words_of(const ClosedFormBand& band, int first_column) {
  std::array<std::uint32_t, 512> all{};
  for (int lane = 0; lane < 32; ++lane) {
    const gpu::BandFragments band_fragments(band, first_column, lane);
    for (int piece = 0; piece < gpu::BandFragments::kPieces; ++piece) {
      std::uint32_t words[4];
      band_fragments.make(piece, words);
      std::copy(words, words + 4, all.begin() + 4 * (lane + 32 * piece));
    }
  }
  return all;
}

// Says the first cell that is wrong; empty if none is.
std::string cell_error(const ClosedFormBand& band, int first_column) {
  const auto words = words_of(band, first_column);
  for (int thread = 0; thread < 2 * kWarpgroup; ++thread) {
    for (int word = 0; word < 2; ++word) {
      for (int bit = 0; bit < 32; ++bit) {
        const gpu::FragmentCell cell = gpu::mask_cell(thread % kWarpgroup, word, bit);
        const int row = thread / kWarpgroup * 64 + cell.row;
        const ClosedFormRange keys = band[row];
        const int column = first_column + cell.col;
        const bool is_set = (words[static_cast<std::size_t>(2 * thread + word)] >> bit & 1) != 0;
        if (is_set == (keys.begin <= column && column < keys.end)) continue;
        return fmt::format(
            "row {} column {} of {}: band [{}, {}) first [{}, {}) last [{}, {}) from row {}", row,
            cell.col, first_column, band.begin, band.end, band.first.begin, band.first.end,
            band.last.begin, band.last.end, band.last_row);
      }
    }
  }
  return {};
}

TEST(BandFragments, AreTheIntervalsOfRandomBands) {
  std::mt19937 random(1);
  const auto pick = [&](int low, int high) {
    return std::uniform_int_distribution<int>(low, high)(random);
  };
  for (int trial = 0; trial < 4000; ++trial) {
    const int first_column = 128 * pick(0, 3);
    const auto bound = [&] { return first_column + pick(-150, 300); };
    ClosedFormBand band{};
    band.is_valid = 1;
    band.begin = pick(0, 2) == 0 ? -kClosedFormUnbounded : first_column + pick(-260, 150);
    band.end = pick(0, 2) == 0 ? kClosedFormUnbounded : first_column + pick(-150, 150);
    band.first = {pick(0, 2) == 0 ? 0 : bound(), pick(0, 2) == 0 ? 600 : bound()};
    band.last = pick(0, 1) == 0 ? band.first : ClosedFormRange{bound(), bound()};
    band.last_row = pick(0, 2) == 0 ? kClosedFormUnbounded : pick(-3, kRows + 3);
    ASSERT_EQ(cell_error(band, first_column), "") << trial;
  }
}

// The test takes every edge of a causal tile and of a document, one by one.
TEST(BandFragments, CutAtEveryColumn) {
  for (int at = -130; at <= 130; ++at) {
    ASSERT_EQ(cell_error({-kClosedFormUnbounded, 128 + at, {0, 999}, {0, 999}, 999, 1}, 128), "");
    ASSERT_EQ(cell_error({128 + at, kClosedFormUnbounded, {0, 999}, {0, 999}, 999, 1}, 128), "");
    ASSERT_EQ(cell_error({-999, 999, {128 + at, 300}, {0, 128 - at}, at, 1}, 128), "");
  }
}

// Positions and distances lie at the limits of closed forms, and nothing overflows.
TEST(BandFragments, HoldExtremeValues) {
  constexpr int kFar = kClosedFormUnbounded + kClosedFormUnbounded / 2 + kClosedFormMaxLength;
  for (const int begin : {-kFar, 0, kFar}) {
    for (const int end : {-kFar, 100, kFar}) {
      for (const int first_column : {0, kClosedFormMaxLength / 128 * 128}) {
        ASSERT_EQ(cell_error({begin, end, {0, kFar}, {-kFar, kFar}, 64, 1}, first_column), "");
      }
    }
  }
}

}  // namespace
}  // namespace fdma
