// Tokens of the mask language.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "fdma/masks/mask_expr.hpp"

namespace fdma {

enum class TokenKind : std::uint8_t {
  end,
  number,
  word,   ///< names and keywords
  table,  ///< @name
  op,     ///< an infix or prefix operator
  open_paren,
  close_paren,
  open_bracket,
  close_bracket,
  comma,
  colon,
  semicolon,
  assign,
  invalid,  ///< not a token of the language; `problem` says why
};

struct Token {
  TokenKind kind = TokenKind::end;
  ExprOp op = ExprOp::literal;  ///< op: the first operator of this spelling, so `-` is sub
  SourceSpan span;
  std::string_view text;
  std::string problem;
};

/// Divides a text into tokens, one at a time. Blanks and comments (# to the end of the line)
/// separate tokens.
///
/// Words for operators are the same tokens as their signs: `and` is `&`, `not` is `~` and so on.
/// Common slips (&&, !, single /, decimal points, typographic signs) are `invalid` tokens; their
/// problem names the remedy.
///
/// Cost        linear in the text over all calls; a cheap copy of a lexer can look ahead
class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}
  Token next();

 private:
  void skip_blanks();
  Token number(std::size_t begin);
  Token word(std::size_t begin);
  Token table(std::size_t begin);
  Token symbol(std::size_t begin);
  Token unknown_characters(std::size_t begin);
  Token make(TokenKind kind, std::size_t begin, std::size_t end);
  Token make_invalid(std::size_t begin, std::size_t end, std::string problem);
  bool is_next(std::size_t offset, char c) const {
    return offset < text_.size() && text_[offset] == c;
  }

  std::string_view text_;
  std::size_t position_ = 0;
  std::size_t last_end_ = 0;  ///< end of the last token, where `end` is reported
};

/// A token as diagnostics name it: "')'", "'window'", "the end of the text".
std::string describe(const Token& token);

}  // namespace fdma
