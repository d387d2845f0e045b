// Compares the formulas of the layouts of sm_90a with their definitions. tests/gpu compares them
// with the hardware.
#include <gtest/gtest.h>

#include <cstdint>
#include <set>
#include <utility>
#include <vector>

#include "cuda/mask_bits.hpp"
#include "cuda/work_tile.hpp"
#include "sm90/shared/fragment.hpp"

namespace fdma::sm90 {
namespace {

TEST(AccumulatorCell, EveryCellOfATileIsHeldOnce) {
  for (const int columns : {64, 80, 128, 160, 176, 256}) {
    std::set<std::pair<int, int>> cells;
    for (int thread = 0; thread < kWarpgroupThreads; ++thread) {
      for (int reg = 0; reg < columns / 2; ++reg) {
        const FragmentCell cell = accumulator_cell(thread, reg);
        EXPECT_TRUE(cell.row >= 0 && cell.row < 64 && cell.col >= 0 && cell.col < columns);
        EXPECT_EQ(cell.row / 16, thread / 32) << "a warp holds 16 rows";
        cells.emplace(cell.row, cell.col);
      }
    }
    EXPECT_EQ(cells.size(), std::size_t(64) * static_cast<std::size_t>(columns));
  }
}

TEST(AccumulatorCell, IsTheFragmentOfTheManual) {
  // PTX ISA, wgmma register fragments: row = warp * 16 + lane / 4 (+ 8), col = 8 i + 2 (lane % 4)
  // (+ 1).
  const FragmentCell first = accumulator_cell(0, 0), second = accumulator_cell(0, 1);
  EXPECT_EQ(first.row, 0);
  EXPECT_EQ(first.col, 0);
  EXPECT_EQ(second.col, 1);
  EXPECT_EQ(accumulator_cell(0, 2).row, 8);
  EXPECT_EQ(accumulator_cell(5, 4).row, 1);
  EXPECT_EQ(accumulator_cell(5, 4).col, 10);
  EXPECT_EQ(accumulator_cell(127, 63).row, 63);
  EXPECT_EQ(accumulator_cell(127, 63).col, 127);
}

TEST(SwizzledOffset, IsAPermutationOfTheTile) {
  for (const int rows : {64, 128, 160}) {
    for (const int cols : {64, 128, 256}) {
      std::vector<bool> seen(static_cast<std::size_t>(rows * cols), false);
      for (int row = 0; row < rows; ++row) {
        for (int col = 0; col < cols; ++col) {
          const std::uint32_t offset = swizzled_offset(row, col, rows);
          ASSERT_EQ(offset % 2, 0u);
          ASSERT_LT(offset / 2, seen.size());
          ASSERT_FALSE(seen[offset / 2]);
          seen[offset / 2] = true;
        }
      }
    }
  }
}

TEST(SwizzledOffset, EightRowsOfAColumnChunkMeetNoBankTwice) {
  for (int col = 0; col < 64; col += 8) {
    std::set<std::uint32_t> banks;
    for (int row = 8; row < 16; ++row) banks.insert(swizzled_offset(row, col, 64) % 128 / 16);
    EXPECT_EQ(banks.size(), 8u);
  }
}

TEST(MatrixDescriptor, PutsEachFieldInItsPlace) {
  const std::uint64_t descriptor = matrix_descriptor(0x12400, 8192, 1024);
  EXPECT_EQ(descriptor & 0x3FFF, 0x12400u >> 4);
  EXPECT_EQ(descriptor >> 16 & 0x3FFF, 8192u >> 4);
  EXPECT_EQ(descriptor >> 32 & 0x3FFF, 1024u >> 4);
  EXPECT_EQ(descriptor >> 62, 1u) << "128-byte swizzle";
  // An advance never carries into the next field.
  EXPECT_EQ(matrix_descriptor(1024, 0, 1024) + k_major_advance(5, 64),
            matrix_descriptor(1024 + 64 * 128 + 32, 0, 1024));
  EXPECT_EQ(matrix_descriptor(1024, 0, 1024) + mn_major_advance(3),
            matrix_descriptor(1024 + 3 * 2048, 0, 1024));
}

TEST(MaskCell, CoversTheHalfTileOnceInTheOrderOfTheAccumulator) {
  std::set<std::pair<int, int>> cells;
  for (int thread = 0; thread < kWarpgroupThreads; ++thread) {
    for (int word = 0; word < 2; ++word) {
      for (int bit = 0; bit < 32; ++bit) {
        const FragmentCell cell = mask_cell(thread, word, bit);
        EXPECT_EQ(cell.row, thread / 32 * 16 + thread % 32 / 4 + 8 * word);
        EXPECT_EQ(cell.col, bit / 2 * 8 + thread % 4 * 2 + bit % 2);
        cells.emplace(cell.row, cell.col);
      }
    }
  }
  EXPECT_EQ(cells.size(), 64u * 128u);
}

TEST(ColumnsBelow, KeepsTheColumnsBeforeABound) {
  for (int lane = 0; lane < 4; ++lane) {
    for (int bound = -200; bound < 400; ++bound) {
      std::uint32_t expected = 0;
      for (int bit = 0; bit < 32; ++bit) {
        const int col = mask_cell(lane, 0, bit).col;
        if (col < bound) expected |= std::uint32_t{1} << bit;
      }
      ASSERT_EQ(columns_below(bound - 2 * lane), expected) << "lane " << lane << " bound " << bound;
    }
  }
}

}  // namespace
}  // namespace fdma::sm90
