// Tests that ranges over boxes hold for every cell, and are exact for single cells.
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "fdma/masks/parse.hpp"
#include "ir/box_ranges.hpp"
#include "ir/ir_interpreter.hpp"
#include "ir/range.hpp"
#include "random_expr.hpp"
#include "table_set.hpp"

namespace fdma {
namespace {

IrProgram program_of(const std::string& text, std::int64_t q_len, std::int64_t kv_len,
                     const reference::TableSet& tables = {}) {
  const Result<MaskExpr> expr = parse_mask(text);
  EXPECT_TRUE(expr) << expr.error().message;
  MaskShape shape;
  shape.q_lens = {q_len};
  shape.kv_lens = {kv_len};
  const Result<MaskIr> ir = fdma::bind(*expr, tables.views(), shape);
  EXPECT_TRUE(ir) << ir.error().message;
  return ir->programs[0];
}

TEST(Ranges, DecidesBoxes) {
  const IrProgram causal = program_of("causal", 100, 100);
  ir_test::BoxRanges ranges(causal);
  EXPECT_EQ(ranges.root({50, 60, 0, 51}), (NodeRange{1, 1, false}));
  EXPECT_EQ(ranges.root({50, 60, 60, 70}), (NodeRange{0, 0, false}));
  const NodeRange mixed = ranges.root({50, 60, 50, 60});
  EXPECT_TRUE(mixed.can_be_true() && mixed.can_be_false() && !mixed.may_be_undefined);
}

TEST(Ranges, GuardsMakeLookUpsHarmless) {
  reference::TableSet tables;
  tables.add("t", DType::int32, {50}, std::vector<std::int64_t>(50, 1));
  // There are 80 rows and 50 keys, so pos is negative in the first 30 rows.
  reference::TableSet ids;
  std::vector<std::int64_t> values(50);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i * i % 7);
  ids.add("t", DType::int32, {50}, values);
  const IrProgram program = program_of("documents(ids=@t)", 80, 50, ids);
  ir_test::BoxRanges ranges(program);
  EXPECT_TRUE(ranges.root({0, 80, 0, 50}).may_be_undefined);
  EXPECT_EQ(ranges.root({0, 30, 0, 50}), (NodeRange{0, 0, false}));
  EXPECT_FALSE(ranges.root({30, 80, 0, 50}).may_be_undefined);
}

// 64 .. 95 and 96 .. 127 share bit 64; 64 .. 95 and 128 .. 159 share no bit above the free ones.
TEST(Ranges, BitOperatorsKeepTheBitsAboveTheFreeOnes) {
  const NodeRange sides[2] = {{64, 95, false}, {96, 127, false}};
  const NodeRange others[2] = {{64, 95, false}, {128, 159, false}};
  const auto range = [](IrOp op, const NodeRange* operands) {
    IrNode node{op};
    node.num_children = 2;
    return range_of(node, operands);
  };
  EXPECT_EQ(range(IrOp::bit_and, sides), (NodeRange{64, 95, false}));
  EXPECT_EQ(range(IrOp::bit_or, sides), (NodeRange{96, 127, false}));
  EXPECT_EQ(range(IrOp::bit_xor, sides), (NodeRange{32, 63, false}));
  EXPECT_EQ(range(IrOp::bit_and, others), (NodeRange{0, 31, false}));
  EXPECT_EQ(range(IrOp::bit_or, others), (NodeRange{192, 223, false}));
}

TEST(Ranges, ExtremesOverflow) {
  const std::int64_t largest = std::numeric_limits<std::int64_t>::max();
  IrNode node{IrOp::add};
  node.num_children = 2;
  const NodeRange full[2] = {{0, largest, false}, {1, 1, false}};
  const NodeRange sum = range_of(node, full);
  EXPECT_EQ(sum, (NodeRange{1, largest, true}));
  node.op = IrOp::abs;
  const NodeRange least = {std::numeric_limits<std::int64_t>::min(), -5, false};
  EXPECT_EQ(range_of(node, &least), (NodeRange{5, largest, true}));
  node.op = IrOp::floor_div;
  const NodeRange by_zero[2] = {{3, 4, false}, {-2, 0, false}};
  const NodeRange none = range_of(node, by_zero);
  EXPECT_FALSE(none.has_values());
  EXPECT_TRUE(none.may_be_undefined);
}

// A few entries are read one by one, more are bounded by the whole table.
TEST(Ranges, ReadFewEntriesOfATable) {
  reference::TableSet tables;
  std::vector<std::int64_t> values(1000);
  for (std::size_t i = 0; i < values.size(); ++i) values[i] = static_cast<std::int64_t>(i % 100);
  tables.add("t", DType::int32, {1000}, values);
  const IrProgram program = program_of("@t[k] < 5", 4, 1000, tables);
  const ir_test::BoxRanges ranges(program);
  EXPECT_EQ(ranges.root({0, 4, 100, 105}), (NodeRange{1, 1, false}));
  EXPECT_EQ(ranges.root({0, 4, 105, 169}), (NodeRange{0, 0, false}));
  EXPECT_EQ(ranges.root({0, 4, 105, 190}), (NodeRange{0, 1, false}));
}

// The value of every node of a random program at a cell lies in the range of each box around the
// cell.
TEST(Ranges, HoldsOnRandomPrograms) {
  reference::RandomMaskOptions options;
  options.max_len = 10;
  options.max_batches = options.max_heads = 1;
  options.allow_undefined = true;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    const reference::RandomMask mask = reference::make_random_mask(seed + 1000, options);
    const Tables tables = mask.tables.views();
    const Result<MaskIr> ir = fdma::bind(mask.expr, tables, mask.shape);
    if (!ir) continue;
    const IrProgram& program = ir->programs[0];
    ir_test::IrInterpreter interpreter(program);
    const std::vector<std::uint8_t> cells = interpreter.cells();
    ir_test::BoxRanges ranges(program);
    for (std::int64_t q0 = 0; q0 < program.q_len; q0 += 3) {
      for (std::int64_t k0 = 0; k0 < program.kv_len; k0 += 2) {
        const ir_test::CellBox box = {q0, std::min(q0 + 3, program.q_len), k0,
                                      std::min(k0 + 2, program.kv_len)};
        const NodeRange root = ranges.root(box);
        for (std::int64_t q = box.q_begin; q < box.q_end; ++q) {
          for (std::int64_t k = box.k_begin; k < box.k_end; ++k) {
            const std::uint8_t cell = cells[static_cast<std::size_t>(q * program.kv_len + k)];
            EXPECT_TRUE(cell == 0   ? root.can_be_false()
                        : cell == 1 ? root.can_be_true()
                                    : root.may_be_undefined)
                << mask.describe() << dump(program);
          }
        }
      }
    }
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace fdma
