// The table of names. A new name needs a MaskForm, a row here, its section in docs/spec-language.md
// (a test insists), its case in the binder and in tests/reference/oracle_named.cpp.
#include <algorithm>
#include <array>
#include <cstddef>
#include <utility>

#include "fdma/masks/mask_names.hpp"
#include "language/operators.hpp"

namespace fdma {
namespace {

using Kind = ParameterKind;

Parameter by_position(std::string_view name, Kind kind) { return {name, kind, false}; }
Parameter by_keyword(std::string_view name, Kind kind) { return {name, kind, true}; }

NameForm mask(std::string_view name, MaskForm form, std::vector<Parameter> parameters,
              std::string_view signature, std::string_view meaning) {
  return {name, form, ExprOp::named, std::move(parameters), false, signature, meaning};
}

std::vector<NameForm> make_masks() {
  const auto table = [](std::string_view name) { return by_keyword(name, Kind::table); };
  const auto integer = [](std::string_view name) { return by_position(name, Kind::integer); };
  const auto bound = [](std::string_view name) { return by_position(name, Kind::integer_or_inf); };
  return {
      mask("causal", MaskForm::causal, {}, "causal", "k <= pos"),
      mask("window", MaskForm::window, {bound("w")}, "window(w)", "abs(pos - k) < w; w may be inf"),
      mask("window", MaskForm::window_pair, {bound("left"), bound("right")}, "window(left, right)",
           "-left <= k - pos <= right; either may be inf"),
      mask("dilated", MaskForm::dilated, {bound("w"), integer("step")}, "dilated(w, step)",
           "abs(pos - k) < w and (pos - k) % step == 0; w may be inf"),
      mask("documents", MaskForm::documents_ids, {table("ids")}, "documents(ids=@t)",
           "t[pos] == t[k], not negative"),
      mask("documents", MaskForm::documents_lengths, {table("lengths")}, "documents(lengths=@t)",
           "pos and k lie in the same of consecutive documents of these lengths"),
      mask("documents", MaskForm::documents_cu_seqlens, {table("cu_seqlens")},
           "documents(cu_seqlens=@t)",
           "pos and k lie in the same of consecutive documents with these bounds"),
      mask("documents", MaskForm::documents_q_k_ids, {table("q_ids"), table("k_ids")},
           "documents(q_ids=@a, k_ids=@b)", "a[q] == b[k], not negative; no alignment"),
      mask("prefix", MaskForm::prefix, {by_position("p", Kind::integer_or_table)}, "prefix(p)",
           "k < p; p is an integer or a table with one entry per batch element"),
      mask("prefix_documents", MaskForm::prefix_documents, {table("ids"), table("prefix")},
           "prefix_documents(ids=@t, prefix=@p)",
           "same document, and k <= pos or k among the first p[id] keys of its document"),
      mask("share_question", MaskForm::share_question, {table("ids"), table("parts")},
           "share_question(ids=@t, parts=@a)",
           "same document, and a[k] == 0 (the question) or a[k] == a[pos] (the same answer)"),
      mask("causal_blockwise", MaskForm::causal_blockwise, {table("ids")},
           "causal_blockwise(ids=@t)", "k <= pos, and same document or pos in the last document"),
      mask("chunked", MaskForm::chunked, {integer("n")}, "chunked(n)", "pos // n == k // n"),
      mask("block_causal", MaskForm::block_causal, {integer("n")}, "block_causal(n)",
           "k // n <= pos // n"),
      mask("global", MaskForm::global, {by_position("g", Kind::integer_or_table)}, "global(g)",
           "k < g or pos < g; with a boolean table t of the keys: t[k] or t[pos]"),
      mask("sink", MaskForm::sink, {bound("s")}, "sink(s)", "k < s; s may be inf"),
      mask("padding", MaskForm::padding, {table("lengths")}, "padding(lengths=@t)", "k < t[b]"),
      mask("padding", MaskForm::padding_side, {table("lengths"), by_keyword("side", Kind::side)},
           "padding(lengths=@t, side=left)", "k >= kv_len - t[b]; side=right: k < t[b]"),
      mask("intervals", MaskForm::intervals, {table("begin"), table("end")},
           "intervals(begin=@b, end=@e)", "for some i: b[i, k] <= q < e[i, k]"),
      mask("rows", MaskForm::rows, {table("begin"), table("end")}, "rows(begin=@b, end=@e)",
           "for some i: b[i, q] <= k < e[i, q]"),
      mask("tiles", MaskForm::tiles,
           {by_position("tiles", Kind::table), integer("m"), integer("n")}, "tiles(@t, m, n)",
           "t[.., q // m, k // n]"),
      mask("tree", MaskForm::tree, {table("parents")}, "tree(parents=@t)",
           "k is before the tree, or k's node is pos's node or one of its ancestors"),
      mask("block_diffusion", MaskForm::block_diffusion, {integer("n"), integer("size")},
           "block_diffusion(n, size)",
           "noised blocks see themselves and earlier clean blocks; clean blocks are block causal"),
      mask("natten2d", MaskForm::natten2d,
           {integer("height"), integer("width"), integer("kh"), integer("kw")},
           "natten2d(height, width, kh, kw)",
           "k lies in the kh x kw window around pos, shifted to stay on the canvas"),
      mask("bits", MaskForm::bits, {by_position("bits", Kind::table)}, "bits(@t)",
           "t[.., q, k]: a dense mask"),
      mask("topk", MaskForm::topk,
           {by_position("scores", Kind::table), integer("w"), by_keyword("among", Kind::condition)},
           "topk(@scores, w, among=M)",
           "k is one of the w keys with the highest score among those where M is true"),
  };
}

// The parameters of a function, from its signature: "x, lo, hi", or "x, y, .." if the last repeats.
std::vector<Parameter> parameters_of(const OperatorFacts& facts) {
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
  std::vector<NameForm> forms = make_masks();
  for (const OperatorFacts& facts : kOperators)
    if (facts.is_function())
      forms.push_back({facts.spelling, MaskForm::none, facts.op, parameters_of(facts),
                       facts.most == kMany, facts.signature, facts.meaning});
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
