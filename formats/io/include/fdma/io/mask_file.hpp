// Masks on disk: the HDF5 file format, version 2 (docs/file-format.md).
#pragma once

#include <string>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/io/pending_file.hpp"

namespace fdma {

struct WriteOptions {
  bool compress = true;  ///< shuffle and deflate arrays above 4 KiB
};

/// One mask of a file.
struct NamedMask {
  std::string name;
  BlockMask mask;
};

/// Writes the masks as /masks/<name> of a new file at `path`. An existing file is replaced only
/// when everything is on disk (temporary file in the same folder, fsync, rename). On failure
/// nothing at `path` changes and the temporary file is removed.
///
/// Errors      invalid_argument (names), io (the reason of the operating system)
Result<void> write_masks(const std::string& path, const std::vector<NamedMask>& masks,
                         const WriteOptions& options = {});

struct AddOptions {
  bool overwrite = false;     ///< a mask of the same name in the file is replaced, not an error
  bool replace_file = false;  ///< a file that is no mask file is replaced, not an error
  WriteOptions write;
};

/// What add_masks did to the file.
struct AddedMasks {
  std::vector<std::string> names;     ///< every mask that the file holds now, in alphabetical order
  std::vector<std::string> replaced;  ///< names of the new masks that the file held before
  bool is_new_file = false;           ///< there was no file, or an empty one
  bool replaced_file = false;         ///< there was a file that held no masks
};

/// Adds the masks to the file at `path`, which keeps everything else that it holds. Without a file
/// there, or with one of no bytes, it does as write_masks. The file changes in one step or not at
/// all. Programs that add to one file at the same time (fdma.save of Python is one) wait for each
/// other, so that all of their masks are in it at the end.
///
/// Errors      invalid_argument: names; a file that is no mask file (without replace_file); a mask
///             of that name in the file (without overwrite)
///             io: the reason of the operating system; another program has the file open for
///             writing unsupported, corrupt_file: HDF5 cannot read the file
/// Cost        that of write_masks and a copy of the file
Result<AddedMasks> add_masks(const std::string& path, const std::vector<NamedMask>& masks,
                             const AddOptions& options = {});

/// Removes masks from a file, which keeps everything else that it holds; without its last mask it
/// is an empty mask file. The file changes in one step or not at all, as in add_masks. Returns the
/// names that are left.
///
/// Errors      those of add_masks; invalid_argument (no mask file), io (absent, no mask of that
///             name)
Result<std::vector<std::string>> remove_masks(const std::string& path,
                                              const std::vector<std::string>& names);

/// Names of the masks in a file, in alphabetical order. Errors: io, corrupt_file.
Result<std::vector<std::string>> list_masks(const std::string& path);

/// Reads one mask and validates it at ValidationLevel::structure; the content hash must agree. An
/// empty name means the only mask of the file.
///
/// Errors      io (absent), corrupt_file (any fault inside), unsupported (newer version)
Result<BlockMask> read_mask(const std::string& path, const std::string& name = {});

}  // namespace fdma
