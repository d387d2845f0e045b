#include "cli/help_text.hpp"

#include <fmt/format.h>

#include "cli/help_pages.hpp"

namespace fdma::maskc {

const std::string_view kToolSummary = "the attention mask compiler of FDMA";

const std::string_view kToolDescription =
    "Takes an attention mask as a short text or as a dense HDF5 dataset, compiles it exactly to "
    "the smallest form that a kernel can execute, inspects, checks, compares and draws it, and "
    "runs attention over it.";

const std::string_view kAddressText =
    "FILE.h5 is the only mask of that file, FILE.h5:NAME or FILE.h5:/masks/NAME one of several, "
    "and FILE.h5:/PATH a dense dataset as h5py writes it (boolean, 0 and 1, or additive floats).";

const ExitStatusLine kExitStatus[7] = {
    {"0", "done; check and diff: right, equal"},
    {"1", "the mask or a result is wrong or differs; a dense value is neither keep nor drop"},
    {"2", "wrong use: options, specification, tables, tensors, an undefined cell"},
    {"3", "file: absent, truncated, corrupt, unwritable, disk full"},
    {"4", "unsupported here: a format that cannot hold the mask, not enough memory, --timeout"},
    {"70", "a defect of fdma-maskc"},
    {"130", "interrupted; outputs are as they were"},
};

std::string wrap(std::string_view text, int indent, int width) {
  const std::string margin(static_cast<std::size_t>(indent), ' ');
  std::string out;
  std::string line;
  const auto flush = [&] {
    if (!line.empty()) out += margin + line + "\n";
    line.clear();
  };
  while (!text.empty()) {
    const std::size_t end = text.find('\n');
    std::string_view source = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (source.empty() || source.front() == ' ') {
      flush();
      out += source.empty() ? "\n" : fmt::format("{}{}\n", margin, source);
      continue;
    }
    while (!source.empty()) {
      const std::size_t space = source.find(' ');
      const std::string_view word = source.substr(0, space);
      source.remove_prefix(space == std::string_view::npos ? source.size() : space + 1);
      if (word.empty()) continue;
      if (!line.empty() && static_cast<int>(line.size() + 1 + word.size()) > width - indent) {
        flush();
      }
      if (!line.empty()) line += ' ';
      line += word;
    }
  }
  flush();
  return out;
}

std::string usage_line(const Command& command) {
  return fmt::format("[OPTION..]{}{}", command.operands.empty() ? "" : " ", command.operands);
}

std::string option_heading(const OptionSpec& option) {
  std::string heading = option.letter != 0 ? fmt::format("-{}, ", option.letter) : "    ";
  heading += fmt::format("--{}", option.name);
  if (!option.value.empty()) heading += fmt::format(" {}", option.value);
  return heading;
}

std::string option_text(const OptionSpec& option) {
  std::string text(option.help);
  if (!option.choices.empty()) {
    text += fmt::format(" One of {}.", fmt::join(option.choices, ", "));
  }
  if (option.is_repeatable) text += " May be repeated.";
  return text;
}

namespace {

std::string examples_text(const std::vector<Example>& examples) {
  std::string out;
  for (const Example& example : examples) {
    out += wrap(example.meaning, 2);
    std::string_view rest = example.command;
    while (true) {
      const std::size_t end = rest.find('\n');
      out += fmt::format("    {}\n", rest.substr(0, end));
      if (end == std::string_view::npos) break;
      rest.remove_prefix(end + 1);
    }
  }
  return out;
}

// The first sentence, without its stop, cut to `width` characters.
std::string first_sentence(std::string_view text, std::size_t width) {
  const std::size_t stop = text.find(". ");
  std::string sentence(text.substr(0, stop));
  if (sentence.ends_with('.')) sentence.pop_back();
  if (sentence.size() <= width) return sentence;
  const std::size_t end = sentence.rfind(' ', width - 3);
  return sentence.substr(0, end) + " ..";
}

}  // namespace

std::string short_help(const Command& command) {
  constexpr std::size_t kWidth = 100, kIndent = 30;
  std::string out = fmt::format("fdma-maskc {}: {}\n\nusage: fdma-maskc {} {}\n\n", command.name,
                                command.summary, command.name, usage_line(command));
  for (const OptionSpec& option : options_of(command)) {
    std::string heading = fmt::format("  {}", option_heading(option));
    if (heading.size() + 2 > kIndent) heading += '\n' + std::string(kIndent, ' ');
    out += fmt::format("{:<{}}{}\n", heading, kIndent,
                       first_sentence(option_text(option), kWidth - kIndent));
  }
  return out +
         fmt::format("\nfdma-maskc {} --help explains everything, with examples\n", command.name);
}

std::string tool_help() {
  std::string out = fmt::format("fdma-maskc: {}\n\n", kToolSummary);
  out += "usage: fdma-maskc VERB [OPTION..] [OPERAND..]\n\n";
  out += wrap(kToolDescription, 0) + "\nverbs\n";
  for (const Command* command : all_commands()) {
    if (command->is_hidden) continue;
    out += fmt::format("  {:<12}{}\n", command->name, command->summary);
  }
  out +=
      "\nfdma-maskc VERB --help explains a verb, VERB -h lists its options; fdma-maskc --version "
      "names\nlibraries and backends.\n";
  out += "\npages, printed by fdma-maskc help TOPIC [SECTION]\n";
  for (const HelpPage& page : help_pages()) {
    out += fmt::format("  {:<12}{}\n", page.topic, page.meaning);
  }
  out += fmt::format("\nmasks in files\n{}", wrap(kAddressText, 2));
  out += "\nexit status\n";
  for (const ExitStatusLine& line : kExitStatus) {
    out += fmt::format("  {:<5}{}\n", line.code, line.meaning);
  }
  out += "\nfirst steps\n";
  out += examples_text({
      {"fdma-maskc compile --spec 'causal & window(1024)' --q-len 8192 -o window.h5",
       "Compile a mask from its text:"},
      {"fdma-maskc convert dense.h5:/mask -o mask.h5", "Or take a dense one that you have:"},
      {"fdma-maskc inspect mask.h5", "See what it holds and what it costs:"},
  });
  return out;
}

std::string command_help(const Command& command) {
  std::string out = fmt::format("fdma-maskc {}: {}\n\n", command.name, command.summary);
  out += fmt::format("usage: fdma-maskc {} {}\n\n", command.name, usage_line(command));
  out += wrap(command.description, 0) + "\noptions\n";
  for (const OptionSpec& option : options_of(command)) {
    const std::string heading = fmt::format("  {}", option_heading(option));
    const std::string text = wrap(option_text(option), 28);
    if (heading.size() < 27) {
      out += fmt::format("{:<28}{}", heading, text.substr(28));
    } else {
      out += fmt::format("{}\n{}", heading, text);
    }
  }
  if (!command.examples.empty()) {
    out += fmt::format("\nexamples\n{}", examples_text(command.examples));
  }
  return out;
}

}  // namespace fdma::maskc
