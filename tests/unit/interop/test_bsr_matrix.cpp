// Tests block sparse rows. Any blocks are exact both ways, and the error of every kind of damage
// names it.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>

#include "cell_oracle.hpp"
#include "fdma/formats/interop/bsr_matrix.hpp"
#include "fdma/formats/validate.hpp"
#include "interop_masks.hpp"

namespace fdma {
namespace {

using testing::Cells;
using testing::compiled;
using testing::pick;

// Returns a matrix of these cells. Some of its blocks have no true cells, columns are in any order,
// indices count from 0 or 1, and blocks are stored by rows or columns.
BsrMatrix matrix_of(std::mt19937& rng, const Cells& cells) {
  BsrMatrix matrix;
  matrix.q_len = cells.q_len;
  matrix.kv_len = cells.kv_len;
  matrix.block_q = pick(rng, 1, 40);
  matrix.block_kv = pick(rng, 1, 40);
  matrix.index_base = pick(rng, 0, 1);
  matrix.block_order = pick(rng, 0, 1) == 0 ? BsrBlockOrder::row : BsrBlockOrder::column;
  matrix.indptr = {matrix.index_base};
  for (std::int64_t row = 0; row * matrix.block_q < cells.q_len; ++row) {
    std::vector<std::int64_t> cols(
        static_cast<std::size_t>(ceil_div(cells.kv_len, matrix.block_kv)));
    for (std::size_t c = 0; c < cols.size(); ++c) cols[c] = static_cast<std::int64_t>(c);
    std::shuffle(cols.begin(), cols.end(), rng);
    for (const std::int64_t col : cols) {
      std::vector<std::uint8_t> data;
      for (std::int64_t i = 0; i < matrix.block_q * matrix.block_kv; ++i) {
        const bool is_row_major = matrix.block_order == BsrBlockOrder::row;
        const std::int64_t r = is_row_major ? i / matrix.block_kv : i % matrix.block_q;
        const std::int64_t c = is_row_major ? i % matrix.block_kv : i / matrix.block_q;
        const std::int64_t q = row * matrix.block_q + r, k = col * matrix.block_kv + c;
        data.push_back(q < cells.q_len && k < cells.kv_len && cells.get(q, k) ? 1 : 0);
      }
      const bool is_empty = std::find(data.begin(), data.end(), 1) == data.end();
      if (is_empty && pick(rng, 0, 3) != 0) continue;
      matrix.indices.push_back(col + matrix.index_base);
      matrix.data.insert(matrix.data.end(), data.begin(), data.end());
    }
    matrix.indptr.push_back(matrix.index_base + static_cast<std::int64_t>(matrix.indices.size()));
  }
  return matrix;
}

TEST(BlockMaskFromBsr, TakesBlocksOfAnySides) {
  EXPECT_TRUE(rc::check("cells", [](std::uint32_t seed) {
    std::mt19937 rng(seed);
    const Cells cells = testing::random_cells(rng, pick(rng, 1, 150), pick(rng, 1, 150));
    const auto mask = block_mask_from_bsr(matrix_of(rng, cells), testing::random_block(rng));
    ASSERT_TRUE(mask) << mask.error().message;
    ASSERT_TRUE(validate(*mask, ValidationLevel::canonical));
    ASSERT_EQ(testing::cells_of(*mask, 0), cells);
    BsrExportOptions options;
    options.block = testing::random_block(rng);
    const auto exported = bsr_from_block_mask(*mask, options);
    ASSERT_TRUE(exported) << exported.error().message;
    const auto back = block_mask_from_bsr(*exported, testing::random_block(rng));
    ASSERT_TRUE(back) << back.error().message;
    ASSERT_TRUE(equal_cells(*mask, *back));
    ASSERT_EQ(*bsr_from_block_mask(*back, options), *exported);
    RC_ASSERT(!::testing::Test::HasFailure());
  }));
}

TEST(BsrFromBlockMask, RoundsTripTheMaskSuite) {
  for (const auto& [name, mask] : testing::compiled_suite(1024)) {
    const auto matrix = bsr_from_block_mask(mask);
    ASSERT_TRUE(matrix) << name;
    EXPECT_TRUE(equal_cells(mask, *block_mask_from_bsr(*matrix))) << name;
  }
}

TEST(BlockMaskFromBsr, GivesTheMaskOfItsExample) {
  const BsrMatrix matrix{4, 4, 2, 2, {0, 1, 3}, {0, 0, 1}, {1, 0, 1, 1, 1, 1, 1, 1, 1, 0, 1, 1}};
  EXPECT_TRUE(equal_cells(*block_mask_from_bsr(matrix), compiled("causal", 4, 4)));
}

TEST(BlockMaskFromBsr, TakesTheConventionsOfCusparse) {
  BsrMatrix matrix{4, 4, 2, 2, {1, 2, 4}, {1, 2, 1}, {1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1}};
  matrix.index_base = 1;
  matrix.block_order = BsrBlockOrder::column;
  EXPECT_TRUE(equal_cells(*block_mask_from_bsr(matrix), compiled("causal", 4, 4)));
}

TEST(BsrFromBlockMask, RejectsWhatAMatrixCannotHold) {
  EXPECT_EQ(bsr_from_block_mask(compiled("causal", 40, 40, {}, 2)).error().code,
            ErrorCode::unsupported);
  BsrExportOptions options;
  options.max_bytes = 100;
  EXPECT_EQ(bsr_from_block_mask(compiled("causal", 40, 40), options).error().code,
            ErrorCode::out_of_memory);
}

TEST(BlockMaskFromBsr, RejectsDamagedArrays) {
  const BsrMatrix good{3, 4, 2, 2, {0, 1, 3}, {0, 0, 1}, {1, 0, 1, 1, 1, 1, 0, 0, 1, 0, 0, 0}};
  ASSERT_TRUE(block_mask_from_bsr(good));
  const auto expect = [&](const char* message, void (*damage)(BsrMatrix&)) {
    BsrMatrix matrix = good;
    damage(matrix);
    const auto result = block_mask_from_bsr(matrix);
    ASSERT_FALSE(result) << message;
    EXPECT_NE(result.error().message.find(message), std::string::npos) << result.error().message;
  };
  expect("indptr: 2 entries", [](BsrMatrix& m) { m.indptr.pop_back(); });
  expect("indptr: from 0 to 2", [](BsrMatrix& m) { m.indptr[2] = 2; });
  expect("indptr[2]: 3 after 4", [](BsrMatrix& m) { m.indptr[1] = 4; });
  expect("indptr[1]: -1 after 0", [](BsrMatrix& m) { m.indptr[1] = -1; });
  expect("indices: 2 in block row 1", [](BsrMatrix& m) { m.indices[1] = 2; });
  expect("indices: -1 in block row 0", [](BsrMatrix& m) { m.indices[0] = -1; });
  expect("indices: 1 twice", [](BsrMatrix& m) { m.indices[1] = 1; });
  expect("data: element 0 is 2", [](BsrMatrix& m) { m.data[0] = 2; });
  expect("data: 11 entries", [](BsrMatrix& m) { m.data.pop_back(); });
  expect("data: cell (3, 1) is 1", [](BsrMatrix& m) { m.data[7] = 1; });
  expect("data: cell (0, 1) is 1", [](BsrMatrix& m) {
    m.kv_len = 1;
    m.block_kv = 4;
    m.indices = {0, 0};
    m.indptr = {0, 1, 2};
    m.data = {0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
  });
  expect("indptr: from 1 to 4, expected 0 to 3, the entries of indices (is it counted from",
         [](BsrMatrix& m) {
           m.indptr = {1, 2, 4};
         });
  expect("indptr: from 0 to 3, expected 1 to 4", [](BsrMatrix& m) { m.index_base = 1; });
  expect("indices: 0 in block row 0, expected 1 to 2", [](BsrMatrix& m) {
    m.index_base = 1;
    m.indptr = {1, 2, 4};
  });
  expect("index_base: 2", [](BsrMatrix& m) { m.index_base = 2; });
  expect("block_order: 3", [](BsrMatrix& m) { m.block_order = static_cast<BsrBlockOrder>(3); });
  expect("data: blocks of 0 x 2", [](BsrMatrix& m) { m.block_q = 0; });
  expect("kv_len: 2147483648", [](BsrMatrix& m) { m.kv_len = kMaxLength + 1; });
}

}  // namespace
}  // namespace fdma
