// Where a verb may write: never over what it reads, and never in silence over what it did not make.
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

/// Failure: usage, if --output is a file that an operand or another option of this run names, by
/// whatever path or link. Main asks this for every verb before the verb runs.
Status check_inputs_stay(const Command& command, const Arguments& arguments);

/// The checks of a destination that is a mask file, before the work: usage for "-", a place in a
/// file, a file that holds no masks, and a mask called `name` that is there already (the last two
/// not with `force`); file for a place that cannot be written. `instead`: what else than --force to
/// give for a name that is taken.
Status check_mask_destination(const std::string& path, const std::string& name, bool force,
                              std::string_view instead = "another --name");

/// Those of a destination that is an HDF5 file of results, which replaces one whose datasets all
/// are such, and no other file unless `force`. `what` the results are: "out and lse".
Status check_result_destination(const std::string& path, std::string_view what,
                                const std::function<bool(const std::string& dataset)>& is_result,
                                bool force);

/// Those of a picture or a text, which replace any file but an HDF5 file.
Status check_plain_destination(const std::string& path);

/// A file to be written there; Failure: file.
Outcome<PendingFile> open_destination(const std::string& path);

/// Adds the masks to the file, or makes it. `force` replaces masks of the same names, and a file
/// that holds no masks.
Outcome<AddedMasks> write_to_mask_file(const std::string& path, const std::vector<NamedMask>& masks,
                                       bool force);
/// The same of one mask.
Outcome<AddedMasks> write_to_mask_file(const std::string& path, std::string name, BlockMask mask,
                                       bool force);

/// A line of a summary, "added to m.h5, which has 2 masks\n  " (the next one begins); nothing for a
/// new file.
std::string added_text(const std::string& path, const AddedMasks& added);

/// --force of verbs that write masks.
OptionSpec force_masks_option();

}  // namespace fdma::maskc
