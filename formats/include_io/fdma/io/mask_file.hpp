// Masks on disk: the HDF5 file format, version 1 (docs/file-format.md).
#pragma once

#include <string>
#include <vector>

#include "fdma/formats/block_mask.hpp"
#include "fdma/formats/result.hpp"

namespace fdma {

struct WriteOptions {
  bool compress = true;  ///< shuffle and deflate arrays above 4 KiB
};

/// One mask of a file.
struct NamedMask {
  std::string name;
  BlockMask mask;
};

/// Writes the masks as /masks/<name> of a new file at `path`, replacing what is there only when
/// everything is on disk: temporary file in the same folder, fsync, rename. On failure nothing at
/// `path` changes and the temporary is removed. Errors: invalid_argument (names), io (the reason of
/// the operating system).
Result<void> write_masks(const std::string& path, const std::vector<NamedMask>& masks,
                         const WriteOptions& options = {});

/// Names of the masks in a file, in alphabetical order. Errors: io, corrupt_file.
Result<std::vector<std::string>> list_masks(const std::string& path);

/// Reads one mask and validates it (ValidationLevel::structure; the content hash must agree). An
/// empty name takes the only mask of the file. Errors: io (absent), corrupt_file (everything that
/// is wrong inside), unsupported (newer version).
Result<BlockMask> read_mask(const std::string& path, const std::string& name = {});

/// Removes the temporary files of writes that are under way in this process: for a signal handler
/// that is about to end it. Async-signal-safe; a write that goes on all the same fails to rename.
void remove_pending_files() noexcept;

}  // namespace fdma
