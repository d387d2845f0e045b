// Where a verb may write. A verb never writes over its inputs. A mask file or a result file replaces
// a file with other contents only with --force; a picture or a text replaces any file except an HDF5
// file.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/arguments.hpp"
#include "cli/outcome.hpp"
#include "fdma/io/mask_file.hpp"
#include "fdma/io/pending_file.hpp"

namespace fdma::maskc {

/// Failure: usage, if --output names a file that an operand or another option of this run names
/// too, through any path or link. main.cpp calls this for every verb before the verb runs.
Status check_inputs_stay(const Command& command, const Arguments& arguments);

/// Checks a destination that is a mask file, before the work starts. Failures: usage for "-", for a
/// place inside a file, for a file that holds no masks, and for a mask `name` that exists already
/// (`force` allows the last two); file for a place that cannot be written. `instead` says what else
/// than --force helps if the name is taken.
Status check_mask_destination(const std::string& path, const std::string& name, bool force,
                              std::string_view instead = "another --name");

/// Checks a destination that is an HDF5 file of results. It may replace a file all of whose
/// datasets are results; `force` allows any other file too. `what` names the results: "out and
/// lse".
Status check_result_destination(const std::string& path, std::string_view what,
                                const std::function<bool(const std::string& dataset)>& is_result,
                                bool force);

/// Checks a destination that is a picture or a text. It may replace any file except an HDF5 file.
Status check_plain_destination(const std::string& path);

/// Opens a file that will appear at `path` once it is complete. Failure: file.
Outcome<PendingFile> open_destination(const std::string& path);

/// Adds the masks to the file, or creates the file. `force` allows replacing masks of the same
/// names and a file that holds no masks.
Outcome<AddedMasks> write_to_mask_file(const std::string& path, const std::vector<NamedMask>& masks,
                                       bool force);
/// The same for one mask.
Outcome<AddedMasks> write_to_mask_file(const std::string& path, std::string name, BlockMask mask,
                                       bool force);

/// A line of a summary: "added to m.h5, which has 2 masks\n  ", with the indent of the next line.
/// Empty for a new file.
std::string added_text(const std::string& path, const AddedMasks& added);

/// --force of verbs that write masks.
OptionSpec force_masks_option();

}  // namespace fdma::maskc
