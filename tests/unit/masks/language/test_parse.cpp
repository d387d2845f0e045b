// Tests the structure of what is parsed, and refusals. The texts of diagnostics are golden
// (tests/golden/diagnostics).
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "fdma/masks/mask_names.hpp"
#include "fdma/masks/parse.hpp"

namespace fdma {
namespace {

MaskExpr parsed(std::string_view text) {
  auto expr = parse_mask(text);
  EXPECT_TRUE(expr.has_value()) << (expr ? "" : expr.error().message);
  return expr ? *std::move(expr) : MaskExpr{};
}

std::string canonical(std::string_view text) { return to_text(parsed(text)); }

std::vector<Diagnostic> diagnostics_of(std::string_view text) {
  std::vector<Diagnostic> diagnostics;
  const MaskExpr expr = parse_mask(text, diagnostics);
  EXPECT_EQ(expr.empty(), !diagnostics.empty()) << text;
  return diagnostics;
}

TEST(ParseMask, FollowsPrecedence) {
  EXPECT_EQ(canonical("((k <= q)) & (q - k < (1024))"), "k <= q & q - k < 1024");
  EXPECT_EQ(canonical("causal | causal ^ k < 1 & ~ k < 2"), "causal | causal ^ k < 1 & ~k < 2");
  EXPECT_EQ(canonical("((causal | causal) ^ k < 1) & ~(k < 2)"),
            "((causal | causal) ^ k < 1) & ~k < 2");
  EXPECT_EQ(canonical("(-q) // 2 * 3 - (k - 4) - 5 < 0"), "-q // 2 * 3 - (k - 4) - 5 < 0");
  EXPECT_EQ(canonical("-(q // 2) * (3 * k) < 0"), "-(q // 2) * (3 * k) < 0");
  EXPECT_EQ(canonical("(q < k) == (k < 4)"), "(q < k) == (k < 4)");
  EXPECT_EQ(canonical("~ ~causal & ~(causal & true)"), "~~causal & ~(causal & true)");
}

TEST(ParseMask, ReadsWordsAsOperators) {
  EXPECT_EQ(parsed("not causal and k < 3 or k == q xor true"),
            parsed("~causal & k < 3 | k == q ^ true"));
}

TEST(ParseMask, SharesTheInnerOperandsOfAChain) {
  const MaskExpr expr = parsed("0 <= q - k < @w <= 9");
  EXPECT_EQ(dump(expr),
            "%0 = 0\n%1 = q\n%2 = k\n%3 = - %1 %2\n%4 = @w\n%5 = 9\n%6 = <= %0 %3\n"
            "%7 = < %3 %4\n%8 = & %6 %7\n%9 = <= %4 %5\n%10 = & %8 %9\n");
  EXPECT_EQ(expr, parsed("0 <= q - k & q - k < @w & @w <= 9"));
  EXPECT_EQ(to_text(expr), "0 <= q - k < @w <= 9");
}

TEST(ParseMask, SharesLets) {
  const MaskExpr expr = parsed("let i = q // 257; let j = i + 1; @seen[b, i] | @seen[b, j]");
  EXPECT_EQ(dump(expr),
            "%0 = q\n%1 = 257\n%2 = // %0 %1\n%3 = 1\n%4 = + %2 %3\n%5 = b\n%6 = @seen %5 %2\n"
            "%7 = b\n%8 = @seen %7 %4\n%9 = | %6 %8\n");
  EXPECT_EQ(canonical("let a = q // 9 % 2; a == 0 | a == k"),
            "let x1 = q // 9 % 2; x1 == 0 | x1 == k");
  EXPECT_EQ(canonical("let unused = 5; causal"), "causal");
  EXPECT_EQ(canonical("let a = any(x1 in 3 : x1 < k + q); a | ~a"),
            "let x2 = any(x1 in 3 : x1 < k + q); x2 | ~x2");
}

TEST(ParseMask, FoldsTheSignOfANumber) {
  EXPECT_EQ(dump(parsed("-5 < k")), "%0 = -5\n%1 = k\n%2 = < %0 %1\n");
  EXPECT_EQ(canonical("-9223372036854775808 <= 9223372036854775807 - - 1"),
            "-9223372036854775808 <= 9223372036854775807 - -1");
  EXPECT_EQ(canonical("-(5) == - -5"), "-(5) == --5");
  EXPECT_EQ(canonical("q -5 < 0"), "q - 5 < 0");
}

TEST(ParseMask, OrdersArgumentsByTheForm) {
  const MaskExpr a = parsed("window(right=0, left=4) & documents(k_ids=@b, q_ids=@a)");
  EXPECT_EQ(a, parsed("window(4, 0) & documents(q_ids=@a, k_ids=@b)"));
  EXPECT_EQ(to_text(a), "window(4, 0) & documents(q_ids=@a, k_ids=@b)");
  EXPECT_EQ(canonical("clamp(hi=3, x=q, lo=1) == 2"), "clamp(q, 1, 3) == 2");
  EXPECT_EQ(canonical("at(causal, k=q) | at(causal, q=k)"),
            "at(causal, q=q, k=q) | at(causal, q=k, k=k)");
  EXPECT_EQ(canonical("causal()"), "causal");
}

TEST(ParseMask, FindsTheFormOfEveryName) {
  const std::pair<const char*, MaskForm> cases[] = {
      {"causal", MaskForm::causal},
      {"window(4)", MaskForm::window},
      {"window(inf, 0)", MaskForm::window_pair},
      {"dilated(8, 2)", MaskForm::dilated},
      {"documents(ids=@t)", MaskForm::documents_ids},
      {"documents(lengths=@t)", MaskForm::documents_lengths},
      {"documents(cu_seqlens=@t)", MaskForm::documents_cu_seqlens},
      {"documents(q_ids=@a, k_ids=@b)", MaskForm::documents_q_k_ids},
      {"prefix(@p)", MaskForm::prefix},
      {"prefix_documents(ids=@t, prefix=@p)", MaskForm::prefix_documents},
      {"share_question(ids=@t, parts=@a)", MaskForm::share_question},
      {"causal_blockwise(ids=@t)", MaskForm::causal_blockwise},
      {"chunked(64)", MaskForm::chunked},
      {"block_causal(64)", MaskForm::block_causal},
      {"global(@t)", MaskForm::global},
      {"sink(4)", MaskForm::sink},
      {"padding(lengths=@t)", MaskForm::padding},
      {"padding(lengths=@t, side=left)", MaskForm::padding_side},
      {"intervals(begin=@b, end=@e)", MaskForm::intervals},
      {"rows(begin=@b, end=@e)", MaskForm::rows},
      {"tiles(@t, 64, 128)", MaskForm::tiles},
      {"tree(parents=@t)", MaskForm::tree},
      {"block_diffusion(4096, 16)", MaskForm::block_diffusion},
      {"natten2d(64, 128, 13, 13)", MaskForm::natten2d},
      {"bits(@t)", MaskForm::bits},
      {"topk(@s, 64, among=causal)", MaskForm::topk},
  };
  for (const auto& [text, wanted] : cases) {
    const MaskExpr expr = parsed(text);
    ASSERT_FALSE(expr.empty());
    const NameForm* form = form_of(expr.node(expr.root()));
    ASSERT_NE(form, nullptr) << text;
    EXPECT_EQ(form->form, wanted) << text;
    EXPECT_EQ(to_text(expr), text);
  }
}

TEST(ParseMask, MovesTheConjunctionIntoTopk) {
  EXPECT_EQ(canonical("causal & topk(@s, 64) & window(512)"),
            "topk(@s, 64, among=causal & window(512))");
  EXPECT_EQ(canonical("let m = causal & topk(@s, 64); m & k < 5"),
            "topk(@s, 64, among=causal & k < 5)");
  EXPECT_EQ(canonical("topk(@s, 64, among=causal) | sink(4)"),
            "topk(@s, 64, among=causal) | sink(4)");
}

TEST(ParseMask, RejectsTopkWithoutAmongElsewhere) {
  for (const char* text :
       {"topk(@s, 4)", "causal | topk(@s, 4)", "causal & ~topk(@s, 4)",
        "causal & topk(@s, 4) & topk(@s, 5)", "causal & topk(@s, 4) & topk(@s, 5, among=causal)",
        "let t = topk(@s, 4); causal & t & at(t, q=k)"}) {
    const auto diagnostics = diagnostics_of(text);
    ASSERT_EQ(diagnostics.size(), 1u) << text;
    EXPECT_THAT(diagnostics[0].message, ::testing::HasSubstr("among=")) << text;
  }
}

TEST(ParseMask, CountsColumnsInCodePoints) {
  const auto diagnostics =
      diagnostics_of("# \u00e9\u4e2d\ncausal &\t# \U0001F600 \n\u00e9 & windw(3)");
  ASSERT_EQ(diagnostics.size(), 2u);
  EXPECT_EQ(diagnostics[0].line, 3);
  EXPECT_EQ(diagnostics[0].column, 1);
  EXPECT_EQ(diagnostics[1].line, 3);
  EXPECT_EQ(diagnostics[1].column, 5);
}

TEST(ParseMask, ReportsSeveralErrorsOnceEach) {
  EXPECT_EQ(diagnostics_of("causl & windw(4) & documents(@t) & window(q)").size(), 4u);
  EXPECT_EQ(diagnostics_of("k + causal < 3 & window(k + causal)").size(), 2u);
  EXPECT_EQ(diagnostics_of("a a a a").size(), 4u);
  std::string many;
  for (int i = 0; i < 100; ++i) many += "causl & ";
  EXPECT_EQ(diagnostics_of(many + "causal").size(), 20u);
}

TEST(ParseMask, RejectsReservedAndRepeatedNames) {
  EXPECT_EQ(diagnostics_of("let q = 3; causal").size(), 1u);
  EXPECT_EQ(diagnostics_of("let causal = 3; causal").size(), 1u);
  EXPECT_EQ(diagnostics_of("let a = 3; let a = 4; causal").size(), 1u);
  EXPECT_EQ(diagnostics_of("any(k in 3 : k < 2)").size(), 1u);
  EXPECT_EQ(diagnostics_of("any(i in 3 : all(i in 3 : i < 2))").size(), 1u);
  EXPECT_EQ(diagnostics_of("let i = 3; any(i in 3 : i < 2)").size(), 1u);
  EXPECT_EQ(canonical("any(i in 3 : i < 2) & all(i in 4 : i < k)"),
            "any(i in 3 : i < 2) & all(i in 4 : i < k)");
}

TEST(ParseMask, RejectsLoopVariablesOutsideTheirLoop) {
  EXPECT_EQ(diagnostics_of("any(i in 3 : i < 2) & i < 2").size(), 1u);
  EXPECT_EQ(diagnostics_of("any(i in i : i < 2)").size(), 1u);
}

TEST(ParseMask, RejectsBoundsThatDifferFromCellToCell) {
  for (const char* bound : {"q", "kv_len - k", "pos + 1", "@t[q]", "int(causal)", "h + q"}) {
    EXPECT_EQ(diagnostics_of(fmt::format("all(i in {} : i != k)", bound)).size(), 1u) << bound;
  }
  EXPECT_EQ(diagnostics_of("any(i in 4 : any(j in i : j == k))").size(), 1u);
  EXPECT_EQ(diagnostics_of("any(i in 4 : all(j in 3 : any(l in @t[i] + j : l == k)))").size(), 1u);
  EXPECT_EQ(diagnostics_of("let n = q + 1; any(i in n : i == k)").size(), 1u);
  for (const char* bound :
       {"q_len", "@t[b] + h", "where(kv_len > 3, 2, @n)", "int(at(causal, q=1, k=2)) + 1"}) {
    EXPECT_TRUE(
        diagnostics_of(fmt::format("any(i in 2 : all(j in {} : i + j != k))", bound)).empty())
        << bound;
  }
}

TEST(ParseMask, RejectsParametersThatDifferFromCellToCell) {
  EXPECT_EQ(diagnostics_of("window(q)").size(), 1u);
  EXPECT_EQ(diagnostics_of("window(1 + pos % 2)").size(), 1u);
  EXPECT_EQ(diagnostics_of("any(i in 3 : sink(i))").size(), 1u);
  EXPECT_EQ(diagnostics_of("prefix(@p[k])").size(), 1u);
  EXPECT_EQ(canonical("window(@w[h] + b * kv_len)"), "window(@w[h] + b * kv_len)");
  EXPECT_EQ(canonical("sink(int(any(i in 3 : i == h)))"), "sink(int(any(i in 3 : i == h)))");
  EXPECT_EQ(canonical("sink(int(at(k < 3, k=b, q=0)))"), "sink(int(at(k < 3, q=0, k=b)))");
}

TEST(ParseMask, LeavesTheTypeOfTablesOpen) {
  for (const char* text : {"@t[k]", "@t[k] == @t[q]", "@t[k] == causal", "@t[k] == 3",
                           "where(@c[k], @a[k], @b[k])", "where(@c[k], @a[k], 3) < 4"})
    EXPECT_EQ(canonical(text), text);
}

TEST(ToText, WritesCanonicalText) {
  EXPECT_EQ(canonical("k<5 &\n causal # c\n"), "k < 5 & causal");
  EXPECT_EQ(canonical("k < 5 & (q < 5 & k < 5)"), "k < 5 & (q < 5 & k < 5)");
  EXPECT_EQ(canonical("min(q,k,3,@t[ 1 , q ]) < 0"), "min(q, k, 3, @t[1, q]) < 0");
  EXPECT_EQ(canonical("where(causal,1,0)==int(true)"), "where(causal, 1, 0) == int(true)");
}

TEST(MaskExpr, EqualityLooksAtStructureOnly) {
  EXPECT_EQ(parsed("let a = q + k * 2; a < 3 | a > 9"), parsed("q+k*2 < 3 | q+k*2 > 9"));
  EXPECT_FALSE(parsed("q < k") == parsed("k > q"));
  EXPECT_FALSE(parsed("documents(ids=@t)") == parsed("documents(lengths=@t)"));
  EXPECT_EQ(MaskExpr(), MaskExpr());
  EXPECT_FALSE(MaskExpr() == parsed("causal"));
}

TEST(MaskExpr, ListsWhatItMentions) {
  const MaskExpr expr = parsed("documents(ids=@b) & @a[b, k] & window(@w) & @a[h, q]");
  EXPECT_THAT(table_names(expr), testing::ElementsAre("a", "b", "w"));
  EXPECT_TRUE(mentions_variable(expr, "h"));
  EXPECT_TRUE(mentions_variable(expr, "pos"));  // documents
  EXPECT_FALSE(mentions_variable(parsed("causal"), "b"));
  EXPECT_FALSE(mentions_variable(parsed("k < 3"), "q"));
}

TEST(NearestNames, PrefersSmallDistances) {
  const std::string_view names[] = {"window", "causal", "chunked", "sink", "shl", "shr"};
  EXPECT_THAT(nearest_names("windwo", names), testing::ElementsAre("window"));
  EXPECT_THAT(nearest_names("shx", names), testing::ElementsAre("shl", "shr"));
  EXPECT_THAT(nearest_names("documents", names), testing::IsEmpty());
  EXPECT_THAT(nearest_names(std::string(1000, 'x'), names), testing::IsEmpty());
}

}  // namespace
}  // namespace fdma
