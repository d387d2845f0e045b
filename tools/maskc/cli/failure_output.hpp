// How a failure is told on standard error: as text, or with --json as one object on one line.
#pragma once

#include <string_view>

#include "cli/outcome.hpp"

namespace fdma::maskc {

/// Whether the failures of this process are told as JSON. main sets it before anything can fail.
void set_json_failures(bool is_json);

/// Writes "fdma-maskc VERB: error: MESSAGE", or {"error": {"verb": .., "code": .., ..}}, to standard
/// error. Returns the exit status. `verb` may be empty.
int report_failure(std::string_view verb, const CommandFailure& failure);

}  // namespace fdma::maskc
