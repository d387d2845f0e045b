// The text of --help, built from the option tables. main.cpp prints it; the man page shares parts.
#pragma once

#include <string>
#include <string_view>

#include "cli/command.hpp"

namespace fdma::maskc {

/// fdma-maskc --help.
std::string tool_help();
/// fdma-maskc VERB --help.
std::string command_help(const Command& command);
/// fdma-maskc VERB -h: the usage and a line for each option.
std::string short_help(const Command& command);

/// "[OPTION..] INPUT" after the verb's name.
std::string usage_line(const Command& command);
/// "-o, --output FILE".
std::string option_heading(const OptionSpec& option);
/// The option's help, followed by its choices if it has any.
std::string option_text(const OptionSpec& option);

/// Words of `text` in lines of at most `width` columns, each after `indent` spaces. Blank lines
/// separate paragraphs; a line that starts with a space stays as it is.
std::string wrap(std::string_view text, int indent, int width = 80);

/// Texts that the help and the man page share.
extern const std::string_view kToolSummary;
extern const std::string_view kToolDescription;
extern const std::string_view kAddressText;
struct ExitStatusLine {
  std::string_view code;
  std::string_view meaning;
};
extern const ExitStatusLine kExitStatus[7];

}  // namespace fdma::maskc
