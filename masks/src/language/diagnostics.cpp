// Diagnostics: their places and their text.
//
//     mask.spec:2:10: error: unknown name 'windw'; did you mean window?
//       causal & windw(4)
//                ^~~~~
//
// Columns count code points. Only the part of a long line around the caret is shown.
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

#include "fdma/masks/parse.hpp"
#include "language/parser.hpp"

namespace fdma {
namespace {

constexpr std::size_t kShownBefore = 60;  ///< bytes of the line before the caret
constexpr std::size_t kShownAfter = 40;

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }
bool begins_character(std::string_view text, std::size_t i) {
  return i >= text.size() || !is_continuation(text[i]);
}

// Fills in lines and columns in one pass over the text; the diagnostics are in order of place.
void locate(std::string_view text, std::vector<Diagnostic>& diagnostics) {
  int line = 1, column = 1;
  std::size_t position = 0;
  for (Diagnostic& diagnostic : diagnostics) {
    const auto begin = std::min(static_cast<std::size_t>(diagnostic.span.begin), text.size());
    for (; position < begin; ++position) {
      if (text[position] == '\n') {
        ++line;
        column = 1;
      } else if (!is_continuation(text[position])) {
        ++column;
      }
    }
    diagnostic.line = line;
    diagnostic.column = column;
  }
}

// Each control byte and each broken UTF-8 byte becomes '?', since it would garble a terminal. Tabs
// become a blank.
std::string printable(std::string_view text) {
  std::string shown;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    if (byte < 0x80) {
      shown += byte == '\t' ? ' ' : byte < 0x20 || byte == 0x7F ? '?' : text[i];
      continue;
    }
    const std::size_t length = byte >= 0xF0 ? 4 : byte >= 0xE0 ? 3 : 2;
    const std::string_view rest = text.substr(i + 1, length - 1);
    const bool is_whole = byte >= 0xC2 && byte < 0xF5 && rest.size() == length - 1 &&
                          std::all_of(rest.begin(), rest.end(), is_continuation);
    if (is_whole) {
      shown += text.substr(i, length);
      i += length - 1;
    } else {
      shown += '?';
    }
  }
  return shown;
}

std::size_t count_characters(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); }));
}

void append_excerpt(std::string& out, std::string_view text, SourceSpan span) {
  const std::size_t caret = std::min(static_cast<std::size_t>(span.begin), text.size());
  const std::size_t line_begin = caret == 0 ? 0 : text.rfind('\n', caret - 1) + 1;  // npos + 1 is 0
  std::size_t line_end = std::min(text.find('\n', caret), text.size());
  if (line_end > line_begin && text[line_end - 1] == '\r' && line_end > caret) --line_end;
  std::size_t first = caret - std::min(caret - line_begin, kShownBefore);
  while (first > line_begin && !begins_character(text, first)) --first;
  std::size_t last = std::min(line_end, caret + kShownAfter);
  while (last < line_end && !begins_character(text, last)) ++last;
  const std::string before = printable(text.substr(first, caret - first));
  const std::string after = printable(text.substr(caret, last - caret));
  const std::string_view left = first > line_begin ? "..." : "";
  out += fmt::format("  {}{}{}{}\n", left, before, after, last < line_end ? "..." : "");
  const auto span_end =
      std::clamp(static_cast<std::size_t>(std::max(span.end, span.begin)), caret, last);
  const std::size_t width = count_characters(printable(text.substr(caret, span_end - caret)));
  out += fmt::format("  {}^{}\n", std::string(left.size() + count_characters(before), ' '),
                     std::string(width > 1 ? width - 1 : 0, '~'));
}

}  // namespace

MaskExpr parse_mask(std::string_view text, std::vector<Diagnostic>& diagnostics) {
  Parser parser(text);
  MaskExpr expr = parser.run();
  diagnostics = std::move(parser).diagnostics();
  locate(text, diagnostics);
  return expr;
}

Result<MaskExpr> parse_mask(std::string_view text) {
  std::vector<Diagnostic> diagnostics;
  MaskExpr expr = parse_mask(text, diagnostics);
  if (diagnostics.empty()) return expr;
  std::string message = format_diagnostics(text, "spec", diagnostics);
  message.pop_back();
  return Error{ErrorCode::syntax, std::move(message)};
}

std::string format_diagnostics(std::string_view text, std::string_view source_name,
                               const std::vector<Diagnostic>& diagnostics) {
  std::string out;
  for (const Diagnostic& diagnostic : diagnostics) {
    out += fmt::format("{}:{}:{}: error: {}\n", source_name, diagnostic.line, diagnostic.column,
                       diagnostic.message);
    append_excerpt(out, text, diagnostic.span);
  }
  if (diagnostics.size() >= Parser::kMaxDiagnostics)
    out += fmt::format("{}: stopped after {} errors\n", source_name, diagnostics.size());
  return out;
}

}  // namespace fdma
