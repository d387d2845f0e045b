// Drawings of a mask on the terminal, sized to the terminal in use.
#pragma once

#include <string>
#include <utility>

#include "cli/arguments.hpp"
#include "cli/outcome.hpp"
#include "fdma/formats/draw.hpp"

namespace fdma::maskc {

/// --pair, --width, --ascii.
std::vector<OptionSpec> view_options();

/// The width is --width, else the width of the terminal, else 80 columns. Shades are drawn unless
/// --ascii is given or the locale is not UTF-8. Failure: usage.
Outcome<DrawOptions> draw_options(const Arguments& arguments);

/// --pair B,H as a (batch, head) pair of `mask`; (0, 0) by default. Failure: usage.
Outcome<std::pair<std::int64_t, std::int64_t>> chosen_pair(const Arguments& arguments,
                                                           const BlockMask& mask);

}  // namespace fdma::maskc
