// Tests closed forms that are found from the words of an expression: the cells of the compiled
// mask, and the parameters of the text.
#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

#include "fdma/formats/convert.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parametric_form.hpp"
#include "fdma/masks/parse.hpp"

namespace fdma {
namespace {

struct FormTables {
  std::vector<std::int64_t> cu{0, 3, 3, 20, 41}, lengths{17, 0, 23};
  std::vector<std::int64_t> per_element{30, 41};
  std::vector<std::int64_t> one{25};
  std::int64_t n = 25;
  Tables tables;

  FormTables() {
    add("cu", cu);
    add("lengths", lengths);
    add("per_element", per_element);
    add("one", one);
    tables.emplace("n", make_contiguous_view(&n, DType::int64, 0, nullptr));
  }
  void add(const std::string& name, const std::vector<std::int64_t>& values) {
    const auto extent = static_cast<std::int64_t>(values.size());
    tables.emplace(name, make_contiguous_view(values.data(), DType::int64, 1, &extent));
  }
};

struct Compiled {
  BlockMask mask;
  Result<BlockMask> form;
};

Compiled compile_form(const std::string& spec, const MaskShape& shape) {
  static const FormTables all;
  const MaskExpr expr = *parse_mask(spec);
  Tables used;
  for (const std::string& name : table_names(expr)) used.insert(*all.tables.find(name));
  LowerOptions options;
  options.block = {16, 16};
  auto mask = compile(expr, used, shape, options);
  EXPECT_TRUE(mask) << spec << ": " << mask.error().message;
  auto form = parametric_form(*mask, expr, used);
  return {*std::move(mask), std::move(form)};
}

ParametricMask form_of(const std::string& spec, const MaskShape& shape) {
  const Compiled compiled = compile_form(spec, shape);
  EXPECT_TRUE(compiled.form) << spec << ": " << compiled.form.error().message;
  EXPECT_TRUE(equal_cells(compiled.mask, *compiled.form)) << spec;
  EXPECT_EQ(compiled.form->spec, spec);
  return std::get<std::vector<ParametricMask>>(compiled.form->groups).at(0);
}

// A single query, or short lengths, do not show these windows, sinks and prefixes.
TEST(ParametricForm, KeepsTheParametersOfTheText) {
  const MaskShape decode{1, 1, {1}, {41}};
  EXPECT_EQ(form_of("causal & window(16)", decode).left, 15);
  EXPECT_EQ(form_of("causal & window(16)", decode).right, 0);
  EXPECT_EQ(form_of("causal & window(16)", decode).kv_begin, 0);
  EXPECT_EQ(form_of("causal & window(100)", decode).left, 99);
  const ParametricMask sinks = form_of("causal & (window(16) | sink(4))", decode);
  EXPECT_EQ(sinks.left, 15);
  EXPECT_EQ(sinks.right, 0);
  EXPECT_EQ(sinks.sink, 4);
  EXPECT_EQ(sinks.prefix, 0);
  EXPECT_EQ(form_of("causal | prefix(8)", decode).prefix, 8);
  EXPECT_EQ(form_of("window(5, 2)", decode).right, 2);
  EXPECT_EQ(form_of("causal & documents(cu_seqlens=@cu)", decode).cu_seqlens,
            (std::vector<std::int64_t>{0, 3, 20, 41}));
  EXPECT_EQ(form_of("padding(lengths=@one) & causal", decode).kv_end, 25);
  EXPECT_EQ(form_of("padding(lengths=@one, side=left) & causal", decode).kv_begin, 16);
  EXPECT_EQ(form_of("window(@n + 1)", decode).left, 25);
}

TEST(ParametricForm, HasOneForEachElement) {
  const Compiled compiled =
      compile_form("causal & window(16) & padding(lengths=@per_element)", {2, 1, {1}, {41}});
  ASSERT_TRUE(compiled.form) << compiled.form.error().message;
  const auto& masks = std::get<std::vector<ParametricMask>>(compiled.form->groups);
  ASSERT_EQ(masks.size(), 2u);
  EXPECT_EQ(masks[0].kv_end, 30);
  EXPECT_EQ(masks[1].kv_end, 41);
  EXPECT_EQ(masks[0].left, 15);
  EXPECT_TRUE(equal_cells(compiled.mask, *compiled.form));
}

// A random combination has the cells of the mask, whatever its words are, or it has no form.
TEST(ParametricForm, HasTheCellsOfTheMask) {
  const std::vector<std::string> terms{"causal",
                                       "window(9)",
                                       "window(12, 3)",
                                       "window(inf, 0)",
                                       "window(4, inf)",
                                       "prefix(11)",
                                       "sink(3)",
                                       "padding(lengths=@one)",
                                       "padding(lengths=@one, side=left)",
                                       "documents(cu_seqlens=@cu)",
                                       "documents(lengths=@lengths)",
                                       "true",
                                       "false",
                                       "k < 9"};
  int num_forms = 0;
  for (std::uint32_t seed = 0; seed < 400; ++seed) {
    std::mt19937 rng(seed);
    const auto pick = [&](int most) { return std::uniform_int_distribution<int>(0, most)(rng); };
    const auto term = [&] {
      return terms[static_cast<std::size_t>(pick(static_cast<int>(terms.size()) - 1))];
    };
    std::string spec = term();
    for (int i = pick(3); i > 0; --i) {
      spec = "(" + spec + (pick(1) == 0 ? ") & " : ") | ") + "(" + term() +
             (pick(1) == 0 ? " & " : " | ") + term() + ")";
    }
    const std::int64_t q_len = pick(2) == 0 ? 1 : 1 + pick(60);
    const Compiled compiled = compile_form(spec, {1, 1, {q_len}, {41}});
    if (!compiled.form) {
      EXPECT_EQ(compiled.form.error().code, ErrorCode::unsupported) << spec;
      continue;
    }
    ++num_forms;
    EXPECT_TRUE(equal_cells(compiled.mask, *compiled.form)) << spec;
  }
  EXPECT_GT(num_forms, 100);
}

TEST(ParametricForm, TakesTheCellsWhereWordsAreNotEnough) {
  const ParametricMask form = form_of("k <= pos & pos - k < 16", {1, 1, {41}, {41}});
  EXPECT_EQ(form.left, 15);
  EXPECT_EQ(form.right, 0);
  EXPECT_FALSE(compile_form("(q + k) % 3 == 0", {1, 1, {41}, {41}}).form);
}

}  // namespace
}  // namespace fdma
