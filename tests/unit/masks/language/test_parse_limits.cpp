// Tests depth and size. The parser answers any text, in time linear in the text.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>

#include "fdma/masks/mask_names.hpp"
#include "fdma/masks/parse.hpp"

namespace fdma {
namespace {

std::string repeat(std::string_view part, std::size_t count) {
  std::string text;
  text.reserve(part.size() * count);
  for (std::size_t i = 0; i < count; ++i) text += part;
  return text;
}

std::vector<Diagnostic> diagnostics_of(const std::string& text) {
  std::vector<Diagnostic> diagnostics;
  const MaskExpr expr = parse_mask(text, diagnostics);
  EXPECT_EQ(expr.empty(), !diagnostics.empty());
  EXPECT_LT(format_diagnostics(text, "spec", diagnostics).size(), 20000u);
  return diagnostics;
}

void expect_round_trip(const std::string& text) {
  const auto expr = parse_mask(text);
  ASSERT_TRUE(expr.has_value()) << expr.error().message.substr(0, 500);
  const std::string written = to_text(*expr);
  const auto again = parse_mask(written);
  ASSERT_TRUE(again.has_value()) << again.error().message.substr(0, 500);
  EXPECT_TRUE(*expr == *again);
}

TEST(ParseLimits, ReportsAHundredThousandOpenParenthesesOnce) {
  for (const char* open : {"(", "abs(", "window(", "@t[", "any(i in ", "~(", "-(", "nope("}) {
    const auto diagnostics = diagnostics_of(repeat(open, 100000));
    EXPECT_GE(diagnostics.size(), 1u) << open;
    EXPECT_LE(diagnostics.size(), 20u) << open;
  }
}

TEST(ParseLimits, ReadsDeepExpressions) {
  constexpr std::size_t kDepth = 100000;
  expect_round_trip(repeat("(", kDepth) + "causal" + repeat(")", kDepth));
  expect_round_trip(repeat("~", kDepth) + "causal");
  expect_round_trip(repeat("abs(-", kDepth) + "k" + repeat(")", kDepth) + " < 0");
  expect_round_trip(repeat("@t[", kDepth) + "k" + repeat("]", kDepth) + " < 0");
  expect_round_trip(repeat("k < 3 & (", kDepth) + "causal" + repeat(")", kDepth));
}

TEST(ParseLimits, ReadsLongExpressions) {
  constexpr std::size_t kCount = 100000;
  expect_round_trip(repeat("k == q | ", kCount) + "causal");
  expect_round_trip(repeat("k < ", kCount) + "q");
  expect_round_trip("k < min(" + repeat("q, ", kCount) + "k)");
  expect_round_trip("0 < k" + repeat(" - k", kCount));
}

TEST(ParseLimits, SharingKeepsTheTextShort) {
  std::string text = "let a0 = causal | k < 3; ";
  for (int i = 0; i < 200; ++i) {
    text += fmt::format("let a{1} = a{0} & (a{0} | k < {0}); ", i, i + 1);
  }
  expect_round_trip(text + "a200");
  std::string chain = "i";
  for (int i = 0; i < 200; ++i) chain = fmt::format("int(0 < {} < 5)", chain);
  expect_round_trip("any(i in 3 : " + chain + " == 1)");
}

TEST(ParseLimits, RejectsTextsAbove16MiB) {
  EXPECT_EQ(diagnostics_of("causal" + std::string(std::size_t{16} << 20, ' ')).size(), 1u);
  EXPECT_TRUE(parse_mask("causal" + std::string((std::size_t{16} << 20) - 6, ' ')).has_value());
}

TEST(ParseLimits, AnswersToAnyTextOf16MiB) {
  constexpr std::size_t kBytes = std::size_t{16} << 20;
  for (const char* part : {"(", "k<", "k==3|", "~", "$", ")", "let a = ", "a ", "causl&", "\xff",
                           "# x\n", "window(", "@t[k,", "9"}) {
    const auto diagnostics = diagnostics_of(repeat(part, kBytes / std::string_view(part).size()));
    EXPECT_GE(diagnostics.size(), 1u) << part;
    EXPECT_LE(diagnostics.size(), 20u) << part;
  }
}

TEST(ParseLimits, RejectsLoopsNestedTooDeep) {
  const auto nested = [](int depth) {
    std::string text;
    for (int i = 0; i < depth; ++i) text += fmt::format("any(i{} in 2 : ", i);
    return text + "i0 < 1" + repeat(")", static_cast<std::size_t>(depth));
  };
  EXPECT_TRUE(diagnostics_of(nested(kMaxLoopDepth)).empty());
  EXPECT_EQ(diagnostics_of(nested(kMaxLoopDepth + 1)).size(), 1u);
  EXPECT_LE(diagnostics_of(nested(1000)).size(), 20u);
}

}  // namespace
}  // namespace fdma
