// A verb of fdma-maskc as data: the texts and options that --help, the man page and shell
// completion print, and the function that runs the verb.
//
// The tables are the single source. arguments.cpp parses by them; help_text.cpp, man_page.cpp and
// completion.cpp print them. None of the four can drift from the others.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "cli/outcome.hpp"

namespace fdma::maskc {

class Arguments;

/// One option of a verb.
struct OptionSpec {
  std::string_view name;                       ///< long name without dashes
  char letter = 0;                             ///< short name, or 0
  std::string_view value = {};                 ///< name of its value in help; empty: a flag
  std::string_view help = {};                  ///< one or more sentences; wrapped when printed
  std::vector<std::string_view> choices = {};  ///< the only values allowed, if not empty
  bool is_repeatable = false;
  bool takes_file = false;                         ///< completion offers files
  std::vector<std::string_view> suggestions = {};  ///< completion offers these, others are allowed
};

/// A command line that shows a use of the verb. --help prints it and a test runs it as written.
struct Example {
  std::string_view command;
  std::string_view meaning;
};

/// The output that a verb produces besides its exit code.
struct Session {
  std::string verb;
  bool quiet = false;
  std::string out;        ///< for standard output; written when the verb has ended
  std::string complaint;  ///< for standard error after `out`; says why a mask is wrong
};

struct Command {
  std::string_view name;
  std::string_view summary;   ///< one line, for the list of verbs
  std::string_view operands;  ///< as in the usage line, for example "INPUT"
  int min_operands = 0;
  int max_operands = 0;
  std::string_view description;  ///< paragraphs separated by blank lines
  std::vector<OptionSpec> options;
  std::vector<Example> examples;
  Outcome<ExitCode> (*run)(const Arguments& arguments, Session& session);
  std::vector<std::string_view> first_operands = {};  ///< what the first one may be, if only these
  bool operands_are_files = true;
  bool is_hidden = false;
};

const Command& compile_command();
const Command& convert_command();
const Command& explain_command();
const Command& combine_command();
const Command& pack_command();
const Command& rm_command();
const Command& ls_command();
const Command& inspect_command();
const Command& check_command();
const Command& diff_command();
const Command& render_command();
const Command& run_command();
const Command& bench_command();
const Command& estimate_command();
const Command& calibrate_command();
const Command& completion_command();
const Command& man_page_command();

/// Every verb in the order of the help text.
const std::vector<const Command*>& all_commands();
/// The verb of that name, or null.
const Command* find_command(std::string_view name);

/// Options that every verb has: how files are read, quiet, verbose, help.
const std::vector<OptionSpec>& common_options();

/// The verb's own options followed by the common ones.
std::vector<OptionSpec> options_of(const Command& command);

}  // namespace fdma::maskc
