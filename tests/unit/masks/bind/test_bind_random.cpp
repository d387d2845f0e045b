// Compares bound programs with the oracle, cell by cell, on random masks.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "fdma/masks/mask_ir.hpp"
#include "ir/box_ranges.hpp"
#include "ir/ir_interpreter.hpp"
#include "ir/simplify.hpp"
#include "oracle.hpp"
#include "random_expr.hpp"

namespace fdma {
namespace {

// Checks one (batch, head) pair: the cells, that the program is canonical, and that its ranges hold
// at every cell.
void check_program(const IrProgram& program, const std::vector<std::uint8_t>& expected) {
  ir_test::IrInterpreter interpreter(program);
  ASSERT_EQ(interpreter.cells(), expected) << dump(program);
  EXPECT_EQ(dump(simplify(program)), dump(program)) << "not idempotent";
  if (expected.empty()) return;
  ir_test::BoxRanges ranges(program);
  const NodeRange root = ranges.root({0, program.q_len, 0, program.kv_len});
  bool has_undefined = false;
  for (const std::uint8_t cell : expected) {
    has_undefined |= cell == reference::kUndefinedCell;
    if (cell == reference::kAttend) {
      EXPECT_TRUE(root.can_be_true()) << dump(program);
    }
    if (cell == reference::kMasked) {
      EXPECT_TRUE(root.can_be_false()) << dump(program);
    }
  }
  if (has_undefined) {
    EXPECT_TRUE(root.may_be_undefined) << dump(program);
  }
}

void check_mask(std::uint64_t seed, const reference::RandomMaskOptions& options) {
  const reference::RandomMask mask = reference::make_random_mask(seed, options);
  Tables tables = mask.tables.views();
  const std::vector<std::string> names = table_names(mask.expr);
  std::erase_if(tables, [&](const auto& entry) {  // drawn for a part that was dropped
    return std::find(names.begin(), names.end(), entry.first) == names.end();
  });
  const Result<MaskIr> ir = fdma::bind(mask.expr, tables, mask.shape);
  for (std::int64_t b = 0; b < mask.shape.num_batches; ++b) {
    for (std::int64_t h = 0; h < mask.shape.num_heads; ++h) {
      SCOPED_TRACE("seed " + std::to_string(seed) + ", b " + std::to_string(b) + ", h " +
                   std::to_string(h) + "\n" + mask.describe());
      const auto expected = reference::oracle_cells(mask.expr, tables, mask.shape, b, h);
      if (!ir) {
        const bool is_last = b + 1 == mask.shape.num_batches && h + 1 == mask.shape.num_heads;
        if (expected && !is_last) continue;  // the error of another element or head
        ASSERT_FALSE(expected) << ir.error().message;
        EXPECT_EQ(ir.error().code, expected.error().code) << ir.error().message << "\n"
                                                          << expected.error().message;
        return;
      }
      ASSERT_TRUE(expected) << expected.error().message;
      const auto pair = static_cast<std::size_t>(b * mask.shape.num_heads + h);
      check_program(ir->programs[static_cast<std::size_t>(ir->program_of[pair])], *expected);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

constexpr std::uint64_t kMasks = 1500;

TEST(BindRandom, NamesAgreeWithTheOracle) {
  reference::RandomMaskOptions options;
  options.max_depth = 1;
  options.allow_at = false;
  for (std::uint64_t seed = 0; seed < kMasks && !HasFailure(); ++seed) check_mask(seed, options);
}

TEST(BindRandom, ExpressionsAgreeWithTheOracle) {
  reference::RandomMaskOptions options;
  options.max_len = 24;
  for (std::uint64_t seed = 0; seed < kMasks && !HasFailure(); ++seed) check_mask(seed, options);
}

TEST(BindRandom, UndefinedCellsAgreeWithTheOracle) {
  reference::RandomMaskOptions options;
  options.max_len = 12;
  options.allow_undefined = true;
  for (std::uint64_t seed = 0; seed < kMasks && !HasFailure(); ++seed) check_mask(seed, options);
}

TEST(BindRandom, DeepExpressionsAgreeWithTheOracle) {
  reference::RandomMaskOptions options;
  options.max_len = 8;
  options.max_depth = 7;
  options.allow_undefined = true;
  for (std::uint64_t seed = 0; seed < kMasks / 5 && !HasFailure(); ++seed)
    check_mask(seed, options);
}

}  // namespace
}  // namespace fdma
