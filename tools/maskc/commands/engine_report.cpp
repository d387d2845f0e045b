#include "commands/engine_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cli/number_text.hpp"

namespace fdma::maskc {

Outcome<std::vector<EngineReport>> explain_engines(const MaskIr& ir, const LowerOptions& options) {
  std::vector<EngineReport> reports;
  for (std::size_t p = 0; p < ir.programs.size(); ++p) {
    const IrProgram& program = ir.programs[p];
    EngineReport report;
    report.num_pairs =
        std::count(ir.program_of.begin(), ir.program_of.end(), static_cast<std::int32_t>(p));
    report.q_len = program.q_len;
    report.kv_len = program.kv_len;
    report.num_nodes = static_cast<std::int64_t>(program.nodes.size());
    report.num_tables = static_cast<std::int64_t>(program.tables.size());
    MaskIr single;
    single.shape.q_lens = {program.q_len};
    single.shape.kv_lens = {program.kv_len};
    single.programs = {program};
    single.program_of = {0};
    LoweringReport lowering;
    LowerOptions reported = options;
    reported.report = &lowering;
    FDMA_TRY(const BlockMask mask, lower(single, reported));
    report.lowering = std::move(lowering.programs.front());
    report.result_bytes = mask.size_bytes();
    for (const SegmentMask& segments : std::get<std::vector<SegmentMask>>(mask.groups)) {
      report.num_runs += static_cast<std::int64_t>(segments.runs.size());
      report.num_bitmaps += segments.num_bitmaps();
    }
    reports.push_back(report);
  }
  return reports;
}

std::string to_text(const std::vector<EngineReport>& reports) {
  std::string text;
  for (std::size_t i = 0; i < reports.size(); ++i) {
    const EngineReport& report = reports[i];
    text += fmt::format("program {}: {} x {}, {} of (batch, head), {}, {}\n", i, report.q_len,
                        report.kv_len, plural(report.num_pairs, "pair"),
                        plural(report.num_nodes, "node"), plural(report.num_tables, "table"));
    text += fmt::format("  {} engine, {}: {}, {}, {}\n", to_string(report.lowering.engine),
                        duration_text(report.lowering.seconds), plural(report.num_runs, "run"),
                        plural(report.num_bitmaps, "bitmap"), bytes_text(report.result_bytes));
    for (const std::string& line : report_lines(report.lowering)) text += "  " + line + '\n';
  }
  return text;
}

Json to_json(const EngineReport& report) {
  const ProgramReport& lowering = report.lowering;
  Json declined = Json::array();
  for (const ProgramReport::Decline& decline : lowering.declined) {
    declined.push_back({{"engine", to_string(decline.engine)}, {"reason", decline.reason}});
  }
  Json phases = Json::array();
  for (const ProgramReport::Phase& phase : lowering.phases) {
    phases.push_back({{"what", phase.what}, {"seconds", phase.seconds}});
  }
  return {{"q_len", report.q_len},
          {"kv_len", report.kv_len},
          {"num_pairs", report.num_pairs},
          {"num_nodes", report.num_nodes},
          {"num_tables", report.num_tables},
          {"engine", to_string(lowering.engine)},
          {"method", lowering.method},
          {"declined", declined},
          {"seconds", lowering.seconds},
          {"phases", phases},
          {"num_tiles", lowering.num_tiles},
          {"num_bounded_tiles", lowering.num_bounded_tiles},
          {"num_evaluated_tiles", lowering.num_evaluated_tiles},
          {"num_repeated_tiles", lowering.num_repeated_tiles},
          {"num_runs", report.num_runs},
          {"num_bitmaps", report.num_bitmaps},
          {"bytes", report.result_bytes}};
}

}  // namespace fdma::maskc
