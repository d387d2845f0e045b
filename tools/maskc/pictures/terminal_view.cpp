#include "pictures/terminal_view.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

namespace fdma::maskc {
namespace {

bool is_utf8_locale() {
  for (const char* name : {"LC_ALL", "LC_CTYPE", "LANG"}) {
    const char* value = std::getenv(name);
    if (value == nullptr || *value == '\0') continue;
    std::string lower(value);
    for (char& c : lower) c = static_cast<char>(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    return lower.find("utf-8") != std::string::npos || lower.find("utf8") != std::string::npos;
  }
  return false;
}

}  // namespace

std::vector<OptionSpec> view_options() {
  return {
      {.name = "pair",
       .value = "B,H",
       .help = "Draw the mask of this batch element and head (default 0,0)."},
      {.name = "width",
       .value = "COLUMNS",
       .help = "Columns of the terminal drawing (default: the terminal's, else 80)."},
      {.name = "ascii", .help = "Draw with '#', '+' and '.' instead of shades."},
  };
}

Outcome<DrawOptions> draw_options(const Arguments& arguments) {
  DrawOptions options;
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    options.max_width = size.ws_col;
    options.max_height = std::max<int>(size.ws_row - 6, 16);
  }
  FDMA_TRY(const std::int64_t width, arguments.integer("width", options.max_width, 8, 4096));
  if (arguments.has("width"))
    options.max_height = static_cast<int>(std::max<std::int64_t>(width / 2, 8));
  options.max_width = static_cast<int>(width);
  options.unicode = !arguments.has("ascii") && is_utf8_locale();
  return options;
}

Outcome<std::pair<std::int64_t, std::int64_t>> chosen_pair(const Arguments& arguments,
                                                           const BlockMask& mask) {
  FDMA_TRY(const std::vector<std::int64_t> pair, arguments.integers("pair", 0, kMaxLength));
  if (!arguments.has("pair")) return std::pair<std::int64_t, std::int64_t>{0, 0};
  if (pair.size() != 2 || pair[0] >= mask.shape.num_batches || pair[1] >= mask.shape.num_heads) {
    return usage_failure(
        fmt::format("--pair: expected B,H with B below {} and H below {}, got '{}'",
                    mask.shape.num_batches, mask.shape.num_heads, *arguments.find("pair")));
  }
  return std::pair{pair[0], pair[1]};
}

}  // namespace fdma::maskc
