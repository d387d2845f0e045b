// fdma-maskc man-page (hidden): the manual in roff, from the same tables as --help.
#include <fmt/format.h>

#include "cli/arguments.hpp"
#include "cli/help_text.hpp"

namespace fdma::maskc {
namespace {

std::string roff(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool starts_line = i == 0 || text[i - 1] == '\n';
    if (starts_line && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else if (c == '\'') {
      out += "\\(aq";
    } else if (c == '^') {
      out += "\\(ha";
    } else if (c == '~') {
      out += "\\(ti";
    } else {
      out += c;
    }
  }
  return out;
}

std::string paragraphs(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const std::size_t end = text.find("\n\n");
    out += fmt::format(".PP\n{}\n", roff(text.substr(0, end)));
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 2);
  }
  return out;
}

std::string options_text(const std::vector<OptionSpec>& options) {
  std::string out;
  for (const OptionSpec& option : options) {
    out += ".TP\n";
    if (option.letter != 0) out += fmt::format("\\fB\\-{}\\fR, ", option.letter);
    out += fmt::format("\\fB\\-\\-{}\\fR", roff(option.name));
    if (!option.value.empty()) out += fmt::format(" \\fI{}\\fR", roff(option.value));
    out += fmt::format("\n{}\n", roff(option_text(option)));
  }
  return out;
}

std::string examples_text(const Command& command) {
  std::string out;
  for (const Example& example : command.examples) {
    out += fmt::format(".PP\n{}\n.PP\n.RS 4\n.EX\n{}\n.EE\n.RE\n", roff(example.meaning),
                       roff(example.command));
  }
  return out;
}

std::string command_text(const Command& command) {
  std::string out = fmt::format(".SS fdma\\-maskc {} [OPTION..]{}{}\n", command.name,
                                command.operands.empty() ? "" : " ", roff(command.operands));
  out += fmt::format("{}.\n{}", roff(command.summary), paragraphs(command.description));
  return out + options_text(command.options) + examples_text(command);
}

std::string exit_status_text() {
  std::string out = ".SH EXIT STATUS\n";
  for (const ExitStatusLine& line : kExitStatus) {
    out += fmt::format(".TP\n\\fB{}\\fR\n{}\n", line.code, roff(line.meaning));
  }
  return out;
}

// fdma-maskc-compile(1): one verb on a page of its own.
std::string verb_page(const Command& command) {
  std::string upper(command.name);
  for (char& c : upper) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  std::string out = fmt::format(".TH FDMA\\-MASKC\\-{} 1 \"\" \"fdma {}\" \"User commands\"\n",
                                upper, FDMA_VERSION);
  out += fmt::format(".SH NAME\nfdma\\-maskc\\-{} \\- {}\n", command.name, roff(command.summary));
  out += fmt::format(".SH SYNOPSIS\n\\fBfdma\\-maskc {}\\fR [\\fIOPTION\\fR..]{}{}\n", command.name,
                     command.operands.empty() ? "" : " ", roff(command.operands));
  out += ".SH DESCRIPTION\n" + paragraphs(command.description);
  out += ".SH OPTIONS\n" + options_text(options_of(command));
  if (!command.examples.empty()) out += ".SH EXAMPLES\n" + examples_text(command);
  return out + exit_status_text() + ".SH SEE ALSO\n\\fBfdma\\-maskc\\fR(1)\n";
}

Outcome<ExitCode> run(const Arguments& arguments, Session& session) {
  std::string& out = session.out;
  if (!arguments.operands().empty()) {
    const Command* command = find_command(arguments.operands().front());
    if (command == nullptr) {
      return usage_failure(fmt::format("expected a verb, got '{}'", arguments.operands().front()));
    }
    out = verb_page(*command);
    return ExitCode::ok;
  }
  out += fmt::format(".TH FDMA\\-MASKC 1 \"\" \"fdma {}\" \"User commands\"\n", FDMA_VERSION);
  out += fmt::format(".SH NAME\nfdma\\-maskc \\- {}\n", roff(kToolSummary));
  out += ".SH SYNOPSIS\n\\fBfdma\\-maskc\\fR \\fIVERB\\fR [\\fIOPTION\\fR..] [\\fIOPERAND\\fR..]\n";
  out += fmt::format(".SH DESCRIPTION\n{}\n", roff(kToolDescription));
  out += paragraphs(kAddressText);
  out += ".SH VERBS\n";
  for (const Command* command : all_commands()) {
    if (!command->is_hidden) out += command_text(*command);
  }
  out += fmt::format(".SH OPTIONS OF EVERY VERB\n{}", options_text(common_options()));
  out += exit_status_text();
  out += ".SH SEE ALSO\n";
  for (const Command* command : all_commands()) {
    if (!command->is_hidden) out += fmt::format("\\fBfdma\\-maskc\\-{}\\fR(1), ", command->name);
  }
  out +=
      "and the pages that fdma\\-maskc help prints: the specification language, the file format, "
      "the JSON documents.\n";
  return ExitCode::ok;
}

}  // namespace

const Command& man_page_command() {
  static const Command command{
      .name = "man-page",
      .summary = "the manual page in roff",
      .operands = "[VERB]",
      .max_operands = 1,
      .description = "Prints the manual page, section 1: the whole tool, or a verb.",
      .options = {},
      .examples = {},
      .run = run,
      .operands_are_files = false,
      .is_hidden = true};
  return command;
}

}  // namespace fdma::maskc
