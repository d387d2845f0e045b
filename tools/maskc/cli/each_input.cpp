#include "cli/each_input.hpp"

#include <algorithm>

namespace fdma::maskc {
namespace {

void add_line(std::string& text, const std::string& line) {
  if (!text.empty() && text.back() != '\n') text += '\n';
  text += line;
}

}  // namespace

Outcome<ExitCode> for_each_input(
    const Arguments& arguments, Session& session,
    const std::function<Outcome<InputReport>(const std::string& operand)>& report_on) {
  const bool is_json = arguments.has("json");
  const std::vector<std::string>& operands = arguments.operands();
  if (operands.size() == 1) {
    FDMA_TRY(const InputReport report, report_on(operands.front()));
    session.out = is_json ? json_text(report.document) : report.text;
    session.complaint = report.complaint;
    return report.code;
  }
  Json documents = Json::array();
  ExitCode worst = ExitCode::ok;
  for (const std::string& operand : operands) {
    const Outcome<InputReport> report = report_on(operand);
    if (!report) {
      worst = std::max(worst, report.error().exit_code);
      add_line(session.complaint, report.error().message);
      documents.push_back({{"file", operand}, {"error", failure_json(report.error())}});
      continue;
    }
    worst = std::max(worst, report->code);
    documents.push_back(report->document);
    if (!report->text.empty()) {
      if (!session.out.empty() && report->text.find('\n') + 1 < report->text.size()) {
        session.out += '\n';
      }
      session.out += report->text;
    }
    if (!report->complaint.empty()) add_line(session.complaint, report->complaint);
  }
  if (is_json) session.out = json_text({{"files", documents}});
  return worst;
}

}  // namespace fdma::maskc
