// --batch, --heads, --q-len, --kv-len as the shape that a specification is bound to.
#pragma once

#include <string>

#include "cli/arguments.hpp"
#include "cli/outcome.hpp"
#include "fdma/formats/mask_statistics.hpp"
#include "fdma/masks/mask_expr.hpp"

namespace fdma::maskc {

/// Failure: usage. The message names the missing option if the specification mentions b or h.
Outcome<MaskShape> mask_shape(const Arguments& arguments, const MaskExpr& expr);

/// The summary that compile and convert print of a mask that they have written, one fact a line.
std::string summary_text(const std::string& file, const std::string& name, const BlockMask& mask,
                         const MaskStatistics& statistics);

}  // namespace fdma::maskc
