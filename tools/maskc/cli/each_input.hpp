// Verbs that take several inputs and report on each of them.
#pragma once

#include <functional>
#include <string>

#include "cli/arguments.hpp"
#include "cli/json_output.hpp"
#include "cli/outcome.hpp"

namespace fdma::maskc {

/// The most operands of a verb that takes any number.
inline constexpr int kMaxOperands = 1 << 20;

/// What a verb reports on one input.
struct InputReport {
  Json document;          ///< of --json
  std::string text;       ///< without --json
  std::string complaint;  ///< why the mask is wrong; empty if it is not
  ExitCode code = ExitCode::ok;
};

/// Calls `report_on` for every operand and fills the session.
///
/// One operand prints its document or text, and its failure is that of the verb. Of several, each
/// one is reported on even if another fails: texts follow each other, --json prints one document
/// {"files": [..]} with a member `error` where there is no report, the failures go to standard
/// error, and the exit code is the largest.
Outcome<ExitCode> for_each_input(
    const Arguments& arguments, Session& session,
    const std::function<Outcome<InputReport>(const std::string& operand)>& report_on);

}  // namespace fdma::maskc
