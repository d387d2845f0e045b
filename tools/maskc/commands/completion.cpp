// fdma-maskc completion: scripts for bash, zsh and fish, from the option tables.
#include <fmt/format.h>

#include "cli/arguments.hpp"
#include "cli/help_pages.hpp"
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
  std::string topics;
  for (const HelpPage& page : help_pages()) {
    topics += fmt::format("{}{}", topics.empty() ? "" : " ", page.topic);
  }
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
      } else if (!option.suggestions.empty()) {
        values +=
            fmt::format("        {}) COMPREPLY=($(compgen -f -W '{}' -- \"$word\")); return ;;\n",
                        pattern, fmt::join(option.suggestions, " "));
      } else if (option.takes_file) {
        values +=
            fmt::format("        {}) COMPREPLY=($(compgen -f -- \"$word\")); return ;;\n", pattern);
      } else {
        values += fmt::format("        {}) COMPREPLY=(); return ;;\n", pattern);
      }
    }
    std::string operands = "_fdma_maskc_inputs";
    if (!command->first_operands.empty()) {
      const std::string first = fmt::format("COMPREPLY=($(compgen -W '{}' -- \"$word\"))",
                                            fmt::join(command->first_operands, " "));
      operands =
          command->max_operands == 1
              ? first
              : fmt::format("if (( index == 2 )); then {}; else _fdma_maskc_inputs; fi", first);
    }
    cases += fmt::format(
        "    {})\n      case $previous in\n{}      esac\n"
        "      if [[ $word == -* ]]; then COMPREPLY=($(compgen -W '{}' -- \"$word\"))\n"
        "      else {}; fi ;;\n",
        command->name, values, options, operands);
  }
  return fmt::format(
      "# bash completion of fdma-maskc; eval \"$(fdma-maskc completion bash)\"\n"
      "# Files, and after FILE.h5: the masks and datasets of that file.\n"
      "_fdma_maskc_inputs() {{\n"
      "  if [[ $word != *:* ]]; then COMPREPLY=($(compgen -f -- \"$word\")); return; fi\n"
      "  local file=${{word%%:*}} names\n"
      "  names=$(fdma-maskc ls \"$file\" --names 2>/dev/null) || return\n"
      "  local IFS=$'\\n'\n"
      "  COMPREPLY=($(compgen -P \"$file:\" -W \"$names\" -- \"${{word#*:}}\"))\n"
      "}}\n"
      "_fdma_maskc() {{\n"
      "  # The words that blanks separate: COMP_WORDS is cut at ':' and '=', too.\n"
      "  local line=${{COMP_LINE:0:COMP_POINT}} words word previous index\n"
      "  read -ra words <<<\"$line\"\n"
      "  [[ $line == *[[:space:]] ]] && words+=('')\n"
      "  index=$(( ${{#words[@]}} - 1 ))\n"
      "  word=${{words[index]}} previous=${{words[index-1]}}\n"
      "  COMPREPLY=()\n"
      "  if (( index == 1 )); then\n"
      "    COMPREPLY=($(compgen -W '{} help --help --version' -- \"$word\")); return\n"
      "  fi\n"
      "  # --format=b is completed as the value of --format.\n"
      "  if [[ $word == --*=* ]]; then previous=${{word%%=*}}; word=${{word#*=}}; fi\n"
      "  _fdma_maskc_words\n"
      "  # Readline replaces only what follows the last ':'.\n"
      "  if [[ $word == *:* && $COMP_WORDBREAKS == *:* ]]; then\n"
      "    COMPREPLY=(\"${{COMPREPLY[@]#\"${{word%:*}}:\"}}\")\n"
      "  fi\n"
      "}}\n"
      "_fdma_maskc_words() {{\n"
      "  case ${{words[1]}} in\n"
      "    help) COMPREPLY=($(compgen -W '{} {}' -- \"$word\")) ;;\n"
      "{}  esac\n"
      "}}\n"
      "complete -o filenames -F _fdma_maskc fdma-maskc\n",
      verbs, verbs, topics, cases);
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
        action =
            !option.choices.empty()
                ? fmt::format(":{}:({})", option.name, fmt::join(option.choices, " "))
            : !option.suggestions.empty()
                ? fmt::format(":{0}:{{_alternative \"names:{0}:({1})\" \"files:file:_files\"}}",
                              option.name, fmt::join(option.suggestions, " "))
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
    std::string operands;
    if (!command->first_operands.empty()) {
      operands =
          fmt::format(" \\\n        '1:operand:({})'", fmt::join(command->first_operands, " "));
    }
    if (command->max_operands > (command->first_operands.empty() ? 0 : 1)) {
      operands += " \\\n        '*:mask:_fdma_maskc_inputs'";
    }
    cases += fmt::format("{} ;;\n", operands);
  }
  return fmt::format(
      "#compdef fdma-maskc\n"
      "# zsh completion of fdma-maskc; source <(fdma-maskc completion zsh), after compinit\n"
      "_fdma_maskc_inputs() {{\n"
      "  if [[ $PREFIX != *:* ]]; then _files; return; fi\n"
      "  local -a names=(${{(f)\"$(fdma-maskc ls ${{PREFIX%%:*}} --names 2>/dev/null)\"}})\n"
      "  compadd -p \"${{PREFIX%%:*}}:\" -a names\n"
      "}}\n"
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
      } else if (!option.suggestions.empty()) {
        text += fmt::format(" -r -F -a '{}'", fmt::join(option.suggestions, " "));
      } else if (option.takes_file) {
        text += " -r -F";
      } else if (!option.value.empty()) {
        text += " -x";
      }
      text += fmt::format(" -d '{}'\n", short_help(option.help));
    }
  }
  for (const Command* command : visible_commands()) {
    if (command->first_operands.empty()) continue;
    text += fmt::format(
        "complete -c fdma-maskc -n '__fish_seen_subcommand_from {}; and test (count (commandline "
        "-opc)) -eq 2' -f -a '{}'\n",
        command->name, fmt::join(command->first_operands, " "));
  }
  text +=
      "complete -c fdma-maskc -n 'string match -q \"*:*\" -- (commandline -ct)' -f -a "
      "'(set -l f (string split -m1 : -- (commandline -ct))[1]; fdma-maskc ls $f --names "
      "2>/dev/null | string replace -r ^ $f:)'\n";
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
      .first_operands = {"bash", "zsh", "fish"},
      .operands_are_files = false};
  return command;
}

}  // namespace fdma::maskc
