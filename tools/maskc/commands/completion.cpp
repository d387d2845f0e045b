// fdma-maskc completion: scripts for bash, zsh and fish, from the option tables.
#include <fmt/format.h>

#include "cli/arguments.hpp"
#include "cli/help_text.hpp"

namespace fdma::maskc {
namespace {

std::vector<const Command*> visible_commands() {
  std::vector<const Command*> commands;
  for (const Command* command : all_commands()) {
    if (!command->is_hidden) commands.push_back(command);
  }
  return commands;
}

// The first sentence, without what a shell or a description list would interpret.
std::string short_help(std::string_view help) {
  std::string text;
  for (std::size_t i = 0; i < help.size(); ++i) {
    const char c = help[i];
    if ((c == '.' && (i + 1 == help.size() || help[i + 1] == ' ')) || c == ';' || c == ':') break;
    if (c != '\'' && c != '"' && c != '[' && c != ']' && c != '`' && c != '$' && c != '\\')
      text += c;
  }
  return text;
}

std::string bash_script() {
  std::string verbs;
  std::string cases;
  for (const Command* command : visible_commands()) {
    verbs += fmt::format("{}{}", verbs.empty() ? "" : " ", command->name);
    std::string options;
    std::string values;
    for (const OptionSpec& option : options_of(*command)) {
      options += fmt::format("{}--{}", options.empty() ? "" : " ", option.name);
      if (option.letter != 0) options += fmt::format(" -{}", option.letter);
      if (option.value.empty()) continue;
      const std::string pattern = option.letter == 0
                                      ? fmt::format("--{}", option.name)
                                      : fmt::format("--{}|-{}", option.name, option.letter);
      if (!option.choices.empty()) {
        values +=
            fmt::format("        {}) COMPREPLY=($(compgen -W '{}' -- \"$word\")); return ;;\n",
                        pattern, fmt::join(option.choices, " "));
      } else if (option.takes_file) {
        values +=
            fmt::format("        {}) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n", pattern);
      } else {
        values += fmt::format("        {}) COMPREPLY=(); return ;;\n", pattern);
      }
    }
    const std::string operands = command->name == "completion"
                                     ? "COMPREPLY=($(compgen -W 'bash zsh fish' -- \"$word\"))"
                                     : "COMPREPLY=($(compgen -f -- \"$word\"))";
    cases += fmt::format(
        "    {})\n      case $previous in\n{}      esac\n"
        "      if [[ $word == -* ]]; then COMPREPLY=($(compgen -W '{}' -- \"$word\"))\n"
        "      else {}; fi ;;\n",
        command->name, values, options, operands);
  }
  return fmt::format(
      "# bash completion of fdma-maskc; eval \"$(fdma-maskc completion bash)\"\n"
      "_fdma_maskc() {{\n"
      "  local word=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}}\n"
      "  COMPREPLY=()\n"
      "  if (( COMP_CWORD == 1 )); then\n"
      "    COMPREPLY=($(compgen -W '{} help --help --version' -- \"$word\")); return\n"
      "  fi\n"
      "  case ${{COMP_WORDS[1]}} in\n"
      "    help) COMPREPLY=($(compgen -W '{}' -- \"$word\")) ;;\n"
      "{}  esac\n"
      "}}\n"
      "complete -o filenames -F _fdma_maskc fdma-maskc\n",
      verbs, verbs, cases);
}

std::string zsh_script() {
  std::string verbs;
  std::string cases;
  for (const Command* command : visible_commands()) {
    verbs += fmt::format("    '{}:{}'\n", command->name, short_help(command->summary));
    cases += fmt::format("    {})\n      _arguments", command->name);
    for (const OptionSpec& option : options_of(*command)) {
      std::string action;
      if (!option.value.empty()) {
        action = !option.choices.empty()
                     ? fmt::format(":{}:({})", option.name, fmt::join(option.choices, " "))
                 : option.takes_file ? fmt::format(":{}:_files", option.name)
                                     : fmt::format(":{}:", option.name);
      }
      const std::string help = short_help(option.help);
      const char* repeat = option.is_repeatable ? "*" : "";
      cases += fmt::format(" \\\n        '{}--{}[{}]{}'", repeat, option.name, help, action);
      if (option.letter != 0) {
        cases += fmt::format(" \\\n        '{}-{}[{}]{}'", repeat, option.letter, help, action);
      }
    }
    const char* operand = command->name == "completion" ? "'1:shell:(bash zsh fish)'"
                          : command->max_operands > 0   ? "'*:mask:_files'"
                                                        : "";
    cases += fmt::format("{}{} ;;\n", *operand == '\0' ? "" : " \\\n        ", operand);
  }
  return fmt::format(
      "#compdef fdma-maskc\n"
      "# zsh completion of fdma-maskc; source <(fdma-maskc completion zsh), after compinit\n"
      "_fdma_maskc() {{\n"
      "  local -a verbs=(\n{}  )\n"
      "  if (( CURRENT == 2 )); then\n"
      "    _describe verb verbs\n"
      "    return\n"
      "  fi\n"
      "  local verb=$words[2]\n"
      "  shift words\n"
      "  (( CURRENT-- ))\n"
      "  case $verb in\n{}  esac\n"
      "}}\n"
      "if [[ $funcstack[1] == _fdma-maskc ]]; then _fdma_maskc \"$@\"\n"
      "else compdef _fdma_maskc fdma-maskc; fi\n",
      verbs, cases);
}

std::string fish_script() {
  std::string text =
      "# fish completion of fdma-maskc; fdma-maskc completion fish | source\n"
      "complete -c fdma-maskc -n __fish_use_subcommand -f\n"
      "complete -c fdma-maskc -n __fish_use_subcommand -l version -d 'print the version'\n";
  for (const Command* command : visible_commands()) {
    text += fmt::format("complete -c fdma-maskc -n __fish_use_subcommand -f -a {} -d '{}'\n",
                        command->name, short_help(command->summary));
  }
  for (const Command* command : visible_commands()) {
    for (const OptionSpec& option : options_of(*command)) {
      text += fmt::format("complete -c fdma-maskc -n '__fish_seen_subcommand_from {}' -l {}",
                          command->name, option.name);
      if (option.letter != 0) text += fmt::format(" -s {}", option.letter);
      if (!option.choices.empty()) {
        text += fmt::format(" -x -a '{}'", fmt::join(option.choices, " "));
      } else if (option.takes_file) {
        text += " -r -F";
      } else if (!option.value.empty()) {
        text += " -x";
      }
      text += fmt::format(" -d '{}'\n", short_help(option.help));
    }
  }
  text +=
      "complete -c fdma-maskc -n '__fish_seen_subcommand_from completion' -f -a 'bash zsh fish'\n";
  return text;
}

Outcome<ExitCode> run(const Arguments& arguments, Session& session) {
  const std::string& shell = arguments.operands().front();
  if (shell == "bash") {
    session.out = bash_script();
  } else if (shell == "zsh") {
    session.out = zsh_script();
  } else if (shell == "fish") {
    session.out = fish_script();
  } else {
    return usage_failure(fmt::format("expected bash, zsh or fish, got '{}'", shell));
  }
  return ExitCode::ok;
}

}  // namespace

const Command& completion_command() {
  static const Command command{
      .name = "completion",
      .summary = "shell completion for bash, zsh or fish",
      .operands = "SHELL",
      .min_operands = 1,
      .max_operands = 1,
      .description = "Prints a script that completes verbs, options and their values.",
      .options = {},
      .examples = {{"eval \"$(fdma-maskc completion bash)\"", "In ~/.bashrc:"},
                   {"source <(fdma-maskc completion zsh)", "In ~/.zshrc, after compinit:"},
                   {"fdma-maskc completion fish > ~/.config/fish/completions/fdma-maskc.fish",
                    "For fish:"}},
      .run = run,
      .operands_are_files = false};
  return command;
}

}  // namespace fdma::maskc
