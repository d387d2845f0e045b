// Runs the examples of docs/spec-language.md by the oracle and by the compiler.
// FDMA_REBASE_GOLDEN=1 rewrites the drawings from the oracle (read the difference before committing
// it).
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "fdma/formats/segment_mask.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/mask_names.hpp"
#include "fdma/masks/parse.hpp"
#include "oracle.hpp"
#include "spec_example.hpp"

namespace fdma {
namespace {

using reference::SpecExample;

constexpr const char* kPage = FDMA_SOURCE_DIR "/docs/spec-language.md";

std::string read_page() {
  std::ifstream file(kPage);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

const std::vector<SpecExample>& examples() {
  static const std::vector<SpecExample> all = [] {
    auto read = reference::read_spec_examples(read_page());
    EXPECT_TRUE(read.has_value()) << read.error().message;
    return read ? *std::move(read) : std::vector<SpecExample>{};
  }();
  return all;
}

std::string heading(const MaskShape& shape, std::int64_t b, std::int64_t h) {
  if (shape.num_batches * shape.num_heads == 1) return "";
  return fmt::format("b = {}, h = {}:\n", b, h);
}

std::string without_last_line_end(std::string text) {
  if (!text.empty() && text.back() == '\n') text.pop_back();
  return text;
}

// Returns the oracle's answer in the notation of the page.
std::string answer_of_oracle(const SpecExample& example) {
  const auto expr = parse_mask(example.spec);
  if (!expr) return fmt::format("error syntax: {}", expr.error().message);
  std::string drawing;
  const MaskShape& shape = example.shape;
  for (std::int64_t b = 0; b < shape.num_batches; ++b) {
    for (std::int64_t h = 0; h < shape.num_heads; ++h) {
      const auto cells = reference::oracle_cells(*expr, example.tables.views(), shape, b, h);
      if (!cells) return fmt::format("error {}: ", to_string(cells.error().code));
      const auto bad = std::find(cells->begin(), cells->end(), reference::kUndefinedCell);
      if (bad != cells->end()) {
        const auto index = bad - cells->begin();
        return fmt::format("undefined at q = {}, k = {}", index / shape.kv_len(b),
                           index % shape.kv_len(b));
      }
      drawing +=
          heading(shape, b, h) + reference::draw_cells(*cells, shape.q_len(b), shape.kv_len(b));
    }
  }
  return without_last_line_end(drawing);
}

// Returns the compiler's answer in the same notation; any undefined cell gives "undefined".
std::string answer_of_compiler(const SpecExample& example) {
  const auto expr = parse_mask(example.spec);
  if (!expr) return fmt::format("error syntax: {}", expr.error().message);
  LowerOptions options;
  options.block = {16, 16};
  const auto mask = compile(*expr, example.tables.views(), example.shape, options);
  if (!mask) return fmt::format("error {}: {}", to_string(mask.error().code), mask.error().message);
  std::string drawing;
  const MaskShape& shape = mask->shape;
  const auto& groups = std::get<std::vector<SegmentMask>>(mask->groups);
  for (std::int64_t b = 0; b < shape.num_batches; ++b) {
    for (std::int64_t h = 0; h < shape.num_heads; ++h) {
      const SegmentMask& group = groups[static_cast<std::size_t>(mask->group(b, h))];
      drawing += heading(shape, b, h);
      std::vector<Interval> keys;
      for (std::int64_t q = 0; q < group.q_len; ++q) {
        std::string row(static_cast<std::size_t>(group.kv_len), '0');
        row_intervals_of(group, q, keys);
        for (const Interval& interval : keys)
          std::fill(row.begin() + interval.begin, row.begin() + interval.end, '1');
        drawing += row + '\n';
      }
    }
  }
  return without_last_line_end(drawing);
}

bool starts_with(const std::string& text, std::string_view prefix) {
  return std::string_view(text).starts_with(prefix);
}

// Expects an error as "error <code>: <words>": this code, and the words somewhere in the message.
void expect_error(const std::string& answer, const std::string& expected, bool check_words) {
  const std::size_t colon = expected.find(':');
  EXPECT_TRUE(starts_with(answer, expected.substr(0, colon + 1))) << answer;
  if (!check_words) return;
  EXPECT_NE(answer.find(expected.substr(colon + 2)), std::string::npos) << answer;
}

TEST(SpecLanguageDoc, OracleDrawsEveryExample) {
  std::string page = read_page();
  const bool is_rebase = std::getenv("FDMA_REBASE_GOLDEN") != nullptr;
  const auto& all = examples();
  for (auto example = all.rbegin(); example != all.rend(); ++example) {
    SCOPED_TRACE(fmt::format("line {}: {}", example->line, example->spec));
    // A selection is no function of one cell; test_topk.cpp has an oracle for it.
    if (starts_with(example->expected, "1") && example->spec.find("topk") != std::string::npos)
      continue;
    const std::string answer = answer_of_oracle(*example);
    const bool expects_error = starts_with(example->expected, "error ");
    if (is_rebase && !expects_error)
      page.replace(example->expected_begin, example->expected_end - example->expected_begin,
                   answer);
    else if (expects_error)
      expect_error(answer, example->expected, starts_with(answer, "error syntax"));
    else
      EXPECT_EQ(answer, example->expected);
  }
  if (is_rebase) std::ofstream(kPage) << page;
}

TEST(SpecLanguageDoc, CompilerDrawsEveryExample) {
  for (const SpecExample& example : examples()) {
    SCOPED_TRACE(fmt::format("line {}: {}", example.line, example.spec));
    const std::string answer = answer_of_compiler(example);
    if (starts_with(example.expected, "error "))
      expect_error(answer, example.expected, true);
    else if (starts_with(example.expected, "undefined"))
      EXPECT_TRUE(starts_with(answer, "error invalid_argument:")) << answer;
    else
      EXPECT_EQ(answer, example.expected);
  }
}

TEST(SpecLanguageDoc, HasAnExampleOfEveryNameAndOperator) {
  std::set<MaskForm> forms;
  std::set<ExprOp> ops;
  std::set<std::string> variables;
  for (const SpecExample& example : examples()) {
    const auto expr = parse_mask(example.spec);
    if (!expr) continue;
    for (const ExprNode& node : expr->nodes()) {
      ops.insert(node.op);
      if (node.op == ExprOp::variable) variables.insert(node.symbol);
      if (node.op == ExprOp::named) {
        const NameForm* form = form_of(node);
        ASSERT_NE(form, nullptr) << node.symbol;
        forms.insert(form->form);
      }
    }
  }
  const std::string page = read_page();
  for (const NameForm& form : name_forms()) {
    if (form.op == ExprOp::named) {
      EXPECT_TRUE(forms.contains(form.form)) << form.signature;
      EXPECT_NE(page.find("### " + std::string(form.name) + "\n"), std::string::npos) << form.name;
    }
    EXPECT_NE(page.find(form.name), std::string::npos) << form.name;
  }
  for (int op = 0; op <= static_cast<int>(ExprOp::named); ++op)
    EXPECT_TRUE(ops.contains(static_cast<ExprOp>(op))) << "operator " << op;
  for (const std::string_view variable : cell_variables())
    EXPECT_TRUE(variables.contains(std::string(variable))) << variable;
  EXPECT_TRUE(variables.contains("inf") && variables.contains("left"));
}

}  // namespace
}  // namespace fdma
