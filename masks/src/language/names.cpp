// The table of names: the rows of prelude.def and those of operators.def that are called.
#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "fdma/masks/mask_names.hpp"
#include "language/operators.hpp"

namespace fdma {
namespace {

// What prelude.def calls its parameters.
namespace parameters {

using Kind = ParameterKind;
using Shape = TableShape;

constexpr std::string_view kOpenSide =
    "; write inf for a side without a bound, k and pos for a band beside the diagonal";
constexpr std::string_view kNoWindow = "; write inf for every key and false for none";
constexpr std::string_view kNoSink = "; write inf for every key";
constexpr std::string_view kCutPrefix = "; clamp(p, 0, kv_len) cuts it off";

Parameter integer(std::string_view name) { return {name, Kind::integer}; }
Parameter integer(std::string_view name, std::int64_t least) {
  Parameter made = integer(name);
  made.least = least;
  return made;
}
Parameter tile_side(std::string_view name) {
  Parameter made = integer(name, 1);
  made.must_be_defined = true;
  return made;
}
Parameter bound(std::string_view name, std::int64_t least, std::string_view remedy) {
  Parameter made = integer(name, least);
  made.kind = Kind::integer_or_inf;
  made.remedy = remedy;
  return made;
}
Parameter integer_or_flags(std::string_view name, std::int64_t least) {
  Parameter made = integer(name, least);
  made.kind = Kind::integer_or_table;
  made.table = Shape::flags_per_key;
  return made;
}
Parameter prefix_length(std::string_view name) {
  Parameter made = integer(name, 0);
  made.kind = Kind::integer_or_table;
  made.table = Shape::per_element;
  made.is_at_most_kv_len = true;
  made.remedy = kCutPrefix;
  return made;
}
Parameter by_keyword(std::string_view name, Kind kind) { return {name, kind, true}; }
Parameter table(std::string_view name, Shape shape) { return {name, Kind::table, true, shape}; }
Parameter per_key(std::string_view name) { return table(name, Shape::per_key); }
Parameter per_query(std::string_view name) { return table(name, Shape::per_query); }
Parameter per_element(std::string_view name) { return table(name, Shape::per_element); }
Parameter list(std::string_view name, std::string_view extent) {
  return {name, Kind::table, true, Shape::list, extent};
}
Parameter intervals_of_keys(std::string_view name) { return table(name, Shape::intervals_of_keys); }
Parameter intervals_of_queries(std::string_view name) {
  return table(name, Shape::intervals_of_queries);
}
Parameter flags_of_tiles(std::string_view name) {
  return {name, Kind::table, false, Shape::flags_of_tiles};
}
Parameter flags_of_cells(std::string_view name) {
  return {name, Kind::table, false, Shape::flags_of_cells};
}
Parameter scores(std::string_view name) { return {name, Kind::table, false, Shape::scores}; }
Parameter side(std::string_view name) { return by_keyword(name, Kind::side); }
Parameter condition(std::string_view name) { return by_keyword(name, Kind::condition); }

std::vector<NameForm> masks() {
  std::vector<NameForm> forms;
  const auto add = [&](std::string_view name, MaskForm form, std::string_view text,
                       std::string_view signature, std::string_view example,
                       std::string_view meaning, std::vector<Parameter> list) {
    forms.push_back(
        {name, form, ExprOp::named, std::move(list), false, signature, meaning, text, "", example});
  };
#define FDMA_NAMED_MASK(form, name, text, signature, example, meaning, ...) \
  add(name, MaskForm::form, text, signature, example, meaning, {__VA_ARGS__});
#define FDMA_TABLE_TEXT(form, text) forms.back().table_text = text;
#include "fdma/masks/prelude.def"
  return forms;
}

}  // namespace parameters

// The parameters of a function, from its signature: "x, lo, hi", or "x, y, .." if the last repeats.
std::vector<Parameter> parameters_of(const OperatorFacts& facts) {
  using Kind = ParameterKind;
  if (facts.types == OperandTypes::moved)
    return {{"mask", Kind::condition},
            {"q", Kind::cell_integer, true},
            {"k", Kind::cell_integer, true}};
  std::vector<Parameter> found;
  for (std::string_view rest = facts.parameters; !rest.empty() && rest != "..";) {
    const std::size_t comma = std::min(rest.find(", "), rest.size());
    const bool is_first = found.empty();
    Kind kind = Kind::cell_integer;
    if (facts.types == OperandTypes::count) kind = Kind::condition;
    if (facts.types == OperandTypes::choice) kind = is_first ? Kind::condition : Kind::any_value;
    found.push_back({rest.substr(0, comma), kind});
    rest.remove_prefix(std::min(comma + 2, rest.size()));
  }
  return found;
}

std::vector<NameForm> make_forms() {
  std::vector<NameForm> forms = parameters::masks();
  for (const OperatorFacts& facts : kOperators)
    if (facts.is_function())
      forms.push_back({facts.spelling, MaskForm::none, facts.op, parameters_of(facts),
                       facts.most == kMany, facts.signature, facts.meaning, "", "", ""});
  return forms;
}

constexpr std::array<std::string_view, 7> kCellVariables = {"q",     "k",      "b",  "h",
                                                            "q_len", "kv_len", "pos"};

constexpr std::array<std::string_view, 9> kKeywords = {"let",  "in",    "any",  "all",  "inf",
                                                       "left", "right", "true", "false"};

bool is_operator_word(std::string_view word) {
  return !word.empty() &&
         std::any_of(std::begin(kOperators), std::end(kOperators),
                     [&](const OperatorFacts& facts) { return facts.word == word; });
}

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Optimal string alignment distance; words are short, so the full table is fine.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({replace, cost[i - 1][j] + 1, cost[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::span<const NameForm> name_forms() {
  static const std::vector<NameForm> forms = make_forms();
  return forms;
}

std::span<const NameForm> forms_of(std::string_view name) {
  const std::span<const NameForm> all = name_forms();
  const auto matches = [&](const NameForm& form) { return form.name == name; };
  const auto first = std::find_if(all.begin(), all.end(), matches);
  const auto last = std::find_if_not(first, all.end(), matches);
  return {first, last};
}

const NameForm* form_of(const ExprNode& node) {
  if (node.op != ExprOp::named) return nullptr;
  for (const NameForm& form : forms_of(node.symbol)) {
    const auto same_name = [](const Parameter& parameter, const std::string& arg_name) {
      return arg_name == (parameter.is_keyword_only ? parameter.name : std::string_view{});
    };
    if (node.children.size() == form.parameters.size() &&
        std::equal(form.parameters.begin(), form.parameters.end(), node.arg_names.begin(),
                   node.arg_names.end(), same_name))
      return &form;
  }
  return nullptr;
}

std::span<const std::string_view> cell_variables() { return kCellVariables; }

bool is_reserved(std::string_view word) {
  return std::find(kKeywords.begin(), kKeywords.end(), word) != kKeywords.end() ||
         std::find(kCellVariables.begin(), kCellVariables.end(), word) != kCellVariables.end() ||
         is_operator_word(word) || !forms_of(word).empty();
}

bool is_identifier(std::string_view word) {
  return !word.empty() && is_letter(word[0]) &&
         std::all_of(word.begin(), word.end(), [](char c) { return is_letter(c) || is_digit(c); });
}

std::vector<std::string> nearest_names(std::string_view word,
                                       std::span<const std::string_view> candidates) {
  constexpr std::size_t kLongestWord = 40;
  constexpr std::size_t kMaxSuggestions = 3;
  if (word.size() > kLongestWord) return {};
  const std::size_t limit = std::max<std::size_t>(1, word.size() / 3);
  std::vector<std::pair<std::size_t, std::string>> found;
  for (const std::string_view candidate : candidates) {
    if (candidate.size() > word.size() + limit || candidate.size() + limit < word.size()) continue;
    const std::size_t distance = edit_distance(word, candidate);
    if (distance <= limit && distance < candidate.size())
      found.emplace_back(distance, std::string(candidate));
  }
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  if (found.size() > kMaxSuggestions) found.resize(kMaxSuggestions);
  std::vector<std::string> names;
  for (auto& [distance, name] : found) names.push_back(std::move(name));
  return names;
}

}  // namespace fdma
