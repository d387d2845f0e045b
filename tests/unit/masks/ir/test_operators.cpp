// Every row of operators.def: it parses, prints, folds like it evaluates, and its range holds. A new
// row is tested as soon as it is there.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "fdma/masks/mask_ir.hpp"
#include "fdma/masks/mask_names.hpp"
#include "fdma/masks/parse.hpp"
#include "ir/ir_interpreter.hpp"
#include "ir/range.hpp"
#include "language/operators.hpp"
#include "oracle.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kLowest = std::numeric_limits<std::int64_t>::min();
constexpr std::int64_t kHighest = std::numeric_limits<std::int64_t>::max();
constexpr std::array<std::int64_t, 16> kNumbers = {
    0, 1, -1, 2, 3, -5, 7, 8, 62, 63, 64, -64, std::int64_t{1} << 40, kHighest, kLowest, 100};

bool is_condition(OperandTypes types) {
  return types != OperandTypes::integers && types != OperandTypes::variable &&
         types != OperandTypes::count && types != OperandTypes::choice;
}

// Which operands of a row are conditions.
std::vector<bool> operand_kinds(const OperatorFacts& facts, std::size_t count) {
  std::vector<bool> kinds(
      count, facts.types == OperandTypes::conditions || facts.types == OperandTypes::count);
  if (facts.types == OperandTypes::choice || facts.types == OperandTypes::moved) kinds[0] = true;
  if (facts.types == OperandTypes::quantifier) kinds[1] = true;
  return kinds;
}

// The text of an operator on operands that are texts without a loose operator.
std::string text_of(const OperatorFacts& facts, const std::vector<std::string>& operands) {
  if (facts.is_infix()) return fmt::format("{} {} {}", operands[0], facts.spelling, operands[1]);
  if (facts.is_prefix()) return fmt::format("{}({})", facts.spelling, operands[0]);
  if (facts.types == OperandTypes::moved)
    return fmt::format("at({}, q={}, k={})", operands[0], operands[1], operands[2]);
  if (facts.types == OperandTypes::quantifier)
    return fmt::format("{}(i in {} : i < 1 & {})", facts.spelling, operands[0], operands[1]);
  return fmt::format("{}({})", facts.spelling, fmt::join(operands, ", "));
}

// A mask that has the operator: its value if that is a condition, else a comparison.
std::string mask_of(const OperatorFacts& facts, const std::string& text) {
  return is_condition(facts.types) ? text : fmt::format("({}) == 1", text);
}

// The rows that are written by operands: all but numbers, names and tables.
std::vector<OperatorFacts> rows_with_operands() {
  std::vector<OperatorFacts> rows;
  for (const OperatorFacts& facts : kOperators)
    if (facts.least > 0) rows.push_back(facts);
  return rows;
}

bool is_fixed(const OperatorFacts& facts) {
  return facts.types != OperandTypes::moved && facts.types != OperandTypes::quantifier;
}

TEST(Operators, StandInTheOrderOfTheirEnumerators) {
  for (std::size_t i = 0; i < std::size(kOperators); ++i)
    EXPECT_EQ(static_cast<std::size_t>(kOperators[i].op), i) << kOperators[i].name;
  EXPECT_EQ(std::size(kOperators), static_cast<std::size_t>(ExprOp::named) + 1);
}

TEST(Operators, ParseAndPrint) {
  for (const OperatorFacts& facts : rows_with_operands()) {
    const auto count = static_cast<std::size_t>(facts.least);
    std::vector<std::string> operands;
    for (const bool condition : operand_kinds(facts, count))
      operands.push_back(condition ? "(q < k)" : operands.empty() ? "4" : "k");
    const std::string text = mask_of(facts, text_of(facts, operands));
    SCOPED_TRACE(text);
    const Result<MaskExpr> expr = parse_mask(text);
    ASSERT_TRUE(expr) << expr.error().message;
    const auto& nodes = expr->nodes();
    EXPECT_TRUE(std::any_of(nodes.begin(), nodes.end(),
                            [&](const ExprNode& node) { return node.op == facts.op; }));
    const std::string printed = to_text(*expr);
    const Result<MaskExpr> again = parse_mask(printed);
    ASSERT_TRUE(again) << printed;
    EXPECT_EQ(*again, *expr) << printed;
    EXPECT_EQ(to_text(*again), printed);
    if (facts.word.empty()) continue;
    const auto at = text.find(facts.spelling);
    std::string in_words = text;
    in_words.replace(at, std::string(facts.spelling).size(), facts.word);
    EXPECT_EQ(*parse_mask(in_words), *expr) << in_words;
  }
}

TEST(Operators, AreWordsOfTheLanguageWithASignature) {
  for (const OperatorFacts& facts : kOperators) {
    EXPECT_FALSE(facts.meaning.empty()) << facts.name;
    EXPECT_TRUE(facts.word.empty() || is_reserved(facts.word)) << facts.word;
    if (!facts.is_function()) continue;
    ASSERT_EQ(forms_of(facts.spelling).size(), 1u) << facts.spelling;
    EXPECT_EQ(forms_of(facts.spelling)[0].op, facts.op);
    EXPECT_TRUE(is_reserved(facts.spelling)) << facts.spelling;
  }
}

// Checks one application: the folder, the oracle and the bound program agree.
void check_fold(const OperatorFacts& facts, const std::vector<std::int64_t>& values) {
  std::vector<std::string> operands;
  const std::vector<bool> kinds = operand_kinds(facts, values.size());
  for (std::size_t i = 0; i < values.size(); ++i)
    operands.push_back(kinds[i] ? (values[i] != 0 ? "true" : "false")
                                : fmt::format("({})", values[i]));
  const std::optional<std::int64_t> folded = fold_operator(facts.op, values);
  const std::string text = text_of(facts, operands);
  const std::string mask = is_condition(facts.types)
                               ? fmt::format("({}) == {}", text, folded.value_or(1) != 0)
                               : fmt::format("({}) == {}", text, folded.value_or(1));
  SCOPED_TRACE(mask);
  const Result<MaskExpr> expr = parse_mask(mask);
  ASSERT_TRUE(expr) << expr.error().message;
  MaskShape shape;
  shape.q_lens = shape.kv_lens = {1};
  const auto cells = reference::oracle_cells(*expr, {}, shape, 0, 0);
  ASSERT_TRUE(cells) << cells.error().message;
  EXPECT_EQ(cells->at(0), folded ? reference::kAttend : reference::kUndefinedCell);
  const Result<MaskIr> ir = fdma::bind(*expr, {}, shape);
  ASSERT_TRUE(ir) << ir.error().message;
  const IrProgram& program = ir->programs[0];
  if (folded) {
    EXPECT_EQ(program.nodes.size(), 1u);
    EXPECT_EQ(program.node(program.root).value, 1);
  } else {
    EXPECT_FALSE(ir_test::IrInterpreter(program).cell(0, 0).is_defined);
  }
}

TEST(Operators, FoldAsTheyEvaluate) {
  std::mt19937_64 random(7);
  for (const OperatorFacts& facts : rows_with_operands()) {
    if (!is_fixed(facts)) continue;
    for (int trial = 0; trial < 120; ++trial) {
      const std::size_t more = facts.most == kMany ? random() % 3 : 0;
      std::vector<std::int64_t> values;
      for (const bool condition :
           operand_kinds(facts, static_cast<std::size_t>(facts.least) + more)) {
        const std::int64_t number = kNumbers[random() % kNumbers.size()];
        values.push_back(condition ? static_cast<std::int64_t>(random() % 2) : number);
      }
      check_fold(facts, values);
      if (::testing::Test::HasFailure()) return;
    }
  }
}

// A random range, and one of its values.
NodeRange random_range(std::mt19937_64& random, bool is_condition) {
  if (is_condition) {
    const auto outcomes = static_cast<Outcomes>(1 + random() % 7);
    return NodeRange::of_outcomes(outcomes);
  }
  const std::int64_t a = kNumbers[random() % kNumbers.size()];
  const std::int64_t b = random() % 3 == 0
                             ? kNumbers[random() % kNumbers.size()]
                             : (a > kHighest - 20 ? a : a + std::int64_t(random() % 20));
  return {std::min(a, b), std::max(a, b), random() % 5 == 0};
}

Folded random_member(std::mt19937_64& random, const NodeRange& range) {
  if (!range.has_values() || (range.may_be_undefined && random() % 4 == 0)) return {};
  const std::uint64_t width =
      static_cast<std::uint64_t>(range.hi) - static_cast<std::uint64_t>(range.lo);
  std::uint64_t offset = random() % 4 == 0 ? 0 : random() % 4 == 0 ? width : random();
  if (width != ~std::uint64_t{0}) offset %= width + 1;
  return {static_cast<std::int64_t>(static_cast<std::uint64_t>(range.lo) + offset), true};
}

// The operators of programs on integers and conditions, with the kinds of their operands.
struct ProgramRow {
  IrOp op;
  std::vector<bool> is_condition;
};

std::vector<ProgramRow> program_rows() {
  std::vector<ProgramRow> rows = {{IrOp::where, {true, false, false}},
                                  {IrOp::where_condition, {true, true, true}}};
  const auto add = [&](ExprOp op, IrOp own) {
    const OperatorFacts& facts = operator_facts(op);
    const bool is_plain = facts.least > 0 && facts.types != OperandTypes::quantifier &&
                          facts.types != OperandTypes::choice;
    if (is_plain)
      rows.push_back({own, operand_kinds(facts, static_cast<std::size_t>(facts.least))});
  };
#define FDMA_OPERATOR(name, ...) add(ExprOp::name, IrOp::name);
#include "fdma/masks/operators.def"
  return rows;
}

TEST(Operators, RangesContainEveryValue) {
  std::mt19937_64 random(11);
  for (const ProgramRow& row : program_rows()) {
    for (int trial = 0; trial < 4000; ++trial) {
      NodeRange ranges[3];
      for (std::size_t i = 0; i < row.is_condition.size(); ++i)
        ranges[i] = random_range(random, row.is_condition[i]);
      const NodeRange range = range_of(IrNode{row.op}, ranges);
      for (int sample = 0; sample < 8; ++sample) {
        std::vector<Folded> operands;
        for (std::size_t i = 0; i < row.is_condition.size(); ++i)
          operands.push_back(random_member(random, ranges[i]));
        const Folded value = fold(row.op, operands);
        const bool is_inside = value.is_defined ? range.lo <= value.value && value.value <= range.hi
                                                : range.may_be_undefined;
        ASSERT_TRUE(is_inside) << "operator " << static_cast<int>(row.op) << ": [" << range.lo
                               << ", " << range.hi << "] without " << value.value;
      }
    }
  }
}

}  // namespace
}  // namespace fdma
