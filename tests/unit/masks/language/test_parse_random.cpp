// Tests round trips of random expressions, and random damage to their texts.
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <string>

#include "fdma/masks/parse.hpp"
#include "oracle.hpp"
#include "random_expr.hpp"

namespace fdma {
namespace {

reference::RandomMask arbitrary_mask(bool allow_undefined) {
  reference::RandomMaskOptions options;
  options.allow_undefined = allow_undefined;
  options.max_depth = *rc::gen::inRange(0, 7);
  options.max_len = 12;
  return reference::make_random_mask(*rc::gen::arbitrary<std::uint64_t>(), options);
}

TEST(ParseRandom, ReadsBackWhatToTextWrites) {
  EXPECT_TRUE(rc::check([] {
    const reference::RandomMask mask = arbitrary_mask(true);
    const std::string text = to_text(mask.expr);
    const auto again = parse_mask(text);
    RC_ASSERT(again.has_value());
    RC_ASSERT(*again == mask.expr);
    RC_ASSERT(to_text(*again) == text);
    RC_ASSERT(table_names(*again) == table_names(mask.expr));
  }));
}

// Runs the same test over many fixed seeds, without RapidCheck's shrinking.
TEST(ParseRandom, ReadsBackFiveThousandMasks) {
  for (std::uint64_t seed = 0; seed < 5000; ++seed) {
    reference::RandomMaskOptions options;
    options.allow_undefined = seed % 2 == 1;
    options.max_depth = static_cast<int>(seed % 8);
    const reference::RandomMask mask = reference::make_random_mask(seed, options);
    const std::string text = to_text(mask.expr);
    const auto again = parse_mask(text);
    ASSERT_TRUE(again.has_value()) << text;
    ASSERT_TRUE(*again == mask.expr) << text;
    ASSERT_EQ(to_text(*again), text);
  }
}

TEST(ParseRandom, TextAndExpressionMeanTheSame) {
  EXPECT_TRUE(rc::check([] {
    const reference::RandomMask mask = arbitrary_mask(true);
    const auto again = parse_mask(to_text(mask.expr));
    RC_ASSERT(again.has_value());
    const Tables tables = mask.tables.views();
    const auto cells = reference::oracle_cells(mask.expr, tables, mask.shape, 0, 0);
    const auto same = reference::oracle_cells(*again, tables, mask.shape, 0, 0);
    RC_ASSERT(cells.has_value() == same.has_value());
    RC_PRE(cells.has_value());  // no argument is one that its name forbids
    RC_ASSERT(*cells == *same);
  }));
}

TEST(ParseRandom, SurvivesDamage) {
  EXPECT_TRUE(rc::check([] {
    std::string text = to_text(arbitrary_mask(true).expr);
    const int num_changes = *rc::gen::inRange(1, 6);
    for (int i = 0; i < num_changes && !text.empty(); ++i) {
      const auto place =
          static_cast<std::size_t>(*rc::gen::inRange(0, static_cast<int>(text.size())));
      const std::string_view alphabet = "()[],:;=<>@~&|^+-*/% qk1ai\xc3\n#";
      const auto c = alphabet[static_cast<std::size_t>(
          *rc::gen::inRange(0, static_cast<int>(alphabet.size())))];
      switch (*rc::gen::inRange(0, 3)) {
        case 0:
          text[place] = c;
          break;
        case 1:
          text.insert(place, 1, c);
          break;
        default:
          text.erase(place, 1);
          break;
      }
    }
    std::vector<Diagnostic> diagnostics;
    const MaskExpr expr = parse_mask(text, diagnostics);
    RC_ASSERT(expr.empty() == !diagnostics.empty());
    for (const Diagnostic& diagnostic : diagnostics) {
      RC_ASSERT(diagnostic.span.begin >= 0);
      RC_ASSERT(diagnostic.span.end <= static_cast<std::int32_t>(text.size()));
      RC_ASSERT(diagnostic.line >= 1 && diagnostic.column >= 1);
    }
    RC_ASSERT(format_diagnostics(text, "spec", diagnostics).empty() == diagnostics.empty());
    if (!expr.empty()) {
      const auto again = parse_mask(to_text(expr));
      RC_ASSERT(again.has_value());
      RC_ASSERT(*again == expr);
    }
  }));
}

}  // namespace
}  // namespace fdma
