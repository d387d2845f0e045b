// fdma-maskc pack: several files of masks into one.
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

#include "cli/arguments.hpp"
#include "cli/each_input.hpp"
#include "cli/file_reading.hpp"
#include "cli/json_output.hpp"
#include "cli/number_text.hpp"
#include "inputs/destination.hpp"
#include "inputs/mask_operand.hpp"

namespace fdma::maskc {
namespace {

/// A mask to be packed: where it is, and its name in the new file.
struct Source {
  std::string file;
  std::string mask;
  std::string name;

  std::string label() const { return fmt::format("{}:{}", file, mask); }
};

// "NAME=FILE[:MASK]" taken apart; a file may have '=' in its name.
std::pair<std::string, std::string> split_name(const std::string& operand) {
  std::error_code error;
  const std::size_t equals = operand.find('=');
  if (equals == std::string::npos || equals == 0 ||
      std::filesystem::is_regular_file(parse_address(operand).file, error)) {
    return {"", operand};
  }
  return {operand.substr(0, equals), operand.substr(equals + 1)};
}

Outcome<std::vector<Source>> read_operand(const std::string& operand, bool has_prefix) {
  const auto [name, address] = split_name(operand);
  FDMA_TRY(const ResolvedAddress resolved, resolve_address(address));
  const std::string& file = resolved.address.file;
  if (resolved.is_dense) {
    return usage_failure(fmt::format(
        "'{}': expected a mask of FDMA, FILE.h5 or FILE.h5:NAME; fdma-maskc convert makes one of a "
        "dense dataset",
        address));
  }
  if (!name.empty() && resolved.names.size() != 1) {
    return usage_failure(fmt::format("'{}': {} holds {} masks; name one: {}={}:{}", operand, file,
                                     resolved.names.size(), name, file, resolved.names.front()));
  }
  std::vector<Source> sources;
  for (const std::string& mask : resolved.names) {
    std::string own = name;
    if (own.empty() && has_prefix) {
      own = fmt::format("{}-{}", std::filesystem::path(file).stem().string(), mask);
    }
    sources.push_back({file, mask, own.empty() ? mask : own});
  }
  return sources;
}

Outcome<std::vector<Source>> read_operands(const Arguments& arguments) {
  std::vector<Source> sources;
  for (const std::string& operand : arguments.operands()) {
    FDMA_TRY(const std::vector<Source> more, read_operand(operand, arguments.has("prefix")));
    for (const Source& source : more) {
      const auto same = std::find_if(sources.begin(), sources.end(), [&](const Source& other) {
        return other.name == source.name;
      });
      if (same != sources.end()) {
        return usage_failure(
            fmt::format("{} and {} would both be '{}'; give --prefix, or another name: NAME={}",
                        same->label(), source.label(), source.name, source.label()));
      }
      sources.push_back(source);
    }
  }
  return sources;
}

Outcome<ExitCode> run(const Arguments& arguments, Session& session) {
  const auto output = arguments.find("output");
  if (!output) return usage_failure("--output: expected the file to write, got nothing");
  const bool force = arguments.has("force");
  FDMA_TRY(const std::vector<Source> sources, read_operands(arguments));
  for (const Source& source : sources) {
    FDMA_TRY_VOID(
        check_mask_destination(*output, source.name, force, "another name, NAME=FILE:MASK"));
  }
  std::vector<NamedMask> masks;
  Json document;
  document["output"] = *output;
  document["masks"] = Json::array();
  std::string lines;
  for (const Source& source : sources) {
    FDMA_TRY(BlockMask mask, read_own_mask(source.file, source.mask));
    document["masks"].push_back({{"name", source.name}, {"input", source.label()}});
    lines += fmt::format("  {}  from {}\n", source.name, source.label());
    masks.push_back({source.name, std::move(mask)});
  }
  FDMA_TRY(const AddedMasks added, write_to_mask_file(*output, masks, force));
  document["output_masks"] = added.names;
  if (arguments.has("json")) {
    session.out = json_text(document);
  } else if (!session.quiet) {
    session.out = fmt::format("{}: {} packed, {} in it\n{}", *output,
                              plural(static_cast<std::int64_t>(masks.size()), "mask"),
                              plural(static_cast<std::int64_t>(added.names.size()), "mask"), lines);
  }
  return ExitCode::ok;
}

}  // namespace

const Command& pack_command() {
  static const Command command{
      .name = "pack",
      .summary = "several masks, of one file or many, into one file",
      .operands = "INPUT..",
      .min_operands = 1,
      .max_operands = kMaxOperands,
      .description =
          "Puts masks into one file: all of FILE.h5, one of it (FILE.h5:NAME), or one under "
          "another name (NAME=FILE.h5:MASK, NAME=FILE.h5 if it has only one). Cells, formats, "
          "hashes and specifications stay as they are.\n"
          "\n"
          "A mask file that is there keeps its other masks. Two masks of one name are an error: "
          "between inputs unless --prefix or NAME= tells them apart, and with one that FILE holds "
          "unless --force replaces that. FILE changes in one step or not at all.",
      .options = {{.name = "output",
                   .letter = 'o',
                   .value = "FILE",
                   .help = "The HDF5 file to write; a mask file that is there keeps its other "
                           "masks.",
                   .takes_file = true},
                  {.name = "prefix",
                   .help =
                       "Put the name of its file before each mask that has no NAME= of its own: "
                       "mask of heads.h5 becomes heads-mask."},
                  force_masks_option(),
                  json_option()},
      .examples = {{"fdma-maskc pack a.h5 b.h5 -o both.h5", "Two files into one:"},
                   {"fdma-maskc pack heads.h5 packed.h5 --prefix -o all.h5",
                    "Under names that tell the file, added to those of all.h5:"},
                   {"fdma-maskc pack near=all.h5:local far=all.h5:global -o new.h5",
                    "Under other names:"}},
      .run = run};
  return command;
}

}  // namespace fdma::maskc
