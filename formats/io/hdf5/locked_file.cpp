// A writer replaces the file by another one, and with it the file that the next writer waits for. A
// program that gets the lock therefore checks that the path still leads to the file that it has
// locked, and otherwise starts again.
#include "io/hdf5/locked_file.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "io/hdf5/write_error.hpp"

namespace fdma::io {
namespace {

constexpr off_t kLockedByte = off_t{1} << 62;

// 0, or the error number if there is no lock.
int lock(int descriptor) {
  struct flock range {};
  range.l_type = F_WRLCK;
  range.l_whence = SEEK_SET;
  range.l_start = kLockedByte;
  range.l_len = 1;
  while (fcntl(descriptor, F_OFD_SETLKW, &range) != 0) {
    if (errno == EINTR) continue;
    const bool cannot_lock =
        errno == EINVAL || errno == ENOSYS || errno == ENOLCK || errno == ENOTSUP;
    return cannot_lock ? 0 : errno;
  }
  return 0;
}

}  // namespace

Result<std::optional<LockedFile>> LockedFile::open(const std::string& path) {
  for (;;) {
    // O_NONBLOCK: a pipe in place of a file must not make us wait for its reader.
    LockedFile file(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK));
    if (file.descriptor_ < 0) {
      if (errno == ENOENT) return std::optional<LockedFile>();
      return write_error(path, errno);
    }
    struct stat ours {
    }, there{};
    if (fstat(file.descriptor_, &ours) != 0) return write_error(path, errno);
    if (!S_ISREG(ours.st_mode)) {
      return Error{ErrorCode::io, fmt::format("cannot write '{}': not a regular file", path)};
    }
    if (const int failed = lock(file.descriptor_)) return write_error(path, failed);
    if (stat(path.c_str(), &there) != 0 || there.st_dev != ours.st_dev ||
        there.st_ino != ours.st_ino) {
      continue;
    }
    // HDF5 takes the same lock on files that it reads. If another program has the file open for
    // writing, what it had still to write would be lost.
    if (flock(file.descriptor_, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
      return Error{ErrorCode::io,
                   fmt::format("cannot write '{}': another program has it open for writing", path)};
    }
    if (fstat(file.descriptor_, &ours) != 0) return write_error(path, errno);
    file.size_bytes_ = ours.st_size;
    return std::optional<LockedFile>(std::move(file));
  }
}

LockedFile::~LockedFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

}  // namespace fdma::io
