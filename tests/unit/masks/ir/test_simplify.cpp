// Tests which spellings of a mask become one canonical program.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fdma/masks/mask_ir.hpp"
#include "fdma/masks/parse.hpp"
#include "ir/simplify.hpp"
#include "table_set.hpp"

namespace fdma {
namespace {

using reference::TableSet;

std::string program_of(const std::string& text, std::int64_t q_len, std::int64_t kv_len,
                       const TableSet& tables = {}) {
  const Result<MaskExpr> expr = parse_mask(text);
  if (!expr) return expr.error().message;
  MaskShape shape;
  shape.q_lens = {q_len};
  shape.kv_lens = {kv_len};
  const Result<MaskIr> ir = fdma::bind(*expr, tables.views(), shape);
  return ir ? dump(ir->programs[0]) : ir.error().message;
}

void expect_same(const std::string& a, const std::string& b) {
  EXPECT_EQ(program_of(a, 60, 100), program_of(b, 60, 100)) << a << "\n" << b;
}

TEST(Simplify, ComparisonsOfSumsHaveOneShape) {
  for (const char* text : {"k - q <= 5", "k <= q + 5", "q - k >= -5", "k < q + 6", "q + 6 > k",
                           "~(k > q + 5)", "0 <= q - k + 5", "2 * k <= 2 * q + 11", "k - 3 < q + 3",
                           "k + k <= 2 * q + 10", "-k >= -q - 5"})
    expect_same(text, "k <= q + 5");
  EXPECT_EQ(program_of("q - k + 3 < 5", 60, 100),
            "program: q_len 60, kv_len 100\n"
            "%0 = q\n"
            "%1 = constant -1\n"
            "%2 = add %0 %1\n"
            "%3 = k\n"
            "%4 = less_equal %2 %3\n");
  expect_same("q < k", "q - k <= -1");
  expect_same("k - q == 4", "q + 4 == k");
  expect_same("2 * k == 2 * q + 1", "false");
  expect_same("q + k >= 3", "3 - q <= k");
}

TEST(Simplify, DistancesAndRemaindersSeparate) {
  expect_same("abs(q - k) <= 30", "k <= q + 30 & q - 30 <= k");
  expect_same("abs(k - q) < 31", "abs(q - k) <= 30");
  expect_same("abs(q - k) > 30", "k < q - 30 | q + 30 < k");
  expect_same("(q - k) % 4 == 0", "k % 4 == q % 4");
  expect_same("(k - q) % 4 == 3", "k % 4 == (q + 3) % 4");
  expect_same("(k - q) % 4 != 9", "true");
  expect_same("max(q, k) < 7", "q < 7 & k < 7");
  expect_same("window(40, 0)", "causal & window(41)");
}

TEST(Simplify, RangesDecide) {
  for (const char* text :
       {"k < 100", "q + k >= 0", "q // 60 == 0", "k % 100 == k", "q - k < 60", "int(causal) <= 1",
        "min(q, 70) == q", "shr(k, 7) == 0", "clamp(q, 0, 59) == q"})
    expect_same(text, "true");
  for (const char* text : {"k > 99", "q * k < 0", "abs(q) < 0", "int(causal) == 2"})
    expect_same(text, "false");
}

TEST(Simplify, ConditionsFold) {
  expect_same("~~causal", "causal");
  expect_same("causal & causal", "causal");
  expect_same("causal | (causal & sink(3))", "causal");
  expect_same("causal & ~causal", "false");
  expect_same("causal | ~causal", "true");
  expect_same("causal & window(30)", "window(29, 0)");
  expect_same("k <= q + 3 | k <= q + 5", "k <= q + 5");
  expect_same("sink(3) & causal", "causal & sink(3)");
  expect_same("causal == sink(3)", "~(causal ^ sink(3))");
  expect_same("where(causal, sink(3), false)", "causal & sink(3)");
  expect_same("where(causal, 1, 0) == 1", "causal");
  expect_same("int(causal) > 0", "causal");
  expect_same("causal != true", "~causal");
  expect_same("shl(q, 3) <= k", "8 * q <= k");
}

// Equal entries have one sign, and where one of them is undefined the comparison is, too.
TEST(Simplify, EqualEntriesHaveOneSign) {
  TableSet tables;
  std::vector<std::int64_t> ids;
  for (std::int64_t k = 0; k < 100; ++k) ids.push_back(k * k % 7 - 1);
  tables.add("t", DType::int32, {100}, ids);
  const std::string same = "@t[k] == @t[pos] & 0 <= @t[k] & 0 <= pos";
  EXPECT_EQ(program_of(same + " & 0 <= @t[pos]", 160, 100, tables),
            program_of(same, 160, 100, tables));
  EXPECT_NE(program_of(same + " & 1 <= @t[pos]", 160, 100, tables),
            program_of(same, 160, 100, tables));
  const std::string other = "@t[k] != @t[pos] & 0 <= @t[k] & 0 <= pos";
  EXPECT_NE(program_of(other + " & 0 <= @t[pos]", 160, 100, tables),
            program_of(other, 160, 100, tables));
}

TEST(Simplify, NeverChangesWhichCellsAreUndefined) {
  // 0 * x is 0 only where x has a value, and q // k has no value for k = 0.
  for (const char* text : {"0 * (q // k) == 0", "q // k == q // k", "q // k - q // k == 0",
                           "(q // k < 3) & ~(q // k < 3)", "where(q // k < 3, true, true)",
                           "int(q // k < 3) >= 0", "min(q // k, 100) < 101"})
    EXPECT_NE(program_of(text, 60, 100).find("floor_div"), std::string::npos) << text;
  expect_same("false & q // k == 1", "false");
  expect_same("true | q // k == 1", "true");
  // Sums that may overflow stay as they are written.
  EXPECT_NE(
      program_of("q * 9223372036854775807 + k * 9223372036854775807 < 5", 60, 100).find("add"),
      std::string::npos);
}

TEST(Simplify, ConstantCulpritsStay) {
  EXPECT_EQ(program_of("k < 7 // 0", 60, 100),
            "program: q_len 60, kv_len 100\n"
            "%0 = k\n"
            "%1 = constant 7\n"
            "%2 = constant 0\n"
            "%3 = floor_div %1 %2\n"
            "%4 = less %0 %3\n");
}

TEST(Simplify, TablesFold) {
  TableSet tables;
  tables.add("t", DType::int32, {3, 4}, {7, 7, 7, 7, 0, 1, 2, 3, 9, 9, 9, 9});
  EXPECT_EQ(program_of("k < @t[1, 2]", 4, 4, tables), program_of("k < 2", 4, 4));
  EXPECT_EQ(program_of("k < @t[0, q]", 4, 20, tables), program_of("k < 7", 4, 20));
  EXPECT_EQ(program_of("@t[1, k] == q", 4, 4, tables),
            "program: q_len 4, kv_len 4\n"
            "@0 = t[1] int32 [4]\n"
            "%0 = k\n"
            "%1 = lookup @0 %0\n"
            "%2 = q\n"
            "%3 = equal %1 %2\n");
}

TEST(Simplify, IsIdempotentAndDropsDeadNodes) {
  IrProgram program;
  program.q_len = program.kv_len = 10;
  const auto add = [&](IrOp op, std::int64_t value, std::vector<IrId> children) {
    IrNode node{op};
    node.value = value;
    node.num_children = static_cast<std::int8_t>(children.size());
    for (std::size_t i = 0; i < children.size(); ++i) node.children[i] = children[i];
    program.nodes.push_back(node);
    return static_cast<IrId>(program.nodes.size()) - 1;
  };
  const IrId q = add(IrOp::q, 0, {}), k = add(IrOp::k, 0, {});
  add(IrOp::mul, 0, {q, k});
  const IrId five = add(IrOp::constant, 5, {});
  const IrId sum = add(IrOp::sub, 0, {q, k});
  program.root = add(IrOp::less, 0, {sum, five});
  const IrProgram simple = simplify(program);
  EXPECT_EQ(dump(simple),
            "program: q_len 10, kv_len 10\n"
            "%0 = q\n"
            "%1 = constant -4\n"
            "%2 = add %0 %1\n"
            "%3 = k\n"
            "%4 = less_equal %2 %3\n");
  EXPECT_EQ(dump(simplify(simple)), dump(simple));
}

}  // namespace
}  // namespace fdma
