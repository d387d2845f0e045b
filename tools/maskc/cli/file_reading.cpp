#include "cli/file_reading.hpp"

#include "fdma/io/isolated_reader.hpp"
#include "fdma/io/mask_file.hpp"

namespace fdma::maskc {
namespace {

enum class Isolation : std::uint8_t { foreign_files, all_files, none };

// The settings belong to the process, as signal handling and logging do.
struct Settings {
  Isolation isolation = Isolation::foreign_files;
  bool allow_plugins = false;
};
Settings& settings() {
  static Settings settings;
  return settings;
}

bool isolates_foreign_files() { return settings().isolation != Isolation::none; }
bool isolates_own_files() { return settings().isolation == Isolation::all_files; }

// The run has one reader. Two reads in a row of one file go to the same child process.
IsolatedReader& reader() {
  static IsolatedReader reader;
  return reader;
}

}  // namespace

std::vector<OptionSpec> file_reading_options() {
  return {
      {.name = "isolate",
       .help = "Read every HDF5 file in a process of its own, masks of FDMA too. Other files are "
               "read so in any case: one that crashes the HDF5 library ends that process, and is "
               "reported."},
      {.name = "no-isolate",
       .help = "Read every file in this process, which saves some 10 ms a file; for files that you "
               "made yourself."},
      {.name = "allow-plugins",
       .help = "Let the HDF5 library load filter plugins for dense datasets that need them. They "
               "are code from its plugin folder and run with your rights."},
  };
}

Status set_up_file_reading(const Arguments& arguments) {
  const bool all = arguments.has("isolate"), none = arguments.has("no-isolate");
  if (all && none) {
    return usage_failure("--isolate and --no-isolate: expected at most one of the two");
  }
  settings().isolation = all    ? Isolation::all_files
                         : none ? Isolation::none
                                : Isolation::foreign_files;
  settings().allow_plugins = arguments.has("allow-plugins");
  return Nothing{};
}

Result<BlockMask> read_dense_file(const std::string& path, const std::string& dataset,
                                  DenseReadOptions options) {
  options.allow_plugins = settings().allow_plugins;
  return isolates_foreign_files() ? reader().read_dense_mask(path, dataset, options)
                                  : read_dense_mask(path, dataset, options);
}

Result<OwnedTable> read_table_file(const std::string& path, const std::string& dataset,
                                   TableCast cast) {
  return isolates_foreign_files() ? reader().read_table(path, dataset, cast)
                                  : read_table(path, dataset, cast);
}

Result<InteropGroup> read_interop_file(const std::string& path, const std::string& group) {
  return isolates_foreign_files() ? reader().read_interop_group(path, group)
                                  : read_interop_group(path, group);
}

Result<bool> has_object_in_file(const std::string& path, const std::string& object) {
  return isolates_foreign_files() ? reader().has_object(path, object) : has_object(path, object);
}

Result<TensorSpec> describe_tensor_file(const std::string& path, const std::string& dataset) {
  return isolates_foreign_files() ? reader().describe_tensor(path, dataset)
                                  : describe_tensor(path, dataset);
}

Result<OwnedTensor> read_tensor_file(const std::string& path, const std::string& dataset,
                                     const TensorSpec& expected) {
  return isolates_foreign_files() ? reader().read_tensor(path, dataset, expected)
                                  : read_tensor(path, dataset, expected);
}

Result<FileContents> list_datasets_of_file(const std::string& path) {
  return isolates_foreign_files() ? reader().list_datasets(path) : list_datasets(path);
}

Result<std::vector<std::string>> list_masks_of_any_file(const std::string& path) {
  return isolates_foreign_files() ? reader().list_masks(path) : list_masks(path);
}

Result<std::vector<std::string>> list_own_masks(const std::string& path) {
  return isolates_own_files() ? reader().list_masks(path) : list_masks(path);
}

Result<BlockMask> read_own_mask(const std::string& path, const std::string& name) {
  return isolates_own_files() ? reader().read_mask(path, name) : read_mask(path, name);
}

}  // namespace fdma::maskc
