// A command line, parsed by a verb's option table with Boost.Program_options.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/command.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma::maskc {

/// The options and operands of one call.
class Arguments {
 public:
  bool has(std::string_view name) const { return values_.find(name) != values_.end(); }
  /// The value of an option that was given once; empty if it was not given.
  std::optional<std::string> find(std::string_view name) const;
  /// Every value of a repeatable option, in order.
  std::vector<std::string> all(std::string_view name) const;
  const std::vector<std::string>& operands() const { return operands_; }

  /// A whole number in [low, high] as parse_count reads it, or `fallback`. Failure: usage.
  Outcome<std::int64_t> integer(std::string_view name, std::int64_t fallback, std::int64_t low,
                                std::int64_t high) const;
  /// A comma list of whole numbers in [low, high]; empty if the option was not given.
  Outcome<std::vector<std::int64_t>> integers(std::string_view name, std::int64_t low,
                                              std::int64_t high) const;
  /// --threads, at most as many as this process may run on; 0 if it was not given. Failure: usage.
  Outcome<std::int64_t> threads() const;
  /// A finite number or -inf. Failure: usage.
  Outcome<std::optional<double>> number(std::string_view name) const;
  /// "QxK", or `fallback`. Failure: usage, also for sides that no mask may have.
  Outcome<BlockShape> block(BlockShape fallback, std::string_view name = "block") const;
  /// --format, or `fallback`.
  Outcome<MaskFormat> format(MaskFormat fallback) const;

 private:
  friend Outcome<Arguments> parse_arguments(const Command&, const std::vector<std::string>&);
  std::map<std::string, std::vector<std::string>, std::less<>> values_;
  std::vector<std::string> operands_;
};

/// Failure: usage, with the nearest known option for an unknown one.
Outcome<Arguments> parse_arguments(const Command& command, const std::vector<std::string>& words);

/// A whole number in decimal, nothing before or after it; empty otherwise or on overflow.
std::optional<std::int64_t> parse_integer(std::string_view text);

/// A whole number as people write large ones: 8192, 8_192, 8k = 8192, 1M = 1048576, 1e6 = 1000000;
/// empty otherwise or on overflow.
std::optional<std::int64_t> parse_count(std::string_view text);

/// The candidate with the smallest edit distance to `word`, if that is small enough to be a slip.
std::optional<std::string_view> nearest(std::string_view word,
                                        const std::vector<std::string_view>& candidates);

/// The --block, --format, --threads and --json options as every verb that has them describes them.
OptionSpec block_option(std::string_view help);
OptionSpec format_option(std::string_view help);
OptionSpec threads_option();
OptionSpec json_option();

}  // namespace fdma::maskc
