// Tests binding: groups of pairs, tables, derived tables, and every error that it reports.
#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "fdma/masks/mask_ir.hpp"
#include "fdma/masks/parse.hpp"
#include "table_set.hpp"

namespace fdma {
namespace {

using reference::TableSet;

MaskShape make_shape(std::int64_t q_len, std::int64_t kv_len, std::int64_t batches = 1,
                     std::int64_t heads = 1) {
  MaskShape shape;
  shape.num_batches = batches;
  shape.num_heads = heads;
  shape.q_lens = {q_len};
  shape.kv_lens = {kv_len};
  return shape;
}

Result<MaskIr> bind_text(const std::string& text, const MaskShape& shape,
                         const TableSet& tables = {}) {
  FDMA_TRY(MaskExpr expr, parse_mask(text));
  return fdma::bind(expr, tables.views(), shape);
}

std::string dump_of(const std::string& text, const MaskShape& shape, const TableSet& tables = {}) {
  const Result<MaskIr> ir = bind_text(text, shape, tables);
  return ir ? dump(*ir) : ir.error().message;
}

void expect_error(const std::string& text, const MaskShape& shape, const TableSet& tables,
                  ErrorCode code, const std::string& message) {
  const Result<MaskIr> ir = bind_text(text, shape, tables);
  ASSERT_FALSE(ir) << text << "\n" << dump(*ir);
  EXPECT_EQ(ir.error().message, message);
  EXPECT_EQ(ir.error().code, code) << text;
}

TEST(Bind, CausalIsOneComparisonAtAnyAlignment) {
  EXPECT_EQ(dump_of("causal", make_shape(8, 8)),
            "mask_ir: num_batches 1, num_heads 1, programs 1\n"
            "program 0: q_len 8, kv_len 8\n"
            "%0 = k\n"
            "%1 = q\n"
            "%2 = less_equal %0 %1\n");
  EXPECT_EQ(dump_of("causal", make_shape(8, 20)),
            "mask_ir: num_batches 1, num_heads 1, programs 1\n"
            "program 0: q_len 8, kv_len 20\n"
            "%0 = k\n"
            "%1 = q\n"
            "%2 = constant 12\n"
            "%3 = add %1 %2\n"
            "%4 = less_equal %0 %3\n");
}

TEST(Bind, OneQueryRowNeedsNoQ) {
  EXPECT_EQ(dump_of("causal & window(4)", make_shape(1, 20)),
            "mask_ir: num_batches 1, num_heads 1, programs 1\n"
            "program 0: q_len 1, kv_len 20\n"
            "%0 = constant 16\n"
            "%1 = k\n"
            "%2 = less_equal %0 %1\n");
}

TEST(Bind, NoCellsIsFalse) {
  EXPECT_EQ(dump_of("k // 0 == q", make_shape(0, 5)),
            "mask_ir: num_batches 1, num_heads 1, programs 1\n"
            "program 0: q_len 0, kv_len 5\n"
            "%0 = boolean 0\n");
}

TEST(Bind, EqualHeadsShareAProgram) {
  const auto ir = bind_text("k <= q & q - k < 16 * shl(1, h % 4)", make_shape(512, 512, 2, 8));
  ASSERT_TRUE(ir) << ir.error().message;
  EXPECT_EQ(ir->programs.size(), 4u);
  EXPECT_EQ(ir->program_of,
            (std::vector<std::int32_t>{0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3}));
}

TEST(Bind, DifferentKeysWithOneMeaningShareAProgram) {
  TableSet tables;
  tables.add("n", DType::int32, {4}, {100, 200, 3, 300});
  const auto ir = bind_text("sink(@n[b])", make_shape(8, 16, 4), tables);
  ASSERT_TRUE(ir) << ir.error().message;
  EXPECT_EQ(ir->program_of, (std::vector<std::int32_t>{0, 0, 1, 0}));
}

TEST(Bind, EqualRowsOfATableShareAProgram) {
  TableSet tables;
  tables.add("t", DType::int8, {3, 4}, {0, 0, 1, 1, 5, 5, 5, 5, 0, 0, 1, 1});
  const auto ir = bind_text("documents(ids=@t)", make_shape(4, 4, 3), tables);
  ASSERT_TRUE(ir) << ir.error().message;
  EXPECT_EQ(ir->program_of, (std::vector<std::int32_t>{0, 1, 0}));
}

TEST(Bind, LengthsPerElementMakeProgramsPerLength) {
  MaskShape shape = make_shape(0, 0, 3);
  shape.q_lens = {4, 8, 4};
  shape.kv_lens = {8, 8, 8};
  const auto ir = bind_text("causal", shape);
  ASSERT_TRUE(ir) << ir.error().message;
  EXPECT_EQ(ir->program_of, (std::vector<std::int32_t>{0, 1, 0}));
}

TEST(Bind, DocumentLengthsBecomeRuns) {
  TableSet tables;
  tables.add("len", DType::int32, {4}, {3, 0, 5, 2});
  const auto ir = bind_text("documents(lengths=@len)", make_shape(1000000, 1000000), tables);
  ASSERT_TRUE(ir) << ir.error().message;
  ASSERT_EQ(ir->programs[0].tables.size(), 1u);
  const IrTable& runs = ir->programs[0].tables[0];
  EXPECT_TRUE(runs.is_runs());
  EXPECT_EQ(runs.run_ends, (std::vector<std::int64_t>{3, 8, 10, 1000000}));
  EXPECT_EQ(runs.run_values, (std::vector<std::int64_t>{0, 1, 2, -1}));
  EXPECT_EQ(runs.at(0), 0);
  EXPECT_EQ(runs.at(2), 0);
  EXPECT_EQ(runs.at(3), 1);
  EXPECT_EQ(runs.at(999999), -1);
}

TEST(Bind, LengthsAndBoundsGiveTheSameProgram) {
  TableSet lengths, bounds;
  lengths.add("t", DType::int32, {3}, {3, 5, 2});
  bounds.add("t", DType::uint64, {4}, {0, 3, 8, 10});
  const auto a = bind_text("documents(lengths=@t)", make_shape(12, 12), lengths);
  const auto b = bind_text("documents(cu_seqlens=@t)", make_shape(12, 12), bounds);
  ASSERT_TRUE(a && b);
  EXPECT_EQ(a->programs[0].tables[0].run_ends, b->programs[0].tables[0].run_ends);
  EXPECT_EQ(a->programs[0].tables[0].run_values, b->programs[0].tables[0].run_values);
}

TEST(Bind, EqualIdsOfManyKeysBecomeRuns) {
  std::vector<std::int64_t> ids(640);
  for (std::size_t k = 0; k < ids.size(); ++k) ids[k] = static_cast<std::int64_t>(k / 64);
  TableSet tables;
  tables.add("t", DType::int32, {640}, ids);
  const auto ir = bind_text("documents(ids=@t)", make_shape(640, 640), tables);
  ASSERT_TRUE(ir) << ir.error().message;
  EXPECT_EQ(ir->programs[0].tables[0].run_ends.size(), 10u);
}

TEST(Bind, CopiesStridedTablesAndBorrowsTheRest) {
  const std::vector<std::int32_t> data = {0, 9, 0, 9, 1, 9, 1, 9};
  TensorView every_other;
  every_other.data = data.data();
  every_other.dtype = DType::int32;
  every_other.rank = 1;
  every_other.extents[0] = 4;
  every_other.strides[0] = 2;
  const Result<MaskExpr> expr = parse_mask("documents(ids=@t)");
  ASSERT_TRUE(expr);
  const auto strided = fdma::bind(*expr, Tables{{"t", every_other}}, make_shape(4, 4));
  ASSERT_TRUE(strided) << strided.error().message;
  const IrTable& copy = strided->programs[0].tables[0];
  EXPECT_NE(copy.owner, nullptr);
  EXPECT_EQ(copy.at(1), 0);
  EXPECT_EQ(copy.at(2), 1);
  every_other.strides[0] = 1;
  const auto borrowed = fdma::bind(*expr, Tables{{"t", every_other}}, make_shape(4, 4));
  ASSERT_TRUE(borrowed) << borrowed.error().message;
  EXPECT_EQ(borrowed->programs[0].tables[0].data, data.data());
}

TEST(Bind, SmallLoopsAreWrittenOutLargeOnesStay) {
  EXPECT_EQ(dump_of("any(i in 2 : k == q + i)", make_shape(8, 9)),
            dump_of("k == q | k == q + 1", make_shape(8, 9)));
  EXPECT_EQ(dump_of("all(i in 100 : k != q * i)", make_shape(8, 9)),
            "mask_ir: num_batches 1, num_heads 1, programs 1\n"
            "program 0: q_len 8, kv_len 9\n"
            "%0 = constant 100\n"
            "%1 = k\n"
            "%2 = q\n"
            "%3 = loop 0\n"
            "%4 = mul %2 %3\n"
            "%5 = not_equal %1 %4\n"
            "%6 = all_of 0 %0 %5\n");
  EXPECT_EQ(dump_of("any(i in 0 : k == i)", make_shape(8, 8)), dump_of("false", make_shape(8, 8)));
  EXPECT_EQ(dump_of("all(i in h - 3 : k == i)", make_shape(8, 8)),
            dump_of("true", make_shape(8, 8)));
}

TEST(Bind, DepthIsBoundedByMemoryOnly) {
  constexpr int kDepth = 20000;
  std::string text(kDepth, '(');
  text += "causal";
  for (int i = 0; i < kDepth; ++i) text += " | k == " + std::to_string(i * 2) + ")";
  const auto ir = bind_text(text, make_shape(64, 64));
  ASSERT_TRUE(ir) << ir.error().message;
  std::string moved = "q";
  for (int i = 0; i < 3000; ++i) moved = "abs(" + moved + " - 1)";
  const auto deep = bind_text(moved + " <= k", make_shape(64, 64));
  ASSERT_TRUE(deep) << deep.error().message;
}

TEST(Bind, RejectsWhatGrowsWithoutBound) {
  std::string text;
  std::string last = "causal";
  for (int i = 0; i < 40; ++i) {
    const std::string name = "m" + std::to_string(i);
    text += "let " + name + " = at(" + last + ", q=q * 3, k=k) & at(" + last +
            ", q=q * q + 1, k=k * 2 + 1);\n";
    last = name;
  }
  const auto ir = bind_text(text + last, make_shape(64, 64));
  ASSERT_FALSE(ir);
  EXPECT_EQ(ir.error().code, ErrorCode::unsupported);
}

TEST(Bind, ManyPairsBindQuickly) {
  const auto begin = std::chrono::steady_clock::now();
  const auto ir = bind_text("k <= q & q - k < 32 * b + h", make_shape(8192, 8192, 64, 32));
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  ASSERT_TRUE(ir) << ir.error().message;
  EXPECT_EQ(ir->programs.size(), 2048u);
  EXPECT_LT(seconds.count(), 2.0);  // a few ms; the limit allows for sanitizers and busy machines
}

TEST(Bind, RejectsMissingAndUnusedTables) {
  TableSet tables;
  tables.add("lens", DType::int32, {1}, {3});
  expect_error("documents(lengths=@lenz)", make_shape(8, 8), tables, ErrorCode::invalid_argument,
               "table 'lenz' is used in the mask, but not given; did you mean 'lens'?");
  expect_error("causal", make_shape(8, 8), tables, ErrorCode::invalid_argument,
               "table 'lens' is given, but not used in the mask");
}

TEST(Bind, RejectsTablesOfTheWrongShapeOrType) {
  TableSet tables;
  tables.add("t", DType::int32, {5}, {0, 0, 0, 0, 0});
  const MaskShape shape = make_shape(8, 8, 2);
  expect_error("documents(ids=@t)", shape, tables, ErrorCode::shape_mismatch,
               "documents(ids=@t): table 't': expected [kv_len = 8] or [batch = 2, kv_len = 8], "
               "got int32 [5]");
  expect_error("padding(lengths=@t)", shape, tables, ErrorCode::shape_mismatch,
               "padding(lengths=@t): table 't': expected [batch = 2], got int32 [5]");
  expect_error("bits(@t)", shape, tables, ErrorCode::invalid_argument,
               "bits(@t): table 't': expected boolean entries, got int32 [5]");
  expect_error("@t[q, k] == 0", shape, tables, ErrorCode::shape_mismatch,
               "'@t[q, k]': table 't' is int32 [5]: expected 1 index, got 2");
  TableSet cells;
  cells.add("m", DType::boolean, {8, 8}, std::vector<std::int64_t>(64, 1));
  expect_error("causal & @m", shape, cells, ErrorCode::shape_mismatch,
               "'@m': table 'm' is boolean [8, 8]: expected 2 indices, got 0; a table of cells is "
               "the mask bits(@m)");
  expect_error("@t[q]", shape, tables, ErrorCode::invalid_argument,
               "'@t[q]' is an integer; a mask is a condition");
  expect_error("@t[q] & causal", shape, tables, ErrorCode::invalid_argument,
               "'@t[q] & causal': expected a condition, got an entry of table 't', int32 [5]");
  TableSet flags;
  flags.add("t", DType::boolean, {2, 8}, std::vector<std::int64_t>(16, 1));
  expect_error("@t[b, k] + 1 < q", shape, flags, ErrorCode::invalid_argument,
               "'@t[b, k] + 1': expected an integer, got an entry of table 't', boolean [2, 8]");
  TableSet floats;
  floats.add("t", DType::float32, {8}, std::vector<std::int64_t>(8, 0));
  expect_error("documents(ids=@t)", shape, floats, ErrorCode::invalid_argument,
               "table 't': expected boolean or integer entries, got float32");
  TableSet large;
  large.add("t", DType::uint64, {8}, {0, 0, 0, -1, 0, 0, 0, 0});
  expect_error("documents(ids=@t)", shape, large, ErrorCode::invalid_argument,
               "table 't': entry 3 is 18446744073709551615, beyond the 64-bit signed integers");
}

TEST(Bind, RejectsDocumentsThatDoNotFit) {
  TableSet tables;
  tables.add("t", DType::int32, {3}, {3, 4, 2});
  expect_error("documents(lengths=@t)", make_shape(8, 8), tables, ErrorCode::invalid_argument,
               "documents(lengths=@t): documents 0 to 2 have more than kv_len = 8 keys (document 2 "
               "has 2, and 1 are left)");
  expect_error("documents(cu_seqlens=@t)", make_shape(8, 8), tables, ErrorCode::invalid_argument,
               "documents(cu_seqlens=@t): bounds begin with 0, got 3");
  TableSet negative;
  negative.add("t", DType::int32, {2}, {3, -4});
  expect_error("documents(lengths=@t)", make_shape(8, 8), negative, ErrorCode::invalid_argument,
               "documents(lengths=@t): length -4 of document 1 is negative");
  TableSet bounds;
  bounds.add("t", DType::int32, {3}, {0, 5, 4});
  expect_error("documents(cu_seqlens=@t)", make_shape(8, 8), bounds, ErrorCode::invalid_argument,
               "documents(cu_seqlens=@t): bounds do not descend, got 4 after 5 (entry 2)");
  expect_error("documents(cu_seqlens=@t)", make_shape(8, 4), bounds, ErrorCode::invalid_argument,
               "documents(cu_seqlens=@t): bound 5 (entry 1) is beyond kv_len = 4");
}

TEST(Bind, RejectsWhatOtherNamesForbid) {
  TableSet prefixes;
  prefixes.add("t", DType::int32, {4}, {0, 1, 2, 1});
  prefixes.add("p", DType::int32, {2}, {1, 1});
  expect_error("prefix_documents(ids=@t, prefix=@p)", make_shape(4, 4), prefixes,
               ErrorCode::invalid_argument,
               "prefix_documents(prefix=@p): id 2 of key 2 is not below docs = 2, the extent of "
               "prefix");
  TableSet cycle;
  cycle.add("t", DType::int32, {4}, {-1, 2, 3, 1});
  expect_error("tree(parents=@t)", make_shape(4, 4), cycle, ErrorCode::invalid_argument,
               "tree(parents=@t): the parents of node 1 form a cycle");
  TableSet outside;
  outside.add("t", DType::int32, {2}, {-1, 2});
  expect_error("tree(parents=@t)", make_shape(4, 4), outside, ErrorCode::invalid_argument,
               "tree(parents=@t): parent 2 of node 1 is neither -1 nor a node below 2");
  expect_error("block_diffusion(4, 2)", make_shape(9, 9), {}, ErrorCode::invalid_argument,
               "'block_diffusion(4, 2)': expected kv_len = 2 * n with n = 4, got kv_len = 9");
  expect_error("natten2d(3, 4, 3, 3)", make_shape(11, 11), {}, ErrorCode::invalid_argument,
               "'natten2d(3, 4, 3, 3)': expected kv_len = height * width = 3 * 4, got kv_len = 11");
  expect_error("natten2d(3, 4, 5, 3)", make_shape(12, 12), {}, ErrorCode::invalid_argument,
               "'natten2d(3, 4, 5, 3)': the 5 x 3 window is larger than the 3 x 4 canvas");
}

TEST(Bind, RejectsTopkByName) {
  TableSet tables;
  tables.add("s", DType::int32, {4}, {1, 2, 3, 4});
  const auto ir = bind_text("topk(@s, 2, among=causal)", make_shape(4, 4), tables);
  ASSERT_FALSE(ir);
  EXPECT_EQ(ir.error().code, ErrorCode::unsupported);
  EXPECT_NE(ir.error().message.find("topk"), std::string::npos);
}

}  // namespace
}  // namespace fdma
