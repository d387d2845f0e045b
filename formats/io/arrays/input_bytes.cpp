#include "io/arrays/input_bytes.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

namespace fdma::io {

Result<InputBytes> InputBytes::open(const std::string& path) {
  const auto refused = [&](int error_number) {
    return Error{ErrorCode::io, fmt::format("cannot open '{}': {}", path,
                                            std::generic_category().message(error_number))};
  };
  if (path.find('\0') != std::string::npos) return refused(EINVAL);
  InputBytes file;
  file.path_ = path;
  // O_NONBLOCK: a pipe in place of a file must not make us wait for its writer.
  file.descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (file.descriptor_ < 0) return refused(errno);
  struct stat status {};
  if (fstat(file.descriptor_, &status) != 0) return refused(errno);
  if (S_ISDIR(status.st_mode)) return refused(EISDIR);
  if (!S_ISREG(status.st_mode)) {
    return Error{ErrorCode::io, fmt::format("cannot open '{}': not a regular file", path)};
  }
  file.size_ = status.st_size;
  return file;
}

InputBytes::InputBytes(InputBytes&& other) noexcept
    : path_(std::move(other.path_)),
      size_(other.size_),
      descriptor_(std::exchange(other.descriptor_, -1)) {}

InputBytes& InputBytes::operator=(InputBytes&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(size_, other.size_);
  std::swap(descriptor_, other.descriptor_);
  return *this;
}

InputBytes::~InputBytes() {
  if (descriptor_ >= 0) close(descriptor_);
}

Result<void> InputBytes::read(std::int64_t offset, std::int64_t count, void* out) const {
  if (offset < 0 || count < 0 || offset > size_ || count > size_ - offset) {
    return Error{ErrorCode::corrupt_file,
                 fmt::format("'{}': byte {}: expected {} bytes from here, but the file ends at {}",
                             path_, offset, count, size_)};
  }
  auto* at = static_cast<char*>(out);
  while (count > 0) {
    const ssize_t got = pread(descriptor_, at, static_cast<std::size_t>(count), offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) {
      return Error{ErrorCode::io, fmt::format("cannot read '{}': {}", path_,
                                              std::generic_category().message(errno))};
    }
    if (got == 0) {
      return Error{
          ErrorCode::corrupt_file,
          fmt::format("'{}': byte {}: the file ends here, it was cut off while it was read", path_,
                      offset)};
    }
    at += got;
    offset += got;
    count -= got;
  }
  return {};
}

Result<std::string> InputBytes::text(std::int64_t offset, std::int64_t count) const {
  std::string bytes;
  if (offset >= size_) return bytes;
  bytes.resize(static_cast<std::size_t>(std::min(count, size_ - offset)));
  FDMA_TRY_VOID(read(offset, static_cast<std::int64_t>(bytes.size()), bytes.data()));
  return bytes;
}

}  // namespace fdma::io
