// An HDF5 file driver over an open descriptor that remembers failed writes and does not report
// them.
#pragma once

#include "io/hdf5/h5_handle.hpp"

namespace fdma::io {

/// The place where an HDF5 file is written, or read from without a name. The caller owns it and
/// keeps it alive until the file is closed.
struct WriteTarget {
  int descriptor = -1;
  int error_number = 0;    ///< of the first write that failed; nothing is written after it
  haddr_t size_bytes = 0;  ///< size of the file when HDF5 opens it; 0 for a new one
};

/// A file access property list that sends the bytes of a file to `target`.
///
/// HDF5 1.10 cannot close a file whose last flush fails (a full disk): caches and identifiers stay
/// behind and its exit handler tries again. This driver therefore hides the failure: HDF5 closes as
/// usual, and the caller checks target->error_number afterwards.
Handle make_descriptor_access(WriteTarget* target);

}  // namespace fdma::io
