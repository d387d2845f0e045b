#include "inputs/spec_source.hpp"

#include <fmt/format.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>

#include "fdma/masks/parse.hpp"

namespace fdma::maskc {
namespace {

// The reader takes one byte more than the parser accepts, so that the parser reports a text that is
// too long.
constexpr std::size_t kMaxSpecBytes = (std::size_t{16} << 20) + 1;

Outcome<std::string> read_stream(std::FILE* stream, const std::string& name) {
  std::string text;
  char buffer[1 << 16];
  while (text.size() < kMaxSpecBytes) {
    const std::size_t count = std::fread(buffer, 1, sizeof buffer, stream);
    text.append(buffer, count);
    if (count < sizeof buffer) break;
  }
  if (std::ferror(stream) != 0) {
    return CommandFailure{ExitCode::file,
                          fmt::format("{}: cannot read: {}", name, std::strerror(errno))};
  }
  return text;
}

bool looks_like_path(const std::string& text) {
  return text.find_first_of(" \n()@") == std::string::npos &&
         text.find_first_of("./") != std::string::npos;
}

}  // namespace

Outcome<SpecSource> read_spec(const std::string& value) {
  if (value == "-") {
    FDMA_TRY(std::string text, read_stream(stdin, "standard input"));
    return SpecSource{std::move(text), "standard input"};
  }
  std::error_code error;
  const bool can_be_path = value.size() < 4096 && value.find('\0') == std::string::npos;
  const std::filesystem::file_type type =
      can_be_path ? std::filesystem::status(value, error).type() : std::filesystem::file_type::none;
  const bool is_file = type == std::filesystem::file_type::regular ||
                       type == std::filesystem::file_type::fifo ||
                       type == std::filesystem::file_type::character;
  if (!is_file) return SpecSource{value, "spec"};
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> stream(std::fopen(value.c_str(), "rb"),
                                                               &std::fclose);
  if (stream == nullptr) {
    return CommandFailure{ExitCode::file,
                          fmt::format("{}: cannot read: {}", value, std::strerror(errno))};
  }
  FDMA_TRY(std::string text, read_stream(stream.get(), value));
  return SpecSource{std::move(text), value};
}

namespace {

CommandFailure spec_failure(std::string message, const SpecSource& source,
                            const std::vector<Diagnostic>& diagnostics) {
  CommandFailure failure = usage_failure(std::move(message));
  failure.argument = "--spec";
  for (const Diagnostic& diagnostic : diagnostics) {
    failure.positions.push_back(
        {source.name, diagnostic.line, diagnostic.column, diagnostic.message});
  }
  return failure;
}

}  // namespace

Outcome<MaskExpr> parse_spec(const SpecSource& source) {
  std::vector<Diagnostic> diagnostics;
  MaskExpr expr = parse_mask(source.text, diagnostics);
  if (diagnostics.empty()) return expr;
  if (source.name == "spec" && looks_like_path(source.text)) {
    diagnostics.resize(1);
    return spec_failure(
        fmt::format("there is no file '{0}', and '{0}' is no specification\n{1}", source.text,
                    format_diagnostics(source.text, source.name, diagnostics)),
        source, diagnostics);
  }
  std::string message = fmt::format(
      "the specification has {}\n",
      diagnostics.size() == 1 ? "an error" : fmt::format("{} errors", diagnostics.size()));
  message += format_diagnostics(source.text, source.name, diagnostics);
  return spec_failure(std::move(message), source, diagnostics);
}

OptionSpec table_option() {
  return {.name = "table",
          .letter = 't',
          .value = "NAME=TABLE",
          .help =
              "The table that the specification calls @NAME: FILE.h5:/DATASET, or its entries, "
              "0,1,127 or true,false; semicolons separate rows, a trailing comma makes a list "
              "of a single entry. The scores of topk can also be computed: "
              "NAME=zoh(values=FILE.h5:/DATASET, dt_proj=.., a_coef=.., mode=exp or log).",
          .is_repeatable = true,
          .takes_file = true};
}

OptionSpec cast_option() {
  return {.name = "cast",
          .help =
              "Take floating datasets as tables: whole numbers as integers, scores of topk as "
              "float32. A value that changes by that is an error."};
}

}  // namespace fdma::maskc
