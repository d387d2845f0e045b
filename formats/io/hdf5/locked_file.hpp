// Files that several programs change: each program waits until the one before it is done.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "fdma/base/result.hpp"

namespace fdma::io {

/// The open file at a path, locked against other programs that would replace it. It stays at that
/// path as long as all of them ask for the lock.
///
/// The lock is on a byte that no file has, by fcntl and for this open file (F_OFD_SETLKW), so that
/// it does not meet HDF5's own lock, which is by flock. Python's fdma.save takes the same lock. On
/// file systems that cannot lock, files are used without.
class LockedFile {
 public:
  /// Waits for the lock; the caller must hold no other one. Empty if there is no file. Errors: io
  /// (not a regular file, not writable, open for writing by a program that uses HDF5).
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
