// The group /masks of a file, for code that reads or changes its masks.
#pragma once

#include <string>
#include <vector>

#include "io/hdf5/untrusted_file.hpp"

namespace fdma::io {

/// Errors: corrupt_file (no such group).
Result<Handle> open_masks_group(const InputFile& input);

/// "a, b, c and 12 more"
std::string some_of(const std::vector<std::string>& names);

/// "'m.h5' holds no mask 'c'; it holds: a, b"
Error no_such_mask(const std::string& path, const std::string& name,
                   const std::vector<std::string>& names);

}  // namespace fdma::io
