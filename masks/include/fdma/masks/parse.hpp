// From text to MaskExpr, with diagnostics.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/masks/mask_expr.hpp"

namespace fdma {

/// One fault of a specification.
struct Diagnostic {
  SourceSpan span;
  int line = 1;    ///< from 1
  int column = 1;  ///< from 1, in characters (UTF-8 code points)
  std::string message;
};

/// Parses a specification.
///
/// Example     FDMA_TRY(MaskExpr mask, parse_mask("causal & documents(lengths=@len)"));
/// Errors      syntax; the message holds every diagnostic as format_diagnostics prints it
/// Cost        linear in the text, without recursion, so that only memory bounds the depth; texts
///             above 16 MiB are refused
Result<MaskExpr> parse_mask(std::string_view text);

/// As parse_mask, but returns the diagnostics one by one. The MaskExpr is empty iff there are any.
MaskExpr parse_mask(std::string_view text, std::vector<Diagnostic>& diagnostics);

/// "<name>:1:8: error: ...", the source line and a caret line, for each diagnostic.
std::string format_diagnostics(std::string_view text, std::string_view source_name,
                               const std::vector<Diagnostic>& diagnostics);

}  // namespace fdma
