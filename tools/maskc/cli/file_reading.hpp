// How a run reads HDF5 files: in a child process or in this one, with filter plugins or without
// (docs/threat-model.md). Every verb reads through these functions and leaves the choice to them.
#pragma once

#include <string>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/outcome.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/io/dense_dataset.hpp"
#include "fdma/io/file_contents.hpp"
#include "fdma/io/interop_group.hpp"
#include "fdma/io/tensor_dataset.hpp"

namespace fdma::maskc {

/// The options --isolate, --no-isolate and --allow-plugins, which every verb has.
std::vector<OptionSpec> file_reading_options();

/// Takes the settings of this run. Call it once, before anything is read. Failure: usage (--isolate
/// together with --no-isolate).
Status set_up_file_reading(const Arguments& arguments);

/// The next functions do what the library's functions do. They work in a child process unless
/// --no-isolate was given.
Result<BlockMask> read_dense_file(const std::string& path, const std::string& dataset,
                                  DenseReadOptions options);
Result<OwnedTable> read_table_file(const std::string& path, const std::string& dataset,
                                   TableCast cast);
Result<InteropGroup> read_interop_file(const std::string& path, const std::string& group);
Result<bool> has_object_in_file(const std::string& path, const std::string& object);
Result<TensorSpec> describe_tensor_file(const std::string& path, const std::string& dataset);
Result<OwnedTensor> read_tensor_file(const std::string& path, const std::string& dataset,
                                     const TensorSpec& expected);
Result<FileContents> list_datasets_of_file(const std::string& path);
/// The names of the masks in a file of unknown origin.
Result<std::vector<std::string>> list_masks_of_any_file(const std::string& path);

/// The next two functions read FDMA's own format. They work in this process unless --isolate was
/// given.
Result<std::vector<std::string>> list_own_masks(const std::string& path);
Result<BlockMask> read_own_mask(const std::string& path, const std::string& name);

}  // namespace fdma::maskc
