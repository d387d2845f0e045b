#include "inputs/destination.hpp"

#include <fmt/format.h>
#include <limits.h>
#include <spdlog/spdlog.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <utility>

#include "cli/file_reading.hpp"
#include "cli/number_text.hpp"
#include "cli/progress.hpp"

namespace fdma::maskc {
namespace {

bool is_same_file(const struct stat& a, const std::string& path) {
  struct stat b {};
  return stat(path.c_str(), &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino;
}

// Whether a word of the command line names that file. A word may have the forms FILE, FILE:INNER,
// NAME=FILE:INNER and NAME=zoh(values=FILE:INNER, ..).
bool names_file(const std::string& word, const struct stat& file) {
  for (std::size_t start = 0; start != std::string::npos;) {
    const std::string rest = word.substr(start, PATH_MAX);
    for (std::size_t end = 0; end != std::string::npos;) {
      end = rest.find_first_of(":,) ", end + 1);
      if (is_same_file(file, rest.substr(0, end))) return true;
    }
    start = word.find('=', start);
    if (start != std::string::npos) start = word.find_first_not_of(' ', start + 1);
  }
  return false;
}

// The state of a place that may be written; no value if nothing or an empty file is there.
Outcome<std::optional<struct stat>> look_at(const std::string& path) {
  if (path.empty()) return usage_failure("--output: expected a file name, got ''");
  FDMA_TRY([[maybe_unused]] const PendingFile probe, open_destination(path));
  struct stat status {};
  if (stat(path.c_str(), &status) != 0 || status.st_size == 0) return std::optional<struct stat>();
  return std::optional<struct stat>(status);
}

constexpr std::string_view kPictureRemedy = "pictures are made by fdma-maskc render";
constexpr std::string_view kArrayRemedy =
    "convert --to dense writes booleans that h5py reads, and h5py's dataset[...] is an array for "
    "np.save";

Status check_hdf5_name(const std::string& path) {
  if (path == "-") {
    return usage_failure("--output: an HDF5 file cannot be written to a pipe; give a file name");
  }
  for (const auto& [suffix, remedy] :
       {std::pair<std::string_view, std::string_view>{".png", kPictureRemedy},
        {".svg", kPictureRemedy},
        {".html", kPictureRemedy},
        {".npy", kArrayRemedy},
        {".npz", kArrayRemedy},
        {".safetensors", kArrayRemedy}}) {
    if (!path.ends_with(suffix)) continue;
    return usage_failure(fmt::format(
        "--output: expected the name of an HDF5 file, such as m.h5, got '{}'; {}", path, remedy));
  }
  if (path.find(":/") != std::string::npos) {
    return usage_failure(fmt::format(
        "--output: expected the name of a file without a place in it, got '{}' (masks and groups "
        "are named by --name)",
        path));
  }
  return Nothing{};
}

}  // namespace

Status check_inputs_stay(const Command& command, const Arguments& arguments) {
  const auto output = arguments.find("output");
  struct stat there {};
  if (!output || stat(output->c_str(), &there) != 0) return Nothing{};
  bool is_input = false;
  if (command.operands_are_files) {
    for (const std::string& operand : arguments.operands()) {
      is_input = is_input || names_file(operand, there);
    }
  }
  for (const OptionSpec& option : command.options) {
    if (!option.takes_file || option.name == "output") continue;
    for (const std::string& value : arguments.all(option.name)) {
      // A specification is one path or none; its text is not searched for paths.
      is_input = is_input ||
                 (option.name == "spec" ? is_same_file(there, value) : names_file(value, there));
    }
  }
  if (!is_input) return Nothing{};
  return usage_failure(
      fmt::format("--output: {} is an input of this run; give another file", *output));
}

Status check_mask_destination(const std::string& path, const std::string& name, bool force,
                              std::string_view instead) {
  FDMA_TRY_VOID(check_hdf5_name(path));
  FDMA_TRY(const std::optional<struct stat> there, look_at(path));
  if (!there || force) return Nothing{};
  const Result<std::vector<std::string>> names = list_masks_of_any_file(path);
  if (!names) {
    return usage_failure(fmt::format(
        "--output: {} is there and is no mask file of FDMA; give another file, or --force to "
        "replace it",
        path));
  }
  if (std::binary_search(names->begin(), names->end(), name)) {
    return usage_failure(
        fmt::format("--output: {} holds a mask '{}' already; give --force to replace it, or {}",
                    path, name, instead));
  }
  return Nothing{};
}

Status check_result_destination(const std::string& path, std::string_view what,
                                const std::function<bool(const std::string& dataset)>& is_result,
                                bool force) {
  FDMA_TRY_VOID(check_hdf5_name(path));
  FDMA_TRY(const std::optional<struct stat> there, look_at(path));
  if (!there || force) return Nothing{};
  const Result<FileContents> contents = list_datasets_of_file(path);
  if (contents && contents->is_complete && !contents->datasets.empty() &&
      std::all_of(contents->datasets.begin(), contents->datasets.end(),
                  [&](const DatasetEntry& entry) { return is_result(entry.path); })) {
    return Nothing{};
  }
  return usage_failure(
      fmt::format("--output: {} is there and holds other things than {}; give another file, or "
                  "--force to replace it",
                  path, what));
}

Status check_plain_destination(const std::string& path) {
  FDMA_TRY(const std::optional<struct stat> there, look_at(path));
  if (!there) return Nothing{};
  constexpr std::string_view kSignature("\x89HDF\r\n\x1a\n", 8);
  std::array<char, kSignature.size()> begin{};
  std::ifstream(path, std::ios::binary).read(begin.data(), begin.size());
  if (std::string_view(begin.data(), begin.size()) != kSignature) return Nothing{};
  return usage_failure(
      fmt::format("--output: {} is an HDF5 file, which would be lost; give another file", path));
}

Outcome<PendingFile> open_destination(const std::string& path) {
  if (access(path.c_str(), F_OK) == 0 && access(path.c_str(), W_OK) != 0) {
    return CommandFailure{ExitCode::file,
                          fmt::format("cannot write '{}': {}", path, std::strerror(errno))};
  }
  FDMA_TRY(PendingFile file, PendingFile::create(path));
  return file;
}

Outcome<AddedMasks> write_to_mask_file(const std::string& path, const std::vector<NamedMask>& masks,
                                       bool force) {
  const Step step("writing " + path);
  AddOptions options;
  options.overwrite = options.replace_file = force;
  FDMA_TRY(AddedMasks added, add_masks(path, masks, options));
  spdlog::info("wrote {}", path);
  return added;
}

Outcome<AddedMasks> write_to_mask_file(const std::string& path, std::string name, BlockMask mask,
                                       bool force) {
  std::vector<NamedMask> masks;
  masks.push_back({std::move(name), std::move(mask)});
  return write_to_mask_file(path, masks, force);
}

std::string added_text(const std::string& path, const AddedMasks& added) {
  if (added.is_new_file) return {};
  if (added.replaced_file) return fmt::format("in place of {}, which held no masks\n  ", path);
  return fmt::format("{} {}, which has {}\n  ", added.replaced.empty() ? "added to" : "replaced in",
                     path, plural(static_cast<std::int64_t>(added.names.size()), "mask"));
}

OptionSpec force_masks_option() {
  return {.name = "force",
          .help =
              "Replace a mask of that name that FILE holds already, or a FILE that holds no "
              "masks; without it both are errors."};
}

}  // namespace fdma::maskc
