// Tests the evaluation of cells without engines against the interpreter of the tests and the engines.
#include <gtest/gtest.h>

#include <string>

#include "fdma/masks/cell_by_cell.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parse.hpp"
#include "ir/ir_interpreter.hpp"

namespace fdma {
namespace {

MaskIr bound(const std::string& text, std::int64_t q_len, std::int64_t kv_len) {
  const auto expr = parse_mask(text);
  EXPECT_TRUE(expr) << expr.error().message;
  auto ir = fdma::bind(*expr, {}, MaskShape{1, 1, {q_len}, {kv_len}});
  EXPECT_TRUE(ir) << ir.error().message;
  return *std::move(ir);
}

const char* const kSpecs[] = {
    "causal",
    "(q // 5) % 7 == (k // 5) % 7 & causal",
    "bitxor(q, k) % 3 == 0 | abs(q - k) < 5",
    "any(i in 9 : i * i == q - k)",
    "all(i in 4 : any(j in 3 : (q + k + i * j) % 5 < 3))",
    "where(q < 20, k // (q - 3) < 2, k > 4)",
    "~(q * k > 100) ^ k < 7",
    "min(q, k) % 3 == max(q, k) % 3",
};

TEST(CellEvaluator, EqualsTheInterpreter) {
  for (const char* spec : kSpecs) {
    const MaskIr ir = bound(spec, 37, 45);
    const auto cells = ir_test::IrInterpreter(ir.programs[0]).cells();
    CellEvaluator evaluator(ir.programs[0]);
    for (std::int64_t q = 0; q < 37; ++q) {
      for (std::int64_t k = 0; k < 45; ++k) {
        ASSERT_EQ(static_cast<int>(evaluator.at(q, k)), cells[static_cast<std::size_t>(q * 45 + k)])
            << spec << " at " << q << ", " << k;
      }
    }
  }
}

TEST(LowerCellByCell, EqualsTheEnginesAndNamesUndefinedCells) {
  for (const char* spec : kSpecs) {
    const MaskIr ir = bound(spec, 137, 145);
    for (const BlockShape block : {BlockShape{16, 32}, BlockShape{128, 128}}) {
      std::int64_t last = 0;
      const auto cells = lower_cell_by_cell(ir, block, [&](std::int64_t done, std::int64_t total) {
        EXPECT_EQ(total, 137);
        last = done;
      });
      const auto mask = lower(ir, {.block = block});
      ASSERT_EQ(cells.has_value(), mask.has_value()) << spec;
      if (!cells) {
        EXPECT_EQ(mask.error().message.find(cells.error().message), 0u) << mask.error().message;
        continue;
      }
      EXPECT_EQ(last, 137);
      EXPECT_EQ(cells->groups, mask->groups) << spec;
    }
  }
}

}  // namespace
}  // namespace fdma
