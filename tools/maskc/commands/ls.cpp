// fdma-maskc ls lists the masks of files, and the other datasets that the files hold.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "cli/arguments.hpp"
#include "cli/each_input.hpp"
#include "cli/file_reading.hpp"
#include "cli/json_output.hpp"
#include "cli/number_text.hpp"
#include "inputs/mask_operand.hpp"

namespace fdma::maskc {
namespace {

constexpr std::size_t kMaxSpecShown = 60;

using Row = std::vector<std::string>;

// Columns as wide as their longest entry.
std::string table_text(const std::vector<Row>& rows) {
  std::vector<std::size_t> widths;
  for (const Row& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const Row& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += fmt::format("  {:<{}}", row[i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

// The first line of a specification, shortened if it is too long.
std::string first_line(const std::string& spec) {
  const std::size_t end = std::min(spec.find('\n'), kMaxSpecShown);
  return end < spec.size() ? spec.substr(0, end) + " .." : spec;
}

Row mask_row(const std::string& name, const BlockMask& mask) {
  return {name,
          lengths_text(mask.shape),
          fmt::format("{} x {}", mask.shape.num_batches, mask.shape.num_heads),
          std::string(to_string(mask.format())),
          fmt::format("{} x {}", mask.block.block_q, mask.block.block_kv),
          bytes_text(mask.size_bytes()),
          first_line(mask.spec)};
}

// The report on one file.
struct Listing {
  Json document;
  std::string text;
  std::string complaints;  ///< a line for each mask that cannot be read
};

Outcome<Listing> list_file(const std::string& file) {
  Listing listing;
  FDMA_TRY(const FileContents contents, list_datasets_of_file(file));
  const Result<std::vector<std::string>> names = list_masks_of_any_file(file);
  listing.document["file"] = file;
  listing.document["is_mask_file"] = names.has_value();
  listing.document["masks"] = Json::array();
  listing.document["unreadable"] = Json::array();
  listing.document["datasets"] = Json::array();
  std::vector<Row> masks, datasets;
  if (names) {
    for (const std::string& name : *names) {
      const Result<BlockMask> mask = read_own_mask(file, name);
      if (mask) {
        masks.push_back(mask_row(name, *mask));
        listing.document["masks"].push_back(mask_json(name, *mask));
        continue;
      }
      masks.push_back({name, "cannot be read"});
      listing.document["unreadable"].push_back({{"name", name}, {"reason", mask.error().message}});
      listing.complaints += mask.error().message + "\n";
    }
  }
  for (const DatasetEntry& entry : contents.datasets) {
    if (names && entry.path.starts_with("/masks/")) continue;
    datasets.push_back(
        {entry.path, entry.type, fmt::format("[{}]", fmt::join(entry.extents, ", "))});
    listing.document["datasets"].push_back(
        {{"path", entry.path}, {"type", entry.type}, {"extents", entry.extents}});
  }
  listing.document["is_complete"] = contents.is_complete;
  listing.text =
      fmt::format("{}: {}{}\n", file,
                  names ? plural(static_cast<std::int64_t>(names->size()), "mask") : "no mask file",
                  datasets.empty() && names
                      ? ""
                      : ", " + plural(static_cast<std::int64_t>(datasets.size()), "dataset") +
                            (names ? " besides" : ""));
  listing.text += table_text(masks) + table_text(datasets);
  if (!contents.is_complete) listing.text += "  and more, which are not listed\n";
  return listing;
}

// The names under which masks and datasets of the files are read, one a line.
Outcome<std::string> names_of(const std::vector<std::string>& files) {
  std::string text;
  for (const std::string& file : files) {
    FDMA_TRY(const FileContents contents, list_datasets_of_file(file));
    const Result<std::vector<std::string>> masks = list_masks_of_any_file(file);
    if (masks) {
      for (const std::string& name : *masks) text += name + "\n";
    }
    for (const DatasetEntry& entry : contents.datasets) {
      if (!masks || !entry.path.starts_with("/masks/")) text += entry.path + "\n";
    }
  }
  return text;
}

Outcome<ExitCode> run(const Arguments& arguments, Session& session) {
  if (arguments.has("names")) {
    if (arguments.has("json")) return usage_failure("--names, --json: give one of the two");
    FDMA_TRY(session.out, names_of(arguments.operands()));
    return ExitCode::ok;
  }
  Json document;
  document["files"] = Json::array();
  for (const std::string& file : arguments.operands()) {
    FDMA_TRY(Listing listing, list_file(file));
    document["files"].push_back(std::move(listing.document));
    session.out += listing.text;
    session.complaint += listing.complaints;
  }
  if (arguments.has("json")) session.out = json_text(document);
  return session.complaint.empty() ? ExitCode::ok : ExitCode::file;
}

}  // namespace

const Command& ls_command() {
  static const Command command{
      .name = "ls",
      .summary = "the masks of files, and what else the files hold",
      .operands = "FILE..",
      .min_operands = 1,
      .max_operands = kMaxOperands,
      .description =
          "Lists for each FILE its masks: name, lengths of queries and keys, batch elements and "
          "heads, format, block, bytes and the first line of the specification; then the datasets "
          "that are no part of masks, with type and extents, for any HDF5 file. Those can be "
          "named as FILE.h5:/PATH where a mask, a table or a tensor is read.\n"
          "\n"
          "Every mask is read and checked as for inspect, which says more of it. One that cannot "
          "be read is listed as such, and the exit status is 3.",
      .options = {{.name = "names",
                   .help = "Print names alone, one a line: what may follow FILE.h5: elsewhere."},
                  json_option()},
      .examples = {{"fdma-maskc ls all.h5", "The masks of a file:"},
                   {"fdma-maskc ls all.h5 packed.h5", "Of several:"},
                   {"fdma-maskc ls dense.h5 --json",
                    "What a file of other data holds, for a script:"}},
      .run = run};
  return command;
}

}  // namespace fdma::maskc
