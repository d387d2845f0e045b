// The text of a plan's choices.
#include <fmt/format.h>

#include "fdma/kernels/plan_report.hpp"

namespace fdma {
namespace {

std::string text_of(const PlanAlternative& alternative) {
  std::string text = alternative.name;
  if (alternative.cost_us) text += fmt::format(" {:.4g} us", *alternative.cost_us);
  if (!alternative.reason.empty()) text += fmt::format(" ({})", alternative.reason);
  return text;
}

std::string text_of(const PlanDecision& decision) {
  std::string text = fmt::format("choice {}: {}", decision.subject,
                                 text_of(decision.alternatives[decision.taken]));
  bool is_first = true;
  for (std::size_t i = 0; i < decision.alternatives.size(); ++i) {
    if (i == decision.taken) continue;
    text += fmt::format("{} {}", is_first ? "; not" : ",", text_of(decision.alternatives[i]));
    is_first = false;
  }
  if (!decision.rule.empty()) text += fmt::format("; rule: {}", decision.rule);
  return text + '\n';
}

}  // namespace

const PlanDecision* PlanReport::find(std::string_view subject) const {
  for (const PlanDecision& decision : decisions) {
    if (decision.subject == subject) return &decision;
  }
  return nullptr;
}

std::string to_text(const PlanReport& report) {
  if (report.decisions.empty()) return {};
  std::string text =
      fmt::format("costs by {}, {} worker{}{}\n",
                  report.profile.empty() ? "tiles alone, without a profile" : report.profile,
                  report.num_workers, report.num_workers == 1 ? "" : "s",
                  report.is_assumed ? ", some assumed" : "");
  for (const PlanDecision& decision : report.decisions) text += text_of(decision);
  return text;
}

}  // namespace fdma
