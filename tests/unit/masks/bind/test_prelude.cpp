// Every row of prelude.def: its example is a use of it, its text parses, and a name binds to the
// program of its text. A new row is tested as soon as it is there.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "fdma/masks/mask_ir.hpp"
#include "fdma/masks/mask_names.hpp"
#include "fdma/masks/parse.hpp"
#include "language/prelude.hpp"
#include "table_set.hpp"

namespace fdma {
namespace {

std::vector<NameForm> named_forms() {
  std::vector<NameForm> forms;
  for (const NameForm& form : name_forms())
    if (form.op == ExprOp::named) forms.push_back(form);
  return forms;
}

TEST(Prelude, HasARowOfEveryForm) {
  std::set<MaskForm> forms;
  for (const NameForm& form : named_forms()) forms.insert(form.form);
  EXPECT_EQ(forms.size(), named_forms().size());
  EXPECT_FALSE(forms.contains(MaskForm::none));
}

TEST(Prelude, ExamplesAreUsesOfTheirRow) {
  for (const NameForm& form : named_forms()) {
    SCOPED_TRACE(form.example);
    const Result<MaskExpr> expr = parse_mask(form.example);
    ASSERT_TRUE(expr) << expr.error().message;
    const ExprNode& root = expr->node(expr->root());
    ASSERT_NE(form_of(root), nullptr);
    EXPECT_EQ(form_of(root)->form, form.form);
    EXPECT_EQ(to_text(*expr), form.example);
    EXPECT_TRUE(form.signature.starts_with(form.name)) << form.signature;
    EXPECT_FALSE(form.meaning.empty());
  }
}

TEST(Prelude, TextsParse) {
  for (const NameForm& form : name_forms()) {
    const bool has_text = !form.text.empty();
    EXPECT_EQ(has_text, form.op == ExprOp::named && form.form != MaskForm::topk) << form.name;
    EXPECT_TRUE(!has_text || !prelude_expr(form, false).empty()) << form.text;
    const bool may_be_table =
        std::any_of(form.parameters.begin(), form.parameters.end(),
                    [](const Parameter& p) { return p.kind == ParameterKind::integer_or_table; });
    EXPECT_EQ(may_be_table, !form.table_text.empty()) << form.name;
    EXPECT_TRUE(!may_be_table || !prelude_expr(form, true).empty()) << form.table_text;
  }
}

// The forms whose text a user can write: parameters as lets, tables by their names.
TEST(Prelude, ANameBindsToTheProgramOfItsText) {
  MaskShape shape;
  shape.q_lens = {40};
  shape.kv_lens = {48};
  int num_checked = 0;
  for (const NameForm& form : named_forms()) {
    reference::TableSet tables;
    std::string text, call;
    bool can_be_written = form.form != MaskForm::topk;
    for (const Parameter& parameter : form.parameters) {
      std::string argument;
      if (parameter.table == TableShape::none) {
        const bool is_volume = form.form == MaskForm::natten3d;
        argument = form.form == MaskForm::natten2d ? (parameter.name[0] == 'k' ? "3" : "")
                   : is_volume
                       ? (parameter.name == "depth" || parameter.name == "height" ? "4" : "3")
                   : form.form == MaskForm::block_diffusion ? (parameter.name == "n" ? "24" : "5")
                                                            : "4";
        if (argument.empty()) argument = parameter.name == "height" ? "6" : "8";
        text += fmt::format("let {} = {}; ", parameter.name, argument);
        can_be_written &= !is_reserved(parameter.name);
      } else if (parameter.kind == ParameterKind::integer_or_table) {
        argument = "7";
        text += fmt::format("let {} = 7; ", parameter.name);
      } else {
        can_be_written &=
            parameter.table == TableShape::per_key || parameter.table == TableShape::per_query;
        const std::int64_t extent = parameter.table == TableShape::per_query ? 40 : 48;
        std::vector<std::int64_t> values;
        for (std::int64_t i = 0; i < extent; ++i) values.push_back(i / 9 - i / 40);
        tables.add(std::string(parameter.name), DType::int32, {extent}, values);
        argument = fmt::format("@{}", parameter.name);
      }
      call += fmt::format("{}{}{}", call.empty() ? "" : ", ",
                          parameter.is_keyword_only ? fmt::format("{}=", parameter.name) : "",
                          argument);
    }
    if (!can_be_written || form.form == MaskForm::causal_blockwise) continue;
    text += form.text;
    call = call.empty() ? std::string(form.name) : fmt::format("{}({})", form.name, call);
    SCOPED_TRACE(call + " is " + text);
    const Result<MaskExpr> named = parse_mask(call), written = parse_mask(text);
    ASSERT_TRUE(named && written);
    const Result<MaskIr> a = fdma::bind(*named, tables.views(), shape);
    const Result<MaskIr> b = fdma::bind(*written, tables.views(), shape);
    ASSERT_TRUE(a) << a.error().message;
    ASSERT_TRUE(b) << b.error().message;
    EXPECT_EQ(dump(*a), dump(*b));
    ++num_checked;
  }
  EXPECT_GE(num_checked, 12);
}

TEST(Prelude, AnInfiniteBoundIsNoBound) {
  MaskShape shape;
  shape.q_lens = shape.kv_lens = {30};
  const auto program = [&](const char* text) {
    return dump(*fdma::bind(*parse_mask(text), {}, shape));
  };
  EXPECT_EQ(program("window(inf)"), program("true"));
  EXPECT_EQ(program("sink(inf)"), program("true"));
  EXPECT_EQ(program("window(inf, inf)"), program("true"));
  EXPECT_EQ(program("window(inf, 0)"), program("causal"));
  EXPECT_EQ(program("window(3, inf)"), program("-3 <= k - pos"));
  EXPECT_EQ(program("dilated(inf, 4)"), program("(pos - k) % 4 == 0"));
}

}  // namespace
}  // namespace fdma
