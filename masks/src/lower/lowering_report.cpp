#include <fmt/format.h>

#include <algorithm>

#include "fdma/masks/lower.hpp"

namespace fdma {
namespace {

/// A program that took less was not slow.
constexpr double kSlowSeconds = 0.1;

}  // namespace

std::string_view to_string(LoweringEngine engine) {
  switch (engine) {
    case LoweringEngine::interval:
      return "interval";
    case LoweringEngine::box:
      return "box";
    case LoweringEngine::periodic:
      return "periodic";
    default:
      return "automatic";
  }
}

std::vector<std::string> report_lines(const ProgramReport& report) {
  std::vector<std::string> lines;
  for (const ProgramReport::Decline& decline : report.declined) {
    lines.push_back(fmt::format("{} form declined: {}", to_string(decline.engine), decline.reason));
  }
  lines.push_back(fmt::format("{} form: {}", to_string(report.engine), report.method));
  if (report.num_bounded_tiles + report.num_evaluated_tiles + report.num_repeated_tiles > 0) {
    lines.push_back(
        fmt::format("{} tiles: {} decided by bounds, {} evaluated, {} the same as a tile before",
                    report.num_tiles, report.num_bounded_tiles, report.num_evaluated_tiles,
                    report.num_repeated_tiles));
  }
  const auto slowest =
      std::max_element(report.phases.begin(), report.phases.end(),
                       [](const auto& a, const auto& b) { return a.seconds < b.seconds; });
  double total = 0;
  for (const ProgramReport::Phase& phase : report.phases) total += phase.seconds;
  if (report.seconds >= kSlowSeconds && total > 0) {
    lines.push_back(fmt::format("slow: {:.0f} % of the time went into {}",
                                100 * slowest->seconds / total, slowest->what));
  }
  return lines;
}

}  // namespace fdma
