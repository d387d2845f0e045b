#include "cli/command.hpp"

#include "cli/file_reading.hpp"

namespace fdma::maskc {

const std::vector<const Command*>& all_commands() {
  static const std::vector<const Command*> commands{
      &compile_command(), &convert_command(),  &combine_command(),   &pack_command(),
      &rm_command(),      &ls_command(),       &inspect_command(),   &explain_command(),
      &check_command(),   &diff_command(),     &render_command(),    &run_command(),
      &bench_command(),   &estimate_command(), &calibrate_command(), &completion_command(),
      &man_page_command()};
  return commands;
}

const Command* find_command(std::string_view name) {
  for (const Command* command : all_commands()) {
    if (command->name == name) return command;
  }
  return nullptr;
}

const std::vector<OptionSpec>& common_options() {
  static const std::vector<OptionSpec> options = [] {
    std::vector<OptionSpec> all = file_reading_options();
    all.insert(all.end(), {{.name = "quiet",
                            .letter = 'q',
                            .help = "No progress bar and no summary; errors still appear."},
                           {.name = "timeout",
                            .value = "SECONDS",
                            .help = "Stop after so long, with status 4, and leave files as they "
                                    "were (default: never)."},
                           {.name = "verbose",
                            .letter = 'v',
                            .help = "Log each stage and its time on standard error."},
                           {.name = "help",
                            .letter = 'h',
                            .help = "Print this text; -h prints a line for each option."}});
    return all;
  }();
  return options;
}

std::vector<OptionSpec> options_of(const Command& command) {
  std::vector<OptionSpec> options = command.options;
  options.insert(options.end(), common_options().begin(), common_options().end());
  return options;
}

}  // namespace fdma::maskc
