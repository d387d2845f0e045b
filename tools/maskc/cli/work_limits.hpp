// The limits on what a verb may cost: --timeout of every verb, --max-work of the verbs that compile
// a specification.
#pragma once

#include <optional>

#include "cli/arguments.hpp"
#include "cli/outcome.hpp"
#include "fdma/masks/lower.hpp"

namespace fdma::maskc {

/// The seconds of --timeout, if it is given. Failure: usage.
Outcome<std::optional<double>> time_limit_of(const Arguments& arguments);

/// LowerOptions::max_work by --max-work. Failure: usage.
Outcome<std::int64_t> max_work_of(const Arguments& arguments);

OptionSpec max_work_option();

}  // namespace fdma::maskc
