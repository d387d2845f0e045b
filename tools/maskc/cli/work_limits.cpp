#include "cli/work_limits.hpp"

#include <fmt/format.h>

#include <limits>

namespace fdma::maskc {
namespace {

constexpr double kMostSeconds = 1e9;

}  // namespace

Outcome<std::optional<double>> time_limit_of(const Arguments& arguments) {
  FDMA_TRY(const std::optional<double> seconds, arguments.number("timeout"));
  if (seconds && !(*seconds > 0 && *seconds <= kMostSeconds)) {
    return usage_failure(
        fmt::format("--timeout: expected seconds above 0, at most {:.0f}, got '{}'", kMostSeconds,
                    *arguments.find("timeout")));
  }
  return seconds;
}

Outcome<std::int64_t> max_work_of(const Arguments& arguments) {
  return arguments.integer("max-work", kDefaultMaxWork, 0,
                           std::numeric_limits<std::int64_t>::max());
}

OptionSpec max_work_option() {
  return {.name = "max-work",
          .value = "N",
          .help =
              "Evaluations that the loops (any, all) of a specification may take; 0: no limit "
              "(default 274877906944, some ten minutes of one core)."};
}

}  // namespace fdma::maskc
