// Files that several programs change: each waits until the one before it is done.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "fdma/base/result.hpp"

namespace fdma::io {

/// The file at a path, open, and locked against others that would put another in its place: it is
/// at that path for as long as they all ask for the lock.
///
/// The lock is on a byte that no file has, by fcntl and of this open file (F_OFD_SETLKW), so that
/// HDF5, which locks by flock, does not meet it; Python's fdma.save takes the same one. File
/// systems that cannot lock are used without.
class LockedFile {
 public:
  /// Nothing if there is no file. Waits for the lock: hold no other. Errors: io (not a regular
  /// file, not writable, open for writing by a program that uses HDF5).
  static Result<std::optional<LockedFile>> open(const std::string& path);
  LockedFile(LockedFile&& other) noexcept
      : descriptor_(std::exchange(other.descriptor_, -1)), size_bytes_(other.size_bytes_) {}
  LockedFile& operator=(LockedFile&&) = delete;
  ~LockedFile();

  int descriptor() const { return descriptor_; }
  std::int64_t size_bytes() const { return size_bytes_; }

 private:
  explicit LockedFile(int descriptor) : descriptor_(descriptor) {}

  int descriptor_ = -1;
  std::int64_t size_bytes_ = 0;
};

}  // namespace fdma::io
