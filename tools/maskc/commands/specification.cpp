#include "commands/specification.hpp"

#include <fmt/format.h>

#include "cli/work_limits.hpp"
#include "inputs/mask_shape_arguments.hpp"

namespace fdma::maskc {

CommandFailure with_batch_hint(const Error& error, const Arguments& arguments) {
  std::string message = error.message;
  if (error.code == ErrorCode::shape_mismatch && !arguments.has("batch") &&
      message.find("expected [batch = ") != std::string::npos) {
    message += "; --batch N says how many batch elements there are (1 by default)";
  }
  return {exit_code_of(error.code), std::move(message)};
}

Outcome<std::string> spec_of(const Arguments& arguments) {
  const auto spec = arguments.find("spec");
  const std::vector<std::string>& operands = arguments.operands();
  if (spec && !operands.empty()) {
    return usage_failure(fmt::format("--spec: expected one specification, got '{}' besides '{}'",
                                     operands.front(), *spec));
  }
  if (spec) return *spec;
  if (!operands.empty()) return operands.front();
  return usage_failure("--spec: expected a specification, a file or -, got nothing");
}

Outcome<Specification> read_specification(const Arguments& arguments, const std::string& spec) {
  Specification read;
  FDMA_TRY(read.options.block, arguments.block({}));
  FDMA_TRY(const std::int64_t threads, arguments.threads());
  read.options.num_threads = static_cast<int>(threads);
  FDMA_TRY(read.options.max_work, max_work_of(arguments));
  FDMA_TRY(read.source, read_spec(spec));
  FDMA_TRY(read.expr, parse_spec(read.source));
  FDMA_TRY(read.shape, mask_shape(arguments, read.expr));
  FDMA_TRY(read.tables, read_tables(arguments.all("table"), read.expr, arguments.has("cast")));
  return read;
}

std::vector<OptionSpec> specification_options() {
  return {{.name = "spec",
           .letter = 's',
           .value = "SPEC",
           .help = "The specification: its text, the path of an existing file that holds it, or - "
                   "for standard input. It may also be the operand.",
           .takes_file = true},
          table_option(),
          cast_option(),
          {.name = "q-len",
           .value = "N[,N..]",
           .help = "Query rows: one number, or one per batch element; 8k is 8192, 1M is 1048576."},
          {.name = "kv-len", .value = "N[,N..]", .help = "Keys, likewise (default: as --q-len)."},
          {.name = "batch",
           .value = "N",
           .help = "Batch elements; needed where the specification mentions b."},
          {.name = "heads",
           .value = "N",
           .help = "Query heads; needed where the specification mentions h."}};
}

}  // namespace fdma::maskc
