// fdma-maskc explain: how would this mask be compiled?
#include "cli/arguments.hpp"
#include "cli/json_output.hpp"
#include "cli/progress.hpp"
#include "cli/work_limits.hpp"
#include "commands/engine_report.hpp"
#include "commands/specification.hpp"
#include "fdma/masks/lower.hpp"

namespace fdma::maskc {
namespace {

Outcome<ExitCode> run(const Arguments& arguments, Session& session) {
  FDMA_TRY(const std::string spec, spec_of(arguments));
  FDMA_TRY(Specification read, read_specification(arguments, spec));
  if (needs_selection(read.expr)) {
    return usage_failure(
        "topk selects keys before a program is bound, so there is none to explain");
  }
  const Tables views = read.tables.views();
  Result<MaskIr> ir = fdma::bind(read.expr, views, read.shape);
  if (!ir) return with_batch_hint(ir.error(), arguments);
  WaitingProgress progress("compiling", "tile rows", session.quiet);
  read.options.on_progress = progress.callback();
  FDMA_TRY(const std::vector<EngineReport> reports, explain_engines(*ir, read.options));
  if (!arguments.has("json")) {
    session.out = to_text(reports);
    return ExitCode::ok;
  }
  Json document;
  document["programs"] = Json::array();
  for (const EngineReport& report : reports) document["programs"].push_back(to_json(report));
  session.out = json_text(document);
  return ExitCode::ok;
}

}  // namespace

const Command& explain_command() {
  static const Command command = [] {
    Command made{
        .name = "explain",
        .summary = "how a mask is compiled, and what makes it slow",
        .operands = "[SPEC]",
        .max_operands = 1,
        .description =
            "Compiles the specification and writes no file. For each distinct program of the mask, "
            "which is one unless heads or batch elements differ, it prints the engine that made "
            "it, the engines that declined and why, how many tiles were decided by bounds, "
            "evaluated or repeated, and, where that took long, what took the time.",
        .options = specification_options(),
        .examples = {{"fdma-maskc explain 'causal & window(1024)' --q-len 8k",
                      "Few intervals a row:"},
                     {"fdma-maskc explain 'causal & (q * k) % 7 < 3' --q-len 8k",
                      "Tiles that repeat, of which few are evaluated:"}},
        .run = run,
        .operands_are_files = false};
    made.options.push_back(
        block_option("Block of query rows by keys, multiples of 16 (default 128x128)."));
    made.options.push_back(threads_option());
    made.options.push_back(max_work_option());
    made.options.push_back(json_option());
    return made;
  }();
  return command;
}

}  // namespace fdma::maskc
