// Tests arguments of named masks that a program may mean and that yet give an empty, a full or
// another mask. Each is an error that says what to write.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fdma/masks/mask_ir.hpp"
#include "fdma/masks/parse.hpp"
#include "table_set.hpp"

namespace fdma {
namespace {

using reference::TableSet;

MaskShape make_shape(std::int64_t q_len, std::vector<std::int64_t> kv_lens,
                     std::int64_t batches = 1, std::int64_t heads = 1) {
  return {batches, heads, {q_len}, std::move(kv_lens)};
}

Result<MaskIr> bind_text(const std::string& text, const MaskShape& shape,
                         const TableSet& tables = {}) {
  FDMA_TRY(MaskExpr expr, parse_mask(text));
  return fdma::bind(expr, tables.views(), shape);
}

std::string error_of(const std::string& text, const MaskShape& shape = make_shape(4, {8}),
                     const TableSet& tables = {}) {
  const Result<MaskIr> ir = bind_text(text, shape, tables);
  return ir ? "no error" : ir.error().message;
}

TableSet table_of(const std::vector<std::int64_t>& values) {
  TableSet tables;
  tables.add("t", DType::int64, {static_cast<std::int64_t>(values.size())}, values);
  return tables;
}

TEST(BindLimits, RejectsWindowsBelowZeroAndSaysWhatToWrite) {
  EXPECT_EQ(error_of("window(-1, 0)"),
            "'window(-1, 0)': left: expected at least 0 or inf, got -1; write inf for a side "
            "without a bound, k and pos for a band beside the diagonal");
  EXPECT_EQ(error_of("window(0, -2)"),
            "'window(0, -2)': right: expected at least 0 or inf, got -2; write inf for a side "
            "without a bound, k and pos for a band beside the diagonal");
  EXPECT_EQ(error_of("window(-5)"),
            "'window(-5)': w: expected at least 1 or inf, got -5; write inf for every key and "
            "false for none");
  EXPECT_EQ(error_of("causal & window(0)"),
            "'window(0)': w: expected at least 1 or inf, got 0; write inf for every key and "
            "false for none");
  for (const char* text : {"window(0, 0)", "window(1)", "window(0, inf)", "window(inf)"}) {
    EXPECT_EQ(error_of(text), "no error") << text;
  }
}

TEST(BindLimits, RejectsSinksAndGlobalKeysBelowZero) {
  EXPECT_EQ(error_of("causal & (window(2) | sink(-1))"),
            "'sink(-1)': s: expected at least 0 or inf, got -1; write inf for every key");
  EXPECT_EQ(error_of("global(-1)"), "'global(-1)': g: expected at least 0, got -1");
  for (const char* text : {"sink(0)", "sink(9)", "sink(inf)", "global(0)", "global(9)"}) {
    EXPECT_EQ(error_of(text), "no error") << text;
  }
}

TEST(BindLimits, RejectsStepsAndReachesOfDilatedBelowOne) {
  EXPECT_EQ(error_of("dilated(0, 2)"),
            "'dilated(0, 2)': w: expected at least 1 or inf, got 0; write inf for every key and "
            "false for none");
  EXPECT_EQ(error_of("dilated(4, 0)"), "'dilated(4, 0)': step: expected at least 1, got 0");
  EXPECT_EQ(error_of("dilated(4, -2)"), "'dilated(4, -2)': step: expected at least 1, got -2");
  EXPECT_EQ(error_of("dilated(inf, 2)"), "no error");
}

TEST(BindLimits, RejectsPrefixesThatKeysDoNotHave) {
  EXPECT_EQ(error_of("prefix(-3)"),
            "'prefix(-3)': p: expected 0 to kv_len = 8, got -3; clamp(p, 0, kv_len) cuts it off");
  EXPECT_EQ(error_of("causal | prefix(9)"),
            "'prefix(9)': p: expected 0 to kv_len = 8, got 9; clamp(p, 0, kv_len) cuts it off");
  EXPECT_EQ(error_of("prefix(@t)", make_shape(4, {8, 3}, 2), table_of({8, 4})),
            "prefix(@t): entry 1 of table 't': expected 0 to kv_len = 3, got 4");
  EXPECT_EQ(error_of("prefix(@t)", make_shape(4, {8, 3}, 2), table_of({8, 3})), "no error");
  EXPECT_EQ(error_of("prefix(min(9, kv_len))"), "no error");
}

TEST(BindLimits, RejectsPaddingLengthsThatKeysDoNotHave) {
  const MaskShape shape = make_shape(4, {8}, 2);
  for (const std::string side : {"", ", side=left", ", side=right"}) {
    const std::string text = "padding(lengths=@t" + side + ")";
    EXPECT_EQ(error_of(text, shape, table_of({3, 9})),
              "padding(lengths=@t): entry 1 of table 't': expected 0 to kv_len = 8, got 9");
    EXPECT_EQ(error_of(text, shape, table_of({-1, 8})),
              "padding(lengths=@t): entry 0 of table 't': expected 0 to kv_len = 8, got -1");
    EXPECT_EQ(error_of(text, shape, table_of({0, 8})), "no error");
  }
}

TEST(BindLimits, RejectsDocumentPrefixesThatKeysDoNotHave) {
  const auto error = [](std::int64_t prefix) {
    TableSet tables = table_of({0, 0, 0, 0, 1, 1, 1, 1});
    tables.add("p", DType::int32, {2}, {2, prefix});
    return error_of("prefix_documents(ids=@t, prefix=@p)", make_shape(4, {8}), tables);
  };
  EXPECT_EQ(error(9),
            "prefix_documents(prefix=@p): prefix of document 1: expected 0 to kv_len = 8, got 9");
  EXPECT_EQ(error(-1),
            "prefix_documents(prefix=@p): prefix of document 1: expected 0 to kv_len = 8, got -1");
  EXPECT_EQ(error(8), "no error");
}

TEST(BindLimits, RejectsTablesOfTilesWithOtherExtentsThanTheMaskHas) {
  const auto error = [](const std::string& text, std::vector<std::int64_t> extents,
                        const MaskShape& shape) {
    std::int64_t count = 1;
    for (const std::int64_t extent : extents) count *= extent;
    TableSet tables;
    tables.add("t", DType::boolean, extents,
               std::vector<std::int64_t>(static_cast<std::size_t>(count), 1));
    return error_of(text, shape, tables);
  };
  EXPECT_EQ(error("tiles(@t, 4, 4)", {2, 2}, make_shape(4, {4})),
            "tiles(@t): table 't': expected [ceil(q_len / 4) = 1, ceil(kv_len / 4) = 1], [batch = "
            "1, ..] or [batch, heads = 1, ..], got boolean [2, 2]");
  EXPECT_EQ(error("tiles(@t, 4, 4)", {1, 1}, make_shape(4, {5})),
            "tiles(@t): table 't': expected [ceil(q_len / 4) = 1, ceil(kv_len / 4) = 2], [batch = "
            "1, ..] or [batch, heads = 1, ..], got boolean [1, 1]");
  EXPECT_EQ(error("tiles(@t, 3, 4)", {2, 2}, make_shape(4, {5, 8}, 2)), "no error");  // the longest
  EXPECT_EQ(error("tiles(@t, 4, 4)", {1, 1, 1, 2}, make_shape(4, {5})), "no error");
  EXPECT_EQ(error("tiles(@t, 4, 4)", {0, 2}, make_shape(0, {5})), "no error");
  EXPECT_EQ(error("tiles(@t, 0, 4)", {1, 2}, make_shape(4, {5})),
            "'tiles(@t, 0, 4)': m: expected at least 1, got 0");
  EXPECT_EQ(error("tiles(@t, 4, -4)", {1, 2}, make_shape(4, {5})),
            "'tiles(@t, 4, -4)': n: expected at least 1, got -4");
  EXPECT_EQ(error("tiles(@t, 4, 4 // 0)", {1, 2}, make_shape(4, {5})),
            "'tiles(@t, 4, 4 // 0)': n is undefined");
}

TEST(BindLimits, RejectsNeighbourhoodsBelowZero) {
  EXPECT_EQ(error_of("natten2d(2, 4, -1, 3)"),
            "'natten2d(2, 4, -1, 3)': the -1 x 3 window has a side below 0");
  EXPECT_EQ(error_of("natten2d(2, 4, 1, -3)"),
            "'natten2d(2, 4, 1, -3)': the 1 x -3 window has a side below 0");
  EXPECT_EQ(error_of("natten2d(2, 4, 0, 3)"), "no error");
  EXPECT_EQ(error_of("natten3d(2, 2, 2, 1, -1, 2)"),
            "'natten3d(2, 2, 2, 1, -1, 2)': the 1 x -1 x 2 window has a side below 0");
  EXPECT_EQ(
      error_of("natten3d(2, 2, 2, 3, 1, 1)"),
      "'natten3d(2, 2, 2, 3, 1, 1)': the 3 x 1 x 1 window is larger than the 2 x 2 x 2 volume");
  EXPECT_EQ(
      error_of("natten3d(2, 3, 2, 1, 1, 1)"),
      "'natten3d(2, 3, 2, 1, 1, 1)': expected kv_len = depth * height * width = 2 * 3 * 2, got "
      "kv_len = 8");
}

TEST(BindLimits, ChecksExpressionsForEachElementAndHead) {
  const MaskShape shape = make_shape(4, {8}, 2, 3);
  EXPECT_EQ(error_of("window(1 - h, inf)", shape),
            "'window(1 - h, inf)': left: expected at least 0 or inf, got -1 for batch element 0, "
            "head 2; write inf for a side without a bound, k and pos for a band beside the "
            "diagonal");
  EXPECT_EQ(error_of("sink(b - 1)", shape),
            "'sink(b - 1)': s: expected at least 0 or inf, got -1 for batch element 0, head 0; "
            "write inf for every key");
  TableSet tables;
  tables.add("t", DType::int32, {}, {-4});
  EXPECT_EQ(error_of("window(@t)", make_shape(4, {8}), tables),
            "'window(@t)': w: expected at least 1 or inf, got -4; write inf for every key and "
            "false for none");
  EXPECT_EQ(error_of("window(1 + h)", shape), "no error");
}

// An undefined entry makes the cells that read it undefined, as everywhere.
TEST(BindLimits, LeavesUndefinedArgumentsToTheCells) {
  EXPECT_EQ(error_of("window(1 // 0)"), "no error");
  EXPECT_EQ(error_of("true | prefix(1 // 0)"), "no error");
}

}  // namespace
}  // namespace fdma
