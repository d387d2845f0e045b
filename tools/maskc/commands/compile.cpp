// fdma-maskc compile: parse, read tables, bind, lower, convert, write.
#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <map>
#include <optional>

#include "cli/arguments.hpp"
#include "cli/json_output.hpp"
#include "cli/number_text.hpp"
#include "cli/progress.hpp"
#include "cli/work_limits.hpp"
#include "commands/engine_report.hpp"
#include "commands/segment_dump.hpp"
#include "commands/specification.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/mask_statistics.hpp"
#include "fdma/masks/lower.hpp"
#include "fdma/masks/parametric_form.hpp"
#include "inputs/destination.hpp"
#include "inputs/mask_operand.hpp"
#include "inputs/mask_shape_arguments.hpp"

namespace fdma::maskc {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

Outcome<std::string> dump_stage(const std::string& stage, const MaskExpr& expr,
                                const std::optional<MaskIr>& ir, const BlockMask& mask) {
  if (stage == "expr") return dump(expr);
  if (stage == "ir") return dump(*ir);
  return dump_segments(mask);
}

std::string mask_name(const Arguments& arguments) {
  return arguments.find("name").value_or("mask");
}

// Converts and writes the mask, and reports the result in `session` or `document`.
Status write_compiled(BlockMask mask, const LowerOptions& options, const std::string& spec,
                      double seconds, const Arguments& arguments, Session& session,
                      Json& document) {
  const std::string output = *arguments.find("output");
  FDMA_TRY(const MaskFormat format, arguments.format(MaskFormat::segment));
  const Waiting waiting("counting and converting", session.quiet || arguments.has("verbose"));
  const Clock::time_point start = Clock::now();
  const MaskStatistics statistics = count(mask, options.block);
  if (format != MaskFormat::segment) {
    FDMA_TRY(mask, convert(mask, format, options.block));
  }
  mask.spec = spec;
  const std::string name = mask_name(arguments);
  document["mask"] = mask_json(name, mask);
  document["mask"]["allowed_pairs"] = statistics.tiles.allowed_pairs;
  document["mask"]["total_pairs"] = statistics.total_pairs;
  document["compile_seconds"] = seconds;
  const std::string summary = summary_text(output, name, mask, statistics);
  FDMA_TRY(const AddedMasks added,
           write_to_mask_file(output, name, std::move(mask), arguments.has("force")));
  document["store_seconds"] = seconds_since(start);
  document["output_masks"] = added.names;
  if (!session.quiet && !arguments.has("json")) {
    session.out +=
        fmt::format("{}{}compiled in {}, stored in {}\n", summary, added_text(output, added),
                    duration_text(seconds), duration_text(seconds_since(start)));
  }
  return Nothing{};
}

// For --verbose. A mask of many programs is told of once for each way it was lowered.
void log_report(const LoweringReport& report) {
  std::map<std::vector<std::string>, std::size_t> num_programs;
  for (const ProgramReport& program : report.programs) ++num_programs[report_lines(program)];
  for (const auto& [lines, count] : num_programs) {
    if (num_programs.size() > 1) spdlog::info("{} programs:", count);
    for (const std::string& line : lines) spdlog::info("{}", line);
  }
}

Outcome<ExitCode> run(const Arguments& arguments, Session& session) {
  FDMA_TRY(const std::string spec, spec_of(arguments));
  const auto output = arguments.find("output");
  const auto dumped = arguments.find("dump");
  if (!output && !dumped && !arguments.has("explain")) {
    return usage_failure("nothing to do: give --output FILE, --dump STAGE or --explain");
  }
  if (dumped && arguments.has("json")) {
    return usage_failure("--dump prints text: give it without --json");
  }
  FDMA_TRY(Specification read, read_specification(arguments, spec));
  const MaskExpr& expr = read.expr;
  LowerOptions& options = read.options;

  const bool is_learned = needs_selection(expr);
  if (is_learned && (arguments.has("explain") || dumped == "ir")) {
    return usage_failure(
        fmt::format("{}: topk selects keys before a program is bound, so there is none to show; "
                    "--dump expr and "
                    "--dump segments are there",
                    arguments.has("explain") ? "--explain" : "--dump ir"));
  }

  if (output) {
    FDMA_TRY_VOID(check_mask_destination(*output, mask_name(arguments), arguments.has("force")));
  }
  const Tables views = read.tables.views();
  std::optional<MaskIr> ir;
  BlockMask mask;
  double seconds = 0;
  {
    WaitingProgress progress("compiling", "tile rows", session.quiet || arguments.has("verbose"));
    options.on_progress = progress.callback();
    LoweringReport report;
    if (arguments.has("verbose")) options.report = &report;
    const Clock::time_point start = Clock::now();
    if (is_learned) {
      Result<BlockMask> compiled = fdma::compile(expr, views, read.shape, options);
      if (!compiled) return with_batch_hint(compiled.error(), arguments);
      mask = *std::move(compiled);
    } else {
      Result<MaskIr> bound = fdma::bind(expr, views, read.shape);
      if (!bound) return with_batch_hint(bound.error(), arguments);
      ir = *std::move(bound);
      spdlog::info("bound to {} program{} in {}", ir->programs.size(),
                   ir->programs.size() == 1 ? "" : "s", duration_text(seconds_since(start)));
      if (output || dumped == "segments") {
        FDMA_TRY(mask, lower(*ir, options));
      }
    }
    seconds = seconds_since(start);
    options.on_progress = {};
    options.report = nullptr;
    log_report(report);
  }
  spdlog::info("compiled in {}", duration_text(seconds));
  if (dumped) {
    FDMA_TRY(const std::string text, dump_stage(*dumped, expr, ir, mask));
    session.out += text;
    if (!text.empty() && text.back() != '\n') session.out += '\n';
  }
  Json document;
  document["output"] = output ? Json(*output) : Json(nullptr);
  document["output_masks"] = nullptr;
  if (arguments.has("explain")) {
    const Waiting waiting("compiling", session.quiet || arguments.has("verbose"));
    FDMA_TRY(const std::vector<EngineReport> reports, explain_engines(*ir, options));
    document["programs"] = Json::array();
    for (const EngineReport& report : reports) document["programs"].push_back(to_json(report));
    if (!arguments.has("json")) session.out += to_text(reports);
  }
  if (output) {
    FDMA_TRY(const MaskFormat format, arguments.format(MaskFormat::segment));
    if (format == MaskFormat::parametric) {
      FDMA_TRY(mask, parametric_form(mask, expr, views));
    }
    FDMA_TRY_VOID(write_compiled(std::move(mask), options, read.source.text, seconds, arguments,
                                 session, document));
  }
  if (arguments.has("json")) session.out = json_text(document);
  return ExitCode::ok;
}

}  // namespace

const Command& compile_command() {
  static const Command command = [] {
    Command made{
        .name = "compile",
        .summary = "a mask specification to an exact compiled mask in a file",
        .operands = "[SPEC]",
        .max_operands = 1,
        .description =
            "Compiles the specification for the given lengths and writes the mask. The language is "
            "described by fdma-maskc help language: names such as causal, window(w) and "
            "documents(lengths=@t), combined with & | ^ ~, or any condition on q, k, b, h and "
            "tables, "
            "such as 'k <= q & q - k < 1024'.\n"
            "\n"
            "The result is exact for every cell, and its size follows the structure of the mask, "
            "not "
            "the square of its length.",
        .options = specification_options(),
        .examples =
            {{"fdma-maskc compile 'causal & window(1024)' --q-len 8k -o window.h5",
              "Causal attention to the last 1024 keys, 8192 tokens:"},
             {"fdma-maskc compile --spec 'causal & documents(lengths=@len)' \\\n"
              "  --table len=docs.h5:/lengths --q-len 8192 --kv-len 8192 -o packed.h5",
              "Packed documents whose lengths lie in a dataset of an HDF5 file:"},
             {"fdma-maskc compile --spec 'causal & documents(lengths=@len)' \\\n"
              "  --table len=3000,4000,1192 --q-len 8192 -o packed.h5",
              "The same with the lengths on the command line:"},
             {"fdma-maskc compile --spec 'k <= q & q - k < 16 * shl(1, h % 8)' \\\n"
              "  --heads 32 --q-len 4096 -o heads.h5",
              "A window per head:"},
             {"fdma-maskc compile --spec 'padding(lengths=@n) & causal' --table n=700,1300 \\\n"
              "  --batch 2 --q-len 2048 --format bcsr -o padded.h5",
              "Padding, one length per batch element, stored as block sparse rows:"},
             {"fdma-maskc compile --spec 'causal & topk(@scores, 2048)' \\\n"
              "  --table 'scores=zoh(values=kv.h5:/values, dt_proj=/dt_proj, a_coef=/a_coef)' \\\n"
              "  --heads 32 --q-len 131072 -o learned.h5",
              "The 2048 keys of highest score per query, scores computed from the values:"},
             {"echo 'causal & (window(64) | sink(4))' | \\\n"
              "  fdma-maskc compile --spec - --q-len 512 --dump ir",
              "Look at the bound program, write nothing:"}},
        .run = run};
    const std::vector<OptionSpec> more = {
        {.name = "output",
         .letter = 'o',
         .value = "FILE",
         .help = "The HDF5 file to write; a mask file that is there keeps its other masks.",
         .takes_file = true},
        force_masks_option(),
        {.name = "name",
         .value = "NAME",
         .help = "Name of the mask in the file: /masks/NAME (default mask)."},
        format_option("Format to store (default segment)."),
        block_option("Block of query rows by keys, multiples of 16 (default 128x128)."),
        {.name = "dump",
         .value = "STAGE",
         .help = "Print a stage of the compilation: the expression, the bound program, or the "
                 "compiled segments.",
         .choices = {"expr", "ir", "segments"}},
        {.name = "explain", .help = "Print how each distinct program is lowered, as explain does."},
        threads_option(),
        max_work_option(),
        json_option()};
    made.options.insert(made.options.end(), more.begin(), more.end());
    return made;
  }();
  return command;
}

}  // namespace fdma::maskc
