#include "language/lexer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

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
  TokenKind kind = TokenKind::word;
  if (text == "and") kind = TokenKind::ampersand;
  if (text == "or") kind = TokenKind::pipe;
  if (text == "xor") kind = TokenKind::caret;
  if (text == "not") kind = TokenKind::tilde;
  return make(kind, begin, end);
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
  const auto one = [&](TokenKind kind) { return make(kind, begin, begin + 1); };
  const auto two = [&](TokenKind kind) { return make(kind, begin, begin + 2); };
  const bool then_same = is_next(begin + 1, text_[begin]);
  const bool then_assign = is_next(begin + 1, '=');
  switch (text_[begin]) {
    case '+':
      return one(TokenKind::plus);
    case '-':
      return one(TokenKind::minus);
    case '*':
      if (then_same) return make_invalid(begin, begin + 2, "there is no power: shl(1, n) is 2^n");
      return one(TokenKind::star);
    case '/':
      if (then_same) return two(TokenKind::floor_div);
      return make_invalid(begin, begin + 1, "division rounds down and is written //");
    case '%':
      return one(TokenKind::percent);
    case '<':
      if (then_same) return make_invalid(begin, begin + 2, "shifts are written shl(x, n)");
      return then_assign ? two(TokenKind::less_equal) : one(TokenKind::less);
    case '>':
      if (then_same) return make_invalid(begin, begin + 2, "shifts are written shr(x, n)");
      return then_assign ? two(TokenKind::greater_equal) : one(TokenKind::greater);
    case '=':
      return then_same ? two(TokenKind::equal) : one(TokenKind::assign);
    case '!':
      if (then_assign) return two(TokenKind::not_equal);
      return make_invalid(begin, begin + 1, "negation is written ~ or not");
    case '&':
      if (then_same) return make_invalid(begin, begin + 2, "conjunction is written & or and");
      return one(TokenKind::ampersand);
    case '|':
      if (then_same) return make_invalid(begin, begin + 2, "disjunction is written | or or");
      return one(TokenKind::pipe);
    case '^':
      return one(TokenKind::caret);
    case '~':
      return one(TokenKind::tilde);
    case '(':
      return one(TokenKind::open_paren);
    case ')':
      return one(TokenKind::close_paren);
    case '[':
      return one(TokenKind::open_bracket);
    case ']':
      return one(TokenKind::close_bracket);
    case ',':
      return one(TokenKind::comma);
    case ':':
      return one(TokenKind::colon);
    case ';':
      return one(TokenKind::semicolon);
    case '"':
    case '\'': {
      const std::size_t line_end = std::min(text_.find('\n', begin), text_.size());
      const std::size_t close = text_.substr(0, line_end).find(text_[begin], begin + 1);
      const std::size_t end = close == std::string_view::npos ? begin + 1 : close + 1;
      return make_invalid(begin, end, "there are no quoted names: a table is written @name");
    }
    default:
      return unknown_characters(begin);
  }
}

// Consecutive characters that begin no token are one problem, not many.
Token Lexer::unknown_characters(std::size_t begin) {
  for (const auto& [sign, remedy] : kTypographic)
    if (text_.substr(begin).starts_with(sign))
      return make_invalid(begin, begin + sign.size(),
                          fmt::format("'{}' is written {}", sign, remedy));
  constexpr std::string_view kKnown = "@+-*/%<>=!&|^~()[],:;#\"'";
  std::size_t end = begin;
  while (end < text_.size() && !is_word_part(text_[end]) && !is_blank(text_[end]) &&
         kKnown.find(text_[end]) == std::string_view::npos) {
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
