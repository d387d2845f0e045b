// Tests the value numbering of tiles: how many numbers masks have, and what must not share one.
#include <gtest/gtest.h>

#include <set>
#include <vector>

#include "boxes/box_fixture.hpp"
#include "boxes/tile_numbers.hpp"
#include "lower/engines.hpp"

namespace fdma::box_test {
namespace {

using box::BoxProgram;
using box::TileNumbers;

// The distinct numbers of the tiles of a program. Whole rows have the numbers of their tiles.
std::set<std::int32_t> numbers_of(const IrProgram& program, BlockShape block) {
  const BoxProgram prepared(program);
  const TileNumbers numbers(prepared, block);
  EXPECT_TRUE(numbers.is_usable());
  TileNumbers::Worker worker(numbers);
  const auto num_cols = static_cast<std::int32_t>(ceil_div(program.kv_len, block.block_kv));
  std::vector<std::int32_t> of_row(static_cast<std::size_t>(num_cols));
  std::set<std::int32_t> seen;
  for (std::int32_t row = 0; row < ceil_div(program.q_len, block.block_q); ++row) {
    worker.begin_row(row);
    worker.number(0, num_cols, of_row.data());
    for (std::int32_t tile = 0; tile < num_cols; ++tile) {
      std::int32_t number = 0;
      worker.number(tile, tile + 1, &number);
      EXPECT_EQ(number, of_row[static_cast<std::size_t>(tile)]) << row << ", " << tile;
      seen.insert(number);
    }
  }
  return seen;
}

TEST(TileNumbers, CausalIsEmptyFullAndOneTile) {
  ProgramBuilder b(256, 256);
  const auto& program = b.finish(b.add(IrOp::less_equal, {b.k(), b.q()}));
  const auto seen = numbers_of(program, {32, 32});
  EXPECT_EQ(seen.size(), 3u);
  EXPECT_EQ(seen.count(TileNumbers::Worker::kEmpty), 1u);
  EXPECT_EQ(seen.count(TileNumbers::Worker::kFull), 1u);
}

TEST(TileNumbers, BitsOfCoordinatesSplit) {
  ProgramBuilder b(512, 512);
  const auto& program =
      b.finish(b.add(IrOp::equal, {b.add(IrOp::bit_and, {b.q(), b.k()}), b.number(0)}));
  EXPECT_EQ(numbers_of(program, {16, 16}).size(), 2u);
  // 48 is no power of two, so the bits of a tile's corner and those inside overlap.
  EXPECT_GT(numbers_of(program, {48, 48}).size(), 2u);
}

// The corner of a tile row lies inside the keys of a tile: a number for each of its places there.
TEST(TileNumbers, BitsOfCoordinatesSplitInWideTiles) {
  ProgramBuilder b(4096, 4096);
  const auto& program =
      b.finish(b.add(IrOp::equal, {b.add(IrOp::bit_and, {b.q(), b.k()}), b.number(0)}));
  EXPECT_EQ(numbers_of(program, {16, 1024}).size(), 1u + 64u);
}

TEST(TileNumbers, TablesHaveANumberForEachSetOfEntries) {
  ProgramBuilder b(256, 256);
  std::vector<std::int64_t> entries;
  for (int i = 0; i < 256; ++i) entries.push_back(i * 7919 / 13 % 2);
  const auto table = b.table("t", {16, 16}, entries, DType::boolean);
  const auto& program = b.finish(b.add(IrOp::test,
                                       {b.add(IrOp::floor_div, {b.q(), b.number(16)}),
                                        b.add(IrOp::floor_div, {b.k(), b.number(16)})},
                                       table));
  const auto seen = numbers_of(program, {32, 32});
  EXPECT_LE(seen.size(), 16u);
  EXPECT_EQ(seen.count(TileNumbers::Worker::kNone), 0u);
  // An index that may leave the table has no number there.
  const auto small = b.table("s", {15, 16}, std::vector<std::int64_t>(240, 1), DType::boolean);
  const auto& beyond = b.finish(b.add(IrOp::test,
                                      {b.add(IrOp::floor_div, {b.q(), b.number(16)}),
                                       b.add(IrOp::floor_div, {b.k(), b.number(16)})},
                                      small));
  EXPECT_EQ(numbers_of(beyond, {32, 32}).count(TileNumbers::Worker::kNone), 1u);
}

// Over a tile, q and k have the same values; a condition on one is not that on the other.
TEST(TileNumbers, QueriesAndKeysDiffer) {
  ProgramBuilder b(64, 64);
  const IrId is_causal = b.add(IrOp::less_equal, {b.k(), b.q()});
  const IrId chosen = b.add(IrOp::where, {is_causal, b.q(), b.k()});
  const auto& program = b.finish(b.add(IrOp::less_equal, {b.number(42), chosen}));
  WorkMeter meter;
  const auto mask = lower_boxes(program, {16, 16}, 1, meter);
  ASSERT_TRUE(mask);
  const auto cells = cells_of(*mask);
  for (std::int64_t q = 0; q < 64; ++q) {
    for (std::int64_t k = 0; k < 64; ++k) {
      ASSERT_EQ(cells[static_cast<std::size_t>(q * 64 + k)] != 0, 42 <= (k <= q ? q : k));
    }
  }
}

TEST(TileNumbers, LoopsHaveNone) {
  ProgramBuilder b(64, 64);
  const IrId loop = b.add(IrOp::loop, {}, 1);
  const IrId body = b.add(IrOp::less, {b.add(IrOp::mul, {loop, b.q()}), b.k()});
  const auto& program = b.finish(b.add(IrOp::any_of, {b.number(1 << 20), body}, 1));
  const BoxProgram prepared(program);
  EXPECT_FALSE(TileNumbers(prepared, {16, 16}).is_usable());
}

}  // namespace
}  // namespace fdma::box_test
