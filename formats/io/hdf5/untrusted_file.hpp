// Opens files and objects of unknown origin. Links are followed one by one, and storage is
// inspected before anything is read.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "fdma/base/result.hpp"
#include "io/hdf5/h5_handle.hpp"

namespace fdma::io {

/// A file open for reading.
struct InputFile {
  std::string path;
  std::int64_t size_bytes = 0;
  Handle file;
};

/// Opens a regular file that holds HDF5. Errors: io (absent, a folder, not permitted), corrupt_file
/// (empty, not HDF5, truncated, of a version that this HDF5 does not read). HDF5 keeps up to
/// cache_bytes of the chunks of a dataset, 0 for its default (1 MiB).
Result<InputFile> open_input(const std::string& path, std::int64_t cache_bytes = 0);

/// Opens the object at `name` ("/a/b") below `base`. Soft links are followed as long as they stay
/// inside the file; external and user-defined ones are refused. `where` begins the messages.
/// Errors: io (absent), corrupt_file.
Result<Handle> open_object(hid_t base, const std::string& name, const std::string& where);

/// A dataset's description of itself. Nothing has been read or allocated on its word.
struct DatasetInfo {
  Handle dataset;
  Handle type;
  Handle creation;  ///< its creation property list
  std::vector<std::int64_t> extents;
  std::vector<std::int64_t> chunk;  ///< empty unless chunked
  std::int64_t storage_bytes = 0;   ///< bytes in the file
  std::int64_t num_elements = 0;
};

/// Opens `name` below `base` as a dataset whose bytes lie in this file. Errors: as open_object;
/// corrupt_file for external storage, a virtual dataset, a null dataspace, extents whose product
/// overflows; unsupported for a filter that is not installed.
Result<DatasetInfo> open_dataset(hid_t base, const std::string& name, const std::string& where);

/// Checks that the bits of a number lie inside its bytes. Errors: corrupt_file.
Result<void> check_bits(hid_t type, const std::string& where);

/// The attribute `name` if it is there and is one string of up to 64 KiB.
Result<std::optional<std::string>> read_string_attribute(hid_t object, const char* name,
                                                         const std::string& where);

/// "[4, 128]"
std::string extents_text(const std::vector<std::int64_t>& extents);
/// "int32", "float16", "compound" and so on, for messages.
std::string type_text(hid_t type);

/// True for the enumeration that h5py writes for booleans: FALSE = 0, TRUE = 1 and nothing else.
bool is_boolean_enum(hid_t type);

/// A corrupt_file error of `where`, `what` and HDF5's last reason.
Error hdf5_error(const std::string& where, const std::string& what);

}  // namespace fdma::io
