// The reference pages that `fdma-maskc help TOPIC` prints, so that an installed tool needs no other
// file.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "cli/outcome.hpp"

namespace fdma::maskc {

struct HelpPage {
  std::string_view topic;    ///< "language"
  std::string_view meaning;  ///< what it has, in a few words
  std::string_view text;
};

/// Every page, in the order of the help.
std::span<const HelpPage> help_pages();
/// The page of that topic, or null.
const HelpPage* find_help_page(std::string_view topic);

/// The part of a page below the heading `section`, which itself is included. Failure: usage, which
/// lists the headings.
Outcome<std::string> page_section(const HelpPage& page, std::string_view section);

}  // namespace fdma::maskc
