// A regular file of unknown origin, read by byte ranges.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "fdma/base/result.hpp"

namespace fdma::io {

/// Owns a descriptor. Ranges outside the file are errors, never short reads.
class InputBytes {
 public:
  /// Errors: io (absent, a folder, not permitted, not a regular file).
  static Result<InputBytes> open(const std::string& path);
  InputBytes(InputBytes&& other) noexcept;
  InputBytes& operator=(InputBytes&& other) noexcept;
  ~InputBytes();

  const std::string& path() const { return path_; }
  std::int64_t size() const { return size_; }
  /// Reads bytes [offset, offset + count) to `out`. Errors: corrupt_file (beyond the end), io.
  Result<void> read(std::int64_t offset, std::int64_t count, void* out) const;
  /// The same as a string, for at most `count` bytes: fewer at the end of the file.
  Result<std::string> text(std::int64_t offset, std::int64_t count) const;

 private:
  InputBytes() = default;
  std::string path_;
  std::int64_t size_ = 0;
  int descriptor_ = -1;
};

}  // namespace fdma::io
