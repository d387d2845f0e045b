// fdma-maskc explain: how would this mask be compiled?
#include "cli/arguments.hpp"
#include "cli/json_output.hpp"
#include "cli/progress.hpp"
#include "cli/work_limits.hpp"
#include "commands/engine_report.hpp"
#include "commands/specification.hpp"
#include "fdma/masks/lower.hpp"
#include "inputs/mask_shape_arguments.hpp"
#include "inputs/spec_source.hpp"

namespace fdma::maskc {
namespace {

Outcome<ExitCode> run(const Arguments& arguments, Session& session) {
  FDMA_TRY(const std::string spec, spec_of(arguments));
  LowerOptions options;
  FDMA_TRY(options.block, arguments.block({}));
  FDMA_TRY(const std::int64_t threads, arguments.threads());
  options.num_threads = static_cast<int>(threads);
  FDMA_TRY(options.max_work, max_work_of(arguments));
  FDMA_TRY(const SpecSource source, read_spec(spec));
  FDMA_TRY(const MaskExpr expr, parse_spec(source));
  FDMA_TRY(const MaskShape shape, mask_shape(arguments, expr));
  FDMA_TRY(const OwnedTables tables,
           read_tables(arguments.all("table"), expr, arguments.has("cast")));
  if (needs_selection(expr)) {
    return usage_failure(
        "topk selects keys before a program is bound, so there is none to explain");
  }
  const Tables views = tables.views();
  Result<MaskIr> ir = fdma::bind(expr, views, shape);
  if (!ir) return with_batch_hint(ir.error(), arguments);
  WaitingProgress progress("compiling", "tile rows", session.quiet);
  options.on_progress = progress.callback();
  FDMA_TRY(const std::vector<EngineReport> reports, explain_engines(*ir, options));
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
                      "Every tile is evaluated:"}},
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
