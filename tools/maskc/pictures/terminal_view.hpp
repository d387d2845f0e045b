// Terminal drawings, sized to the terminal at hand.
#pragma once

#include <string>
#include <utility>

#include "cli/arguments.hpp"
#include "cli/outcome.hpp"
#include "fdma/formats/draw.hpp"

namespace fdma::maskc {

/// --pair, --width, --ascii.
std::vector<OptionSpec> view_options();

/// Size: --width, else the terminal's, else 80 columns; shades unless --ascii is given or the
/// locale is not UTF-8. Failure: usage.
Outcome<DrawOptions> draw_options(const Arguments& arguments);

/// --pair B,H as a (batch, head) pair of `mask`; (0, 0) by default. Failure: usage.
Outcome<std::pair<std::int64_t, std::int64_t>> chosen_pair(const Arguments& arguments,
                                                           const BlockMask& mask);

}  // namespace fdma::maskc
