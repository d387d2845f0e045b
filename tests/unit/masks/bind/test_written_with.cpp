// Tests which compiled masks hold for one batch element or head alone.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "fdma/masks/lower.hpp"
#include "fdma/masks/parametric_form.hpp"
#include "fdma/masks/parse.hpp"
#include "table_set.hpp"

namespace fdma {
namespace {

using reference::TableSet;

// Returns "", "b", "h" or "bh".
std::string marks_of(const BlockMask& mask) {
  return std::string(mask.is_per_batch ? "b" : "") + (mask.is_per_head ? "h" : "");
}

std::string marks_of(const std::string& text, const TableSet& tables = {}, std::int64_t batches = 1,
                     std::int64_t heads = 1) {
  const auto expr = parse_mask(text);
  if (!expr) return expr.error().message;
  const auto mask = compile(*expr, tables.views(), {batches, heads, {4}, {8}});
  return mask ? marks_of(*mask) : mask.error().message;
}

TableSet table_of(DType dtype, std::vector<std::int64_t> extents) {
  std::int64_t count = 1;
  for (const std::int64_t extent : extents) count *= extent;
  TableSet tables;
  tables.add("t", dtype, extents, std::vector<std::int64_t>(static_cast<std::size_t>(count), 1));
  return tables;
}

TEST(WrittenWith, TellsWhatTheTextMentions) {
  EXPECT_EQ(marks_of("causal & window(3)"), "");
  EXPECT_EQ(marks_of("window(h + 1)"), "h");
  EXPECT_EQ(marks_of("k <= q + b"), "b");
  EXPECT_EQ(marks_of("k <= q + b * h"), "bh");
  EXPECT_EQ(marks_of("any(i in h + 1 : k == i)"), "h");
  EXPECT_EQ(marks_of("let unused = window(h + 1); causal"), "");
  EXPECT_EQ(marks_of("@t[h, k] == 1", table_of(DType::int32, {1, 8})), "h");
  EXPECT_EQ(marks_of("window(@t[b])", table_of(DType::int32, {1})), "b");
  EXPECT_EQ(marks_of("@t[k] == 1", table_of(DType::int32, {8})), "");
  EXPECT_EQ(marks_of("window(h + 1)", {}, 2, 3), "h");  // of three heads, which is no limit
}

TEST(WrittenWith, TellsTablesWithAnExtentForElementsOrHeads) {
  EXPECT_EQ(marks_of("documents(ids=@t)", table_of(DType::int32, {8})), "");
  EXPECT_EQ(marks_of("documents(ids=@t)", table_of(DType::int32, {1, 8})), "b");
  EXPECT_EQ(marks_of("documents(lengths=@t)", table_of(DType::int32, {2})), "");
  EXPECT_EQ(marks_of("documents(lengths=@t)", table_of(DType::int32, {1, 2})), "b");
  EXPECT_EQ(marks_of("padding(lengths=@t)", table_of(DType::int32, {1})), "b");
  EXPECT_EQ(marks_of("prefix(@t)", table_of(DType::int32, {1})), "b");
  EXPECT_EQ(marks_of("prefix(@t)", table_of(DType::int32, {})), "");
  EXPECT_EQ(marks_of("global(@t)", table_of(DType::boolean, {8})), "");
  EXPECT_EQ(marks_of("global(@t)", table_of(DType::boolean, {1, 8})), "b");
  EXPECT_EQ(marks_of("tiles(@t, 4, 4)", table_of(DType::boolean, {1, 2})), "");
  EXPECT_EQ(marks_of("tiles(@t, 4, 4)", table_of(DType::boolean, {1, 1, 2})), "b");
  EXPECT_EQ(marks_of("tiles(@t, 4, 4)", table_of(DType::boolean, {1, 1, 1, 2})), "bh");
}

// A dense mask of one head holds for all heads, as everywhere.
TEST(WrittenWith, LeavesDenseMasksToServeAll) {
  EXPECT_EQ(marks_of("bits(@t)", table_of(DType::boolean, {4, 8})), "");
  EXPECT_EQ(marks_of("bits(@t)", table_of(DType::boolean, {1, 4, 8})), "");
  EXPECT_EQ(marks_of("bits(@t)", table_of(DType::boolean, {1, 1, 4, 8})), "");
}

TEST(WrittenWith, TellsLearnedMasksAsTheUserWroteThem) {
  const auto scores = [](std::vector<std::int64_t> extents) {
    return table_of(DType::float32, std::move(extents));
  };
  EXPECT_EQ(marks_of("causal & topk(@t, 2)", scores({8})), "");
  EXPECT_EQ(marks_of("causal & topk(@t, 2)", scores({1, 8})), "");  // one KV head serves all
  EXPECT_EQ(marks_of("causal & topk(@t, 2)", scores({1, 1, 8})), "b");
  EXPECT_EQ(marks_of("window(h + 1) & topk(@t, 2)", scores({8})), "h");
  EXPECT_EQ(marks_of("topk(@t, h + 2, among=causal)", scores({8})), "h");
  EXPECT_EQ(marks_of("causal | topk(@t, 2, among=k > b)", scores({8})), "b");
  // Two KV heads become tables by element and head, although the user has named no element.
  TableSet two;
  two.add("t", DType::float32, {2, 8}, {1, 2, 3, 4, 5, 6, 7, 8, 8, 7, 6, 5, 4, 3, 2, 1});
  EXPECT_EQ(marks_of("k == 0 | topk(@t, 2, among=causal)", two, 1, 4), "");
}

TEST(WrittenWith, ParametricFormKeepsIt) {
  const auto expr = parse_mask("causal & padding(lengths=@t)");
  const TableSet tables = table_of(DType::int32, {1});
  const auto mask = compile(*expr, tables.views(), {1, 1, {4}, {8}});
  ASSERT_TRUE(mask) << mask.error().message;
  const auto form = parametric_form(*mask, *expr, tables.views());
  ASSERT_TRUE(form) << form.error().message;
  EXPECT_EQ(form->format(), MaskFormat::parametric);
  EXPECT_EQ(marks_of(*form), "b");
}

}  // namespace
}  // namespace fdma
