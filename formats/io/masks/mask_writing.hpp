// Writes one mask into an open HDF5 file, either a new file (write_masks) or one that holds others
// already (add_masks).
#pragma once

#include <vector>

#include "fdma/io/mask_file.hpp"
#include "io/hdf5/output_file.hpp"

namespace fdma::io {

/// Errors: invalid_argument (a name that HDF5 cannot hold, a name twice, a mask that is not valid).
Result<void> check_masks(const std::vector<NamedMask>& masks);

/// Writes group `named.name` below `masks`, and stops at the first failure of the disk. Throws
/// WriteFailed.
void write_mask(hid_t masks, const NamedMask& named, const WriteTarget& target,
                const WriteOptions& options);

}  // namespace fdma::io
