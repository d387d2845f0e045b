// fdma-maskc: main finds the verb, runs it, and turns its outcome into output and an exit code.
#include <fmt/format.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <iterator>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/command.hpp"
#include "cli/failure_output.hpp"
#include "cli/file_reading.hpp"
#include "cli/help_pages.hpp"
#include "cli/help_text.hpp"
#include "cli/interrupts.hpp"
#include "cli/usual_words.hpp"
#include "cli/version_text.hpp"
#include "cli/work_limits.hpp"
#include "fdma/io/isolated_reader.hpp"
#include "inputs/destination.hpp"

namespace fdma::maskc {
namespace {

constexpr const char* kOutOfMemory =
    "out of memory: the mask or its conversion needs more than this machine gives";

int report(std::string_view verb, ExitCode code, std::string message) {
  return report_failure(verb, {code, std::move(message)});
}

int print(std::string_view verb, const std::string& text, ExitCode code) {
  const bool is_written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  if (!is_written || std::fflush(stdout) != 0) {
    return report(verb, ExitCode::file,
                  fmt::format("standard output: cannot write: {}", std::strerror(errno)));
  }
  return static_cast<int>(code);
}

std::string verb_list() {
  std::string list;
  for (const Command* command : all_commands()) {
    if (!command->is_hidden) list += fmt::format("{}{}", list.empty() ? "" : ", ", command->name);
  }
  return list;
}

int unknown_verb(const std::string& word) {
  std::vector<std::string_view> names;
  for (const Command* command : all_commands()) {
    if (!command->is_hidden) names.push_back(command->name);
  }
  if (access(word.c_str(), F_OK) == 0 || word.find(".h5") != std::string::npos) {
    return report("", ExitCode::usage,
                  fmt::format("expected a verb before '{0}', such as fdma-maskc inspect {0}; the "
                              "verbs are {1}",
                              word, verb_list()));
  }
  auto near = nearest(word, names);
  if (const auto usual = usual_verb(word)) near = usual;
  return report("", ExitCode::usage,
                fmt::format("unknown verb '{}'{}; the verbs are {}", word,
                            near ? fmt::format(" (did you mean {}?)", *near) : "", verb_list()));
}

void set_up_logging(const Arguments& arguments) {
  auto logger = std::make_shared<spdlog::logger>("fdma-maskc",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%n: %v");
  logger->set_level(arguments.has("verbose") ? spdlog::level::info : spdlog::level::off);
  spdlog::set_default_logger(std::move(logger));
}

int run_command(const Command& command, const std::vector<std::string>& words) {
  Outcome<Arguments> arguments = parse_arguments(command, words);
  if (!arguments) return report_failure(command.name, arguments.error());
  if (arguments->has("help")) {
    const bool is_short = std::find(words.begin(), words.end(), "--help") == words.end();
    return print(command.name, is_short ? short_help(command) : command_help(command),
                 ExitCode::ok);
  }
  set_up_logging(*arguments);
  Session session;
  session.verb = command.name;
  session.quiet = arguments->has("quiet");
  const Status reading = set_up_file_reading(*arguments);
  if (!reading) return report_failure(command.name, reading.error());
  const Status apart = check_inputs_stay(command, *arguments);
  if (!apart) return report_failure(command.name, apart.error());
  const Outcome<std::optional<double>> time_limit = time_limit_of(*arguments);
  if (!time_limit) return report_failure(command.name, time_limit.error());
  start_interrupt_handling(session.verb);
  if (*time_limit) start_time_limit(session.verb, **time_limit);
  const Outcome<ExitCode> outcome = command.run(*arguments, session);
  if (!outcome) {
    // After a failure only the message is printed. Partial findings of the verb are no result.
    return report_failure(command.name, outcome.error());
  }
  const int printed = print(command.name, session.out, *outcome);
  if (session.complaint.empty()) return printed;
  return report(command.name, *outcome, session.complaint);
}

// Options may stand before the verb; they are moved behind it.
std::vector<std::string> with_verb_first(std::vector<std::string> words) {
  auto verb = words.begin();
  while (verb != words.end() && verb->starts_with('-')) {
    const bool takes_next = *verb == "--timeout";
    ++verb;
    if (takes_next && verb != words.end()) ++verb;
  }
  if (verb == words.begin() || verb == words.end()) return words;
  std::rotate(words.begin(), verb, std::next(verb));
  return words;
}

bool is_version(const std::string& word) {
  return word == "--version" || word == "-V" || word == "version";
}

// help TOPIC [SECTION]
int print_page(const HelpPage& page, const std::vector<std::string>& words) {
  if (words.size() < 3) return print("", std::string(page.text), ExitCode::ok);
  const Outcome<std::string> section = page_section(page, words[2]);
  return section ? print("", *section, ExitCode::ok) : report_failure("", section.error());
}

// help WORD, where WORD is neither a verb nor a page: a section of the language, such as a named mask.
int print_section(const std::string& word) {
  const Outcome<std::string> section = page_section(*find_help_page("language"), word);
  if (section) return print("", *section, ExitCode::ok);
  const bool is_slip = section.error().message.find("did you mean") != std::string::npos;
  return is_slip ? report_failure("", section.error()) : unknown_verb(word);
}

int run(const std::vector<std::string>& words) {
  if (words.empty()) {
    return report("", ExitCode::usage,
                  fmt::format("expected a verb, got nothing; the verbs are {}; "
                              "fdma-maskc --help explains them",
                              verb_list()));
  }
  const std::string& first = words.front();
  if (is_version(first)) return print("", version_text(), ExitCode::ok);
  if (first == "--help" || first == "-h" || first == "help") {
    if (words.size() < 2) return print("", tool_help(), ExitCode::ok);
    if (const HelpPage* page = find_help_page(words[1])) return print_page(*page, words);
    const Command* command = find_command(words[1]);
    if (command == nullptr) return print_section(words[1]);
    return print(command->name, command_help(*command), ExitCode::ok);
  }
  const Command* command = find_command(first);
  if (command == nullptr && first.starts_with('-')) {
    return report("", ExitCode::usage,
                  fmt::format("expected a verb after '{}'; the verbs are {}", fmt::join(words, " "),
                              verb_list()));
  }
  if (command == nullptr) return unknown_verb(first);
  return run_command(*command, {words.begin() + 1, words.end()});
}

}  // namespace
}  // namespace fdma::maskc

int main(int argc, char** argv) {
  using fdma::maskc::ExitCode;
  using fdma::maskc::find_command;
  using fdma::maskc::kOutOfMemory;
  using fdma::maskc::report;
  // The tool starts itself as the child process that reads files of unknown origin.
  if (const auto code = fdma::serve_isolated_reads(argc, argv)) return *code;
  const std::vector<std::string> words =
      fdma::maskc::with_verb_first({argv + std::min(argc, 1), argv + argc});
  fdma::maskc::set_json_failures(std::find(words.begin(), words.end(), "--json") != words.end());
  const std::string verb =
      words.empty() || find_command(words.front()) == nullptr ? "" : words.front();
  try {
    return fdma::maskc::run(words);
  } catch (const std::bad_alloc&) {
    return report(verb, ExitCode::unsupported, kOutOfMemory);
  } catch (const std::length_error&) {  // a container asked for more than any machine has
    return report(verb, ExitCode::unsupported, kOutOfMemory);
  } catch (const std::exception& error) {
    return report(
        verb, ExitCode::internal,
        fmt::format("internal error: {}; please report it with the command line", error.what()));
  }
}
