#include "cli/arguments.hpp"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <boost/program_options.hpp>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <string>
#include <thread>

#include "cli/usual_words.hpp"

namespace fdma::maskc {
namespace {

namespace po = boost::program_options;

constexpr const char* kOperandKey = "operand";

po::options_description describe(const std::vector<OptionSpec>& specs) {
  po::options_description description;
  for (const OptionSpec& spec : specs) {
    std::string key(spec.name);
    if (spec.letter != 0) key += fmt::format(",{}", spec.letter);
    if (spec.value.empty()) {
      description.add_options()(key.c_str(), po::bool_switch());
    } else {
      auto* value = po::value<std::vector<std::string>>();
      if (spec.is_repeatable) value->composing();
      description.add_options()(key.c_str(), value);
    }
  }
  description.add_options()(kOperandKey, po::value<std::vector<std::string>>());
  return description;
}

CommandFailure unknown_option(const Command& command, const std::string& given) {
  std::vector<std::string_view> names;
  const std::vector<OptionSpec> specs = options_of(command);
  for (const OptionSpec& spec : specs) names.push_back(spec.name);
  const std::size_t start = given.find_first_not_of('-');
  const std::string word = start == std::string::npos ? given : given.substr(start);
  const auto near = nearest(word, names);
  const auto usual = usual_option(word);
  return usage_failure(fmt::format("unknown option '{}'{}; fdma-maskc {} --help lists the options",
                                   given,
                                   usual  ? fmt::format(": {}", *usual)
                                   : near ? fmt::format(" (did you mean --{}?)", *near)
                                          : "",
                                   command.name));
}

// Too few or too many operands. One too many, where an output is missing, is most likely that.
CommandFailure wrong_operands(const Command& command, const Arguments& arguments) {
  const std::vector<std::string>& operands = arguments.operands();
  const int count = static_cast<int>(operands.size());
  const bool has_output =
      std::any_of(command.options.begin(), command.options.end(),
                  [](const OptionSpec& option) { return option.name == "output"; });
  std::string hint;
  const std::string last = operands.empty() ? "" : operands.back();
  if (count > command.max_operands && parse_count(last) && command.name == "compile") {
    hint = fmt::format("; a length is an option: --q-len {}", last);
  } else if (count > 1 && last.starts_with('/') && command.operands_are_files &&
             access(last.c_str(), F_OK) != 0) {
    hint = fmt::format("; a dataset of a file is one word: {}:{}", operands[operands.size() - 2],
                       last);
  } else if (has_output && count == command.max_operands + 1 && !arguments.has("output")) {
    hint = fmt::format("; the file to write is an option: -o {}", last);
  }
  return usage_failure(fmt::format(
      "expected {}, got {} operand{}{}; fdma-maskc {} --help shows how",
      command.operands.empty() ? "no operand" : command.operands,
      count == 0 ? "no" : std::to_string(count), count == 1 ? "" : "s", hint, command.name));
}

Status check_choice(const OptionSpec& spec, const std::string& value) {
  if (spec.choices.empty()) return Nothing{};
  if (std::find(spec.choices.begin(), spec.choices.end(), value) != spec.choices.end()) {
    return Nothing{};
  }
  auto near = nearest(value, spec.choices);
  if (const auto usual = usual_value(value);
      usual && std::find(spec.choices.begin(), spec.choices.end(), *usual) != spec.choices.end()) {
    near = usual;
  }
  return usage_failure(fmt::format("--{}: expected {}, got '{}'{}", spec.name,
                                   fmt::join(spec.choices, "|"), value,
                                   near ? fmt::format("; did you mean {}?", *near) : ""));
}

}  // namespace

std::optional<std::int64_t> parse_integer(std::string_view text) {
  if (!text.empty() && text.front() == '+') text.remove_prefix(1);
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return {};
  return value;
}

std::optional<std::int64_t> parse_count(std::string_view text) {
  std::int64_t factor = 1;
  int zeros = 0;
  const std::size_t exponent = text.find_first_of("eE");
  if (exponent != std::string_view::npos) {
    constexpr std::int64_t kMostZeros = 18;
    const auto parsed = parse_integer(text.substr(exponent + 1));
    if (!parsed || *parsed < 0 || *parsed > kMostZeros) return {};
    zeros = static_cast<int>(*parsed);
    text = text.substr(0, exponent);
  } else if (!text.empty() && (text.back() == 'k' || text.back() == 'K')) {
    factor = std::int64_t{1} << 10;
  } else if (!text.empty() && text.back() == 'M') {
    factor = std::int64_t{1} << 20;
  }
  if (factor > 1) text.remove_suffix(1);
  std::string digits;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool joins_digits = text[i] == '_' && i > 0 && i + 1 < text.size() &&
                              text[i - 1] >= '0' && text[i - 1] <= '9' && text[i + 1] >= '0' &&
                              text[i + 1] <= '9';
    if (!joins_digits) digits += text[i];
  }
  const auto number = parse_integer(digits);
  if (!number) return {};
  for (; zeros >= 0; --zeros) {
    std::int64_t grown = 0;
    if (__builtin_mul_overflow(factor, zeros > 0 ? std::int64_t{10} : *number, &grown)) return {};
    factor = grown;
  }
  return factor;
}

std::optional<std::string_view> nearest(std::string_view word,
                                        const std::vector<std::string_view>& candidates) {
  std::optional<std::string_view> best;
  std::size_t best_distance = std::max<std::size_t>(1, word.size() / 3) + 1;
  for (std::string_view candidate : candidates) {
    if (word.size() > 64) break;
    std::vector<std::size_t> row(candidate.size() + 1);
    for (std::size_t j = 0; j < row.size(); ++j) row[j] = j;
    for (std::size_t i = 1; i <= word.size(); ++i) {
      std::size_t diagonal = row[0];
      row[0] = i;
      for (std::size_t j = 1; j < row.size(); ++j) {
        const std::size_t replaced = diagonal + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal = row[j];
        row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
      }
    }
    if (row.back() < best_distance) {
      best_distance = row.back();
      best = candidate;
    }
  }
  return best;
}

Outcome<Arguments> parse_arguments(const Command& command, const std::vector<std::string>& words) {
  const std::vector<OptionSpec> specs = options_of(command);
  const po::options_description description = describe(specs);
  po::positional_options_description positional;
  positional.add(kOperandKey, -1);
  namespace style = po::command_line_style;
  const int styles = style::allow_long | style::long_allow_adjacent | style::long_allow_next |
                     style::allow_short | style::allow_dash_for_short |
                     style::short_allow_adjacent | style::short_allow_next | style::allow_sticky;
  Arguments arguments;
  try {
    const po::parsed_options parsed = po::command_line_parser(words)
                                          .options(description)
                                          .positional(positional)
                                          .style(styles)
                                          .run();
    for (const po::option& option : parsed.options) {
      if (option.string_key == kOperandKey) {
        // "--operand X" is not one of the tool's options; only positional words may arrive here.
        if (option.position_key < 0) return unknown_option(command, "--operand");
        arguments.operands_.insert(arguments.operands_.end(), option.value.begin(),
                                   option.value.end());
        continue;
      }
      const auto spec = std::find_if(specs.begin(), specs.end(), [&](const OptionSpec& candidate) {
        return candidate.name == option.string_key;
      });
      if (spec == specs.end()) return unknown_option(command, option.string_key);
      std::vector<std::string>& values = arguments.values_[option.string_key];
      if (!values.empty() && !spec->is_repeatable && !spec->value.empty()) {
        return usage_failure(fmt::format("--{} is given more than once", spec->name));
      }
      for (const std::string& value : option.value) FDMA_TRY_VOID(check_choice(*spec, value));
      values.insert(values.end(), option.value.begin(), option.value.end());
    }
  } catch (const po::unknown_option& error) {
    return unknown_option(command, error.get_option_name());
  } catch (const po::invalid_command_line_syntax& error) {
    if (error.kind() == po::invalid_command_line_syntax::missing_parameter ||
        error.kind() == po::invalid_command_line_syntax::empty_adjacent_parameter) {
      return usage_failure(fmt::format("{}: expected a value, got none", error.get_option_name()));
    }
    return usage_failure(fmt::format("{}: takes no value", error.get_option_name()));
  } catch (const po::error& error) {
    return usage_failure(error.what());
  }
  const int count = static_cast<int>(arguments.operands_.size());
  if (!arguments.has("help") && (count < command.min_operands || count > command.max_operands)) {
    return wrong_operands(command, arguments);
  }
  return arguments;
}

std::optional<std::string> Arguments::find(std::string_view name) const {
  const auto found = values_.find(name);
  if (found == values_.end() || found->second.empty()) return {};
  return found->second.back();
}

std::vector<std::string> Arguments::all(std::string_view name) const {
  const auto found = values_.find(name);
  return found == values_.end() ? std::vector<std::string>{} : found->second;
}

Outcome<std::int64_t> Arguments::integer(std::string_view name, std::int64_t fallback,
                                         std::int64_t low, std::int64_t high) const {
  const auto text = find(name);
  if (!text) return fallback;
  const auto value = parse_count(*text);
  if (!value || *value < low || *value > high) {
    return usage_failure(fmt::format("--{}: expected a whole number from {} to {}, got '{}'", name,
                                     low, high, *text));
  }
  return *value;
}

Outcome<std::vector<std::int64_t>> Arguments::integers(std::string_view name, std::int64_t low,
                                                       std::int64_t high) const {
  std::vector<std::int64_t> numbers;
  const auto text = find(name);
  if (!text) return numbers;
  std::string_view rest = *text;
  while (true) {
    const std::size_t comma = rest.find(',');
    const std::string_view word = rest.substr(0, comma);
    const auto value = parse_count(word);
    if (!value || *value < low || *value > high) {
      return usage_failure(
          fmt::format("--{}: expected whole numbers from {} to {} separated by commas, got '{}'",
                      name, low, high, word));
    }
    numbers.push_back(*value);
    if (comma == std::string_view::npos) return numbers;
    rest.remove_prefix(comma + 1);
  }
}

Outcome<std::int64_t> Arguments::threads() const {
  constexpr std::int64_t kMostThreads = 4096;
  FDMA_TRY(const std::int64_t asked, integer("threads", 0, 0, kMostThreads));
  const auto available = std::max<std::int64_t>(1, std::thread::hardware_concurrency());
  return std::min(asked, available);
}

Outcome<std::optional<double>> Arguments::number(std::string_view name) const {
  const auto text = find(name);
  if (!text) return std::optional<double>{};
  double value = 0;
  const auto [end, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || end != text->data() + text->size() || std::isnan(value)) {
    return usage_failure(fmt::format("--{}: expected a number, got '{}'", name, *text));
  }
  return std::optional<double>{value};
}

Outcome<BlockShape> Arguments::block(BlockShape fallback, std::string_view name) const {
  const auto text = find(name);
  if (!text) return fallback;
  const std::size_t cross = text->find('x');
  const auto q = parse_integer(text->substr(0, cross));
  const auto kv = cross == std::string::npos ? q : parse_integer(text->substr(cross + 1));
  const auto is_side = [](std::optional<std::int64_t> side) {
    return side && *side >= 16 && *side <= kMaxBlockSide && *side % 16 == 0;
  };
  if (!is_side(q) || !is_side(kv)) {
    return usage_failure(
        fmt::format("--{}: expected QxK, both multiples of 16 from 16 to {}, as 128x128; got '{}'",
                    name, kMaxBlockSide, *text));
  }
  return BlockShape{static_cast<std::int32_t>(*q), static_cast<std::int32_t>(*kv)};
}

Outcome<MaskFormat> Arguments::format(MaskFormat fallback) const {
  const auto text = find("format");
  if (!text) return fallback;
  FDMA_TRY(const MaskFormat format, parse_mask_format(*text));
  return format;
}

OptionSpec block_option(std::string_view help) {
  return {.name = "block", .value = "QxK", .help = help};
}

OptionSpec format_option(std::string_view help) {
  OptionSpec option{.name = "format", .value = "FORMAT", .help = help};
  for (const MaskFormat format : kMaskFormats) option.choices.push_back(to_string(format));
  return option;
}

OptionSpec threads_option() {
  return {.name = "threads",
          .value = "N",
          .help = "Threads to use, at most one for each core (default: all cores)."};
}

OptionSpec json_option() {
  return {.name = "json",
          .help = "Print one JSON document instead of text (fdma-maskc help json)."};
}

}  // namespace fdma::maskc
