// Writes an HDF5 file that appears complete or not at all, with small functions that every writer
// needs. HDF5 is asked for its oldest structures and object times are left out, so that equal input
// gives equal bytes and every HDF5 from 1.8 on reads them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "fdma/base/result.hpp"
#include "fdma/io/pending_file.hpp"
#include "io/hdf5/descriptor_driver.hpp"
#include "io/hdf5/h5_handle.hpp"

namespace fdma::io {

/// A failed call of HDF5. write_file turns it into an Error, since it knows the file's state.
struct WriteFailed {
  const char* what;
};
/// Throws WriteFailed unless `ok`.
void need(bool ok, const char* what);

/// Lets `fill` write into `file`, a new HDF5 file (size_bytes 0) or one that holds size_bytes
/// already. `path` is its name in messages. Errors: io.
using Fill = std::function<void(hid_t file, const WriteTarget& target)>;
Result<void> fill_file(PendingFile& file, std::int64_t size_bytes, const std::string& path,
                       const Fill& fill);

/// Creates a file, lets `fill` write into it, syncs it and moves it to `path`. On failure nothing
/// at `path` changes. `fill` may throw WriteFailed, and should stop when target.error_number is
/// set, because HDF5 itself does not see failures of the disk. Errors: io, out_of_memory.
Result<void> write_file(const std::string& path, const Fill& fill);

/// True for a valid object name: 1 to 255 bytes without '/' and zero bytes, not "." or "..".
bool is_link_name(const std::string& name);

/// The functions below throw WriteFailed.
Handle create_group(hid_t parent, const char* name);
Handle dataset_creation();
/// The type of fixed-length UTF-8 text, so that a reader need not trust lengths on a heap.
Handle string_type(std::size_t size);
void write_attribute(hid_t object, const char* name, std::int64_t value);
void write_attribute(hid_t object, const char* name, double value);
void write_attribute(hid_t object, const char* name, const std::string& text);

}  // namespace fdma::io
