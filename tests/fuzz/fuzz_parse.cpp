// libFuzzer: any bytes as a specification.
//
// The parser must answer with an expression or with diagnostics that lie inside the text and can be
// printed; what it reads must survive to_text and back. Run: fuzz_parse -dict=<this
// folder>/spec.dict -max_len=4096 <corpus>; a corpus to begin with is what make_corpus.py takes out
// of the language reference.
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "fdma/masks/parse.hpp"

namespace {

void require(bool condition, const char* what) {
  if (condition) return;
  std::fprintf(stderr, "fuzz_parse: %s\n", what);
  std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  std::vector<fdma::Diagnostic> diagnostics;
  const fdma::MaskExpr expr = fdma::parse_mask(text, diagnostics);
  require(expr.empty() == !diagnostics.empty(), "an expression and diagnostics, or neither");
  for (const fdma::Diagnostic& diagnostic : diagnostics) {
    const fdma::SourceSpan span = diagnostic.span;
    require(0 <= span.begin && span.begin <= span.end && span.end <= static_cast<long>(size),
            "a diagnostic outside the text");
    require(diagnostic.line >= 1 && diagnostic.column >= 1, "a line or column below 1");
    require(!diagnostic.message.empty(), "a diagnostic without words");
  }
  const std::string printed = fdma::format_diagnostics(text, "spec", diagnostics);
  require(printed.empty() == diagnostics.empty(), "diagnostics without text");
  require(printed.size() < 40000, "diagnostics that flood the terminal");
  if (expr.empty()) return 0;

  const std::string written = fdma::to_text(expr);
  std::vector<fdma::Diagnostic> none;
  const fdma::MaskExpr again = fdma::parse_mask(written, none);
  require(none.empty(), "to_text writes what the parser refuses");
  require(again == expr, "to_text writes another expression");
  require(fdma::to_text(again) == written, "to_text is not canonical");
  require(fdma::table_names(again) == fdma::table_names(expr), "tables get lost");
  return 0;
}
