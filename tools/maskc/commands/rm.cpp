// fdma-maskc rm: takes masks out of files.
#include <fmt/format.h>

#include <algorithm>

#include "cli/arguments.hpp"
#include "cli/each_input.hpp"
#include "cli/file_reading.hpp"
#include "cli/json_output.hpp"
#include "cli/number_text.hpp"
#include "fdma/io/mask_file.hpp"
#include "inputs/mask_operand.hpp"

namespace fdma::maskc {
namespace {

struct Removal {
  std::string file;
  std::vector<std::string> names;
};

// Groups the operands by file. Every mask is looked up before anything is removed.
Outcome<std::vector<Removal>> read_operands(const std::vector<std::string>& operands) {
  std::vector<Removal> removals;
  for (const std::string& operand : operands) {
    FDMA_TRY(const ResolvedAddress resolved, resolve_address(operand));
    const std::string& file = resolved.address.file;
    if (resolved.address.inner.empty()) {
      return usage_failure(fmt::format("'{}': expected FILE.h5:NAME; it holds {}:{}", operand, file,
                                       fmt::join(resolved.names, fmt::format(", {}:", file))));
    }
    FDMA_TRY(const std::vector<std::string> held, list_masks_of_any_file(file));
    const std::string name = resolved.is_dense ? resolved.address.inner : resolved.names.front();
    if (!std::binary_search(held.begin(), held.end(), name)) {
      return CommandFailure{
          ExitCode::file,
          fmt::format("{}: holds no mask '{}'; it holds {}", file, name,
                      held.empty() ? "none" : fmt::format("{}", fmt::join(held, ", ")))};
    }
    auto known = std::find_if(removals.begin(), removals.end(),
                              [&](const Removal& removal) { return removal.file == file; });
    if (known == removals.end()) known = removals.insert(removals.end(), Removal{file, {}});
    if (std::find(known->names.begin(), known->names.end(), name) == known->names.end()) {
      known->names.push_back(name);
    }
  }
  return removals;
}

Outcome<ExitCode> run(const Arguments& arguments, Session& session) {
  FDMA_TRY(const std::vector<Removal> removals, read_operands(arguments.operands()));
  Json document;
  document["files"] = Json::array();
  for (const Removal& removal : removals) {
    FDMA_TRY(const std::vector<std::string> left, remove_masks(removal.file, removal.names));
    document["files"].push_back(
        {{"file", removal.file}, {"removed", removal.names}, {"masks", left}});
    if (session.quiet) continue;
    session.out +=
        fmt::format("{}: removed {}; {} left\n", removal.file, fmt::join(removal.names, ", "),
                    plural(static_cast<std::int64_t>(left.size()), "mask"));
  }
  if (arguments.has("json")) session.out = json_text(document);
  return ExitCode::ok;
}

}  // namespace

const Command& rm_command() {
  static const Command command{
      .name = "rm",
      .summary = "take masks out of a file",
      .operands = "FILE:NAME..",
      .min_operands = 1,
      .max_operands = kMaxOperands,
      .description =
          "Removes the masks that are named, FILE.h5:NAME or FILE.h5:/masks/NAME. Everything else "
          "that a file holds stays as it is. A file without its last mask stays as a mask file "
          "that holds none.\n"
          "\n"
          "All masks are looked up before anything is removed. Each file changes in one step or "
          "not at all.",
      .options = {json_option()},
      .examples = {{"fdma-maskc rm all.h5:local", "One mask of a file:"},
                   {"fdma-maskc rm heads.h5:mask packed.h5:mask", "Masks of several files:"},
                   {"fdma-maskc rm all.h5:global --json", "For a script:"}},
      .run = run};
  return command;
}

}  // namespace fdma::maskc
