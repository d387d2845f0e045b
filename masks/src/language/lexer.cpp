#include "language/lexer.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
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

constexpr std::array<std::pair<std::string_view, std::string_view>, 12> kTypographic = {{
    {"\u2264", "<="},
    {"\u2265", ">="},
    {"\u2260", "!="},
    {"\u2227", "&"},
    {"\u2228", "|"},
    {"\u00ac", "~"},
    {"\u2212", "-"},
    {"\u00d7", "*"},
    {"\u221e", "inf"},
    {"\u2229", "&"},
    {"\u222a", "|"},
    {"\u2295", "^"},
}};

// Characters that cannot be seen, by first and last code point.
struct Invisible {
  char32_t first, last;
  std::string_view name;
  bool is_blank;  // it takes room, so that it was probably meant as a blank
};
constexpr Invisible kInvisible[] = {
    {0x00A0, 0x00A0, "no-break space", true},      {0x00AD, 0x00AD, "soft hyphen", false},
    {0x1680, 0x1680, "Ogham space", true},         {0x2000, 0x200A, "a wide or narrow space", true},
    {0x200B, 0x200B, "zero width space", false},   {0x200C, 0x200D, "zero width joiner", false},
    {0x200E, 0x200F, "direction mark", false},     {0x2028, 0x2029, "line separator", true},
    {0x202A, 0x202E, "direction mark", false},     {0x202F, 0x202F, "narrow no-break space", true},
    {0x205F, 0x205F, "mathematical space", true},  {0x2060, 0x2060, "word joiner", false},
    {0x2066, 0x2069, "direction mark", false},     {0x3000, 0x3000, "ideographic space", true},
    {0xFE00, 0xFE0F, "variation selector", false}, {0xFEFF, 0xFEFF, "byte order mark", false},
};

// The code point of the whole UTF-8 sequence at the front of `text`.
char32_t code_point(std::string_view text) {
  const std::size_t length = sequence_length(text);
  const auto lead = static_cast<unsigned char>(text[0]);
  if (length == 1) return lead;
  char32_t value = lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    value = value << 6 | (static_cast<unsigned char>(text[i]) & 0x3Fu);
  }
  return value;
}

const Invisible* find_invisible(char32_t character) {
  for (const Invisible& known : kInvisible) {
    if (character >= known.first && character <= known.last) return &known;
  }
  return nullptr;
}

// The decimal form of 8_192, 8k, 1M, 1e6 and 0xff; empty for other words that begin with a digit.
std::string decimal_form(std::string_view word) {
  std::string digits;
  std::size_t i = 0;
  for (; i < word.size() && (is_digit(word[i]) || word[i] == '_'); ++i) {
    if (word[i] != '_') digits += word[i];
  }
  constexpr std::size_t kMaxDigits = 9;
  if (digits.size() > kMaxDigits) return {};
  const std::string_view rest = word.substr(i);
  const long long number = std::stoll(digits);
  if (rest.empty()) return digits;
  if (rest == "k" || rest == "K") return fmt::format("{}", number * 1024);
  if (rest == "m" || rest == "M") return fmt::format("{}", number * 1024 * 1024);
  if (rest.size() == 2 && (rest[0] == 'e' || rest[0] == 'E') && is_digit(rest[1])) {
    return digits + std::string(static_cast<std::size_t>(rest[1] - '0'), '0');
  }
  constexpr std::size_t kMaxHexDigits = 8;
  if (word.starts_with("0x") && word.size() > 2 && word.size() <= 2 + kMaxHexDigits &&
      word.find_first_not_of("0123456789abcdefABCDEF", 2) == std::string_view::npos) {
    return fmt::format("{}", std::stoll(std::string(word.substr(2)), nullptr, 16));
  }
  return {};
}

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
    {"===", TokenKind::invalid, {}, "equality is written =="},
    {"<>", TokenKind::invalid, {}, "inequality is written !="},
    {"=<", TokenKind::invalid, {}, "a comparison is written <="},
    {"=>", TokenKind::invalid, {}, "a comparison is written >=, and an implication ~a | b"},
    {"->", TokenKind::invalid, {}, "an implication is written ~a | b"},
    {".",
     TokenKind::invalid,
     {},
     "numbers are integers, and there are no methods: a function is written abs(x)"},
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
    const std::string decimal = decimal_form(text_.substr(begin, end - begin));
    return make_invalid(begin, end,
                        fmt::format("a number is written in decimal digits only{}{}",
                                    decimal.empty() ? "" : ": ", decimal));
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
  const char32_t character = code_point(text_.substr(begin));
  const auto number = static_cast<std::uint32_t>(character);
  if (const Invisible* invisible = find_invisible(character)) {
    return make_invalid(
        begin, begin + length,
        fmt::format("here is an invisible character, U+{:04X} ({}): {}", number, invisible->name,
                    invisible->is_blank ? "write a blank" : "take it out"));
  }
  return make_invalid(
      begin, end,
      fmt::format("the character '{}'{} means nothing here", text_.substr(begin, length),
                  length > 1 ? fmt::format(" (U+{:04X})", number) : ""));
}

std::string describe(const Token& token) {
  if (token.kind == TokenKind::end) return "the end of the text";
  const char* at = token.kind == TokenKind::table ? "@" : "";
  if (token.text.size() > kLongestQuote)
    return fmt::format("'{}{}...'", at, token.text.substr(0, kLongestQuote));
  return fmt::format("'{}{}'", at, token.text);
}

}  // namespace fdma
