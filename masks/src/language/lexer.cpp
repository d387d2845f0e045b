#include "language/lexer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "language/operators.hpp"

namespace fdma {
namespace {

bool is_word_start(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_word_part(char c) { return is_word_start(c) || is_digit(c); }
bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

// The bytes of the UTF-8 sequence at the front of `text`; 1 for a byte that begins no sequence.
std::size_t sequence_length(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t wanted = lead >= 0xF0 && lead < 0xF8 ? 4
                             : lead >= 0xE0              ? (lead < 0xF0 ? 3 : 1)
                             : lead >= 0xC2              ? 2
                                                         : 1;
  std::size_t length = 1;
  while (length < wanted && length < text.size() && is_continuation(text[length])) ++length;
  return length == wanted ? wanted : 1;
}

constexpr std::array<std::pair<std::string_view, std::string_view>, 9> kTypographic = {{
    {"\u2264", "<="},
    {"\u2265", ">="},
    {"\u2260", "!="},
    {"\u2227", "&"},
    {"\u2228", "|"},
    {"\u00ac", "~"},
    {"\u2212", "-"},
    {"\u00d7", "*"},
    {"\u221e", "inf"},
}};

constexpr std::size_t kLongestQuote = 40;

// A sign of the language, or a slip for one.
struct Sign {
  std::string_view text;
  TokenKind kind;
  ExprOp op = ExprOp::literal;
  const char* problem = "";
};

constexpr Sign kOtherSigns[] = {
    {"(", TokenKind::open_paren},
    {")", TokenKind::close_paren},
    {"[", TokenKind::open_bracket},
    {"]", TokenKind::close_bracket},
    {",", TokenKind::comma},
    {":", TokenKind::colon},
    {";", TokenKind::semicolon},
    {"=", TokenKind::assign},
    {"**", TokenKind::invalid, {}, "there is no power: shl(1, n) is 2^n"},
    {"/", TokenKind::invalid, {}, "division rounds down and is written //"},
    {"<<", TokenKind::invalid, {}, "shifts are written shl(x, n)"},
    {">>", TokenKind::invalid, {}, "shifts are written shr(x, n)"},
    {"!", TokenKind::invalid, {}, "negation is written ~ or not"},
    {"&&", TokenKind::invalid, {}, "conjunction is written & or and"},
    {"||", TokenKind::invalid, {}, "disjunction is written | or or"},
};

// The operators that have a word.
constexpr auto kOperatorWords = [] {
  constexpr auto has_word = [](const OperatorFacts& facts) { return !facts.word.empty(); };
  std::array<std::pair<std::string_view, ExprOp>,
             std::count_if(std::begin(kOperators), std::end(kOperators), has_word)>
      words{};
  std::size_t count = 0;
  for (const OperatorFacts& facts : kOperators)
    if (has_word(facts)) words[count++] = {facts.word, facts.op};
  return words;
}();

// The signs by their first character, the longest first.
class Signs {
 public:
  Signs() {
    for (const Sign& sign : kOtherSigns) add(sign);
    for (const OperatorFacts& facts : kOperators)
      if (facts.binds < kAtom) add({facts.spelling, TokenKind::op, facts.op});
    for (std::vector<Sign>& signs : by_first_)
      std::stable_sort(signs.begin(), signs.end(),
                       [](const Sign& a, const Sign& b) { return a.text.size() > b.text.size(); });
  }
  /// The sign with which `text` begins, or null.
  const Sign* find(std::string_view text) const {
    for (const Sign& sign : starting_with(text[0]))
      if (text.starts_with(sign.text)) return &sign;
    return nullptr;
  }
  bool has(char first) const { return !starting_with(first).empty(); }

 private:
  void add(const Sign& sign) {
    by_first_[static_cast<unsigned char>(sign.text[0])].push_back(sign);
  }
  const std::vector<Sign>& starting_with(char first) const {
    return by_first_[static_cast<unsigned char>(first)];
  }
  std::array<std::vector<Sign>, 256> by_first_;
};

const Signs& all_signs() {
  static const Signs signs;
  return signs;
}

}  // namespace

Token Lexer::make(TokenKind kind, std::size_t begin, std::size_t end) {
  position_ = end;
  last_end_ = end;
  Token token;
  token.kind = kind;
  token.span = {static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)};
  token.text = text_.substr(begin, end - begin);
  return token;
}

Token Lexer::make_invalid(std::size_t begin, std::size_t end, std::string problem) {
  Token token = make(TokenKind::invalid, begin, end);
  token.problem = std::move(problem);
  return token;
}

void Lexer::skip_blanks() {
  while (position_ < text_.size()) {
    const char c = text_[position_];
    if (c == '#') {
      while (position_ < text_.size() && text_[position_] != '\n') ++position_;
    } else if (is_blank(c)) {
      ++position_;
    } else {
      return;
    }
  }
}

Token Lexer::next() {
  skip_blanks();
  const std::size_t begin = position_;
  if (begin >= text_.size()) return make(TokenKind::end, last_end_, last_end_);
  const char c = text_[begin];
  if (is_digit(c)) return number(begin);
  if (is_word_start(c)) return word(begin);
  if (c == '@') return table(begin);
  return symbol(begin);
}

Token Lexer::number(std::size_t begin) {
  std::size_t end = begin;
  while (end < text_.size() && is_digit(text_[end])) ++end;
  if (is_next(end, '.')) {
    ++end;
    while (end < text_.size() && is_word_part(text_[end])) ++end;
    return make_invalid(begin, end, "numbers are integers");
  }
  if (end < text_.size() && is_word_part(text_[end])) {
    while (end < text_.size() && is_word_part(text_[end])) ++end;
    return make_invalid(begin, end, "a number is written in decimal digits only");
  }
  return make(TokenKind::number, begin, end);
}

Token Lexer::word(std::size_t begin) {
  std::size_t end = begin;
  while (end < text_.size() && is_word_part(text_[end])) ++end;
  const std::string_view text = text_.substr(begin, end - begin);
  for (const auto& [word, op] : kOperatorWords) {
    if (word != text) continue;
    Token token = make(TokenKind::op, begin, end);
    token.op = op;
    return token;
  }
  return make(TokenKind::word, begin, end);
}

Token Lexer::table(std::size_t begin) {
  std::size_t end = begin + 1;
  if (end >= text_.size() || !is_word_start(text_[end]))
    return make_invalid(begin, end, "'@' begins a table name, for example @doc");
  while (end < text_.size() && is_word_part(text_[end])) ++end;
  Token token = make(TokenKind::table, begin, end);
  token.text.remove_prefix(1);
  return token;
}

Token Lexer::symbol(std::size_t begin) {
  if (text_[begin] == '"' || text_[begin] == '\'') {
    const std::size_t line_end = std::min(text_.find('\n', begin), text_.size());
    const std::size_t close = text_.substr(0, line_end).find(text_[begin], begin + 1);
    const std::size_t end = close == std::string_view::npos ? begin + 1 : close + 1;
    return make_invalid(begin, end, "there are no quoted names: a table is written @name");
  }
  const Sign* sign = all_signs().find(text_.substr(begin));
  if (sign == nullptr) return unknown_characters(begin);
  const std::size_t end = begin + sign->text.size();
  if (sign->kind == TokenKind::invalid) return make_invalid(begin, end, sign->problem);
  Token token = make(sign->kind, begin, end);
  token.op = sign->op;
  return token;
}

// Consecutive characters that begin no token are one problem, not many.
Token Lexer::unknown_characters(std::size_t begin) {
  for (const auto& [sign, remedy] : kTypographic)
    if (text_.substr(begin).starts_with(sign))
      return make_invalid(begin, begin + sign.size(),
                          fmt::format("'{}' is written {}", sign, remedy));
  constexpr std::string_view kOtherKnown = "@#\"'";
  std::size_t end = begin;
  while (end < text_.size() && !is_word_part(text_[end]) && !is_blank(text_[end]) &&
         !all_signs().has(text_[end]) && kOtherKnown.find(text_[end]) == std::string_view::npos) {
    const std::string_view rest = text_.substr(end);
    if (end > begin && std::any_of(kTypographic.begin(), kTypographic.end(),
                                   [&](const auto& pair) { return rest.starts_with(pair.first); }))
      break;
    end += sequence_length(rest);
  }
  const auto first = static_cast<unsigned char>(text_[begin]);
  const std::size_t length = sequence_length(text_.substr(begin));
  if (first < 0x20 || first == 0x7F || (first >= 0x80 && length == 1))
    return make_invalid(begin, end, fmt::format("the byte 0x{:02x} means nothing here", first));
  return make_invalid(
      begin, end,
      fmt::format("the character '{}' means nothing here", text_.substr(begin, length)));
}

std::string describe(const Token& token) {
  if (token.kind == TokenKind::end) return "the end of the text";
  const char* at = token.kind == TokenKind::table ? "@" : "";
  if (token.text.size() > kLongestQuote)
    return fmt::format("'{}{}...'", at, token.text.substr(0, kLongestQuote));
  return fmt::format("'{}{}'", at, token.text);
}

}  // namespace fdma
