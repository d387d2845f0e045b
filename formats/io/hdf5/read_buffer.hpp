// The memory into which one thread reads the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "fdma/base/result.hpp"

namespace fdma::io {

/// Uninitialised bytes, aligned for vectors, that grow on demand; growing loses their contents.
class ByteBuffer {
 public:
  std::byte* room(std::int64_t size);

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  std::unique_ptr<std::byte, Free> bytes_;
  std::int64_t capacity_ = 0;
};

/// The memory for pieces of a file before they are packed. Consecutive pieces take consecutive
/// places in a ring that fits in the second-level cache of a core.
///
/// Example     ReadBuffer buffer;
///             for (pieces) {
///               FDMA_TRY(std::byte* values, buffer.read(descriptor, address, size));
///               .. pack them
///             }
/// Owner       owns the bytes; a piece is valid until the next one is read
/// Memory      max_bytes() of the largest piece
class ReadBuffer {
 public:
  /// Bytes after each piece that may be read; they are 0.
  static constexpr std::int64_t kPadding = 64;

  /// The number of bytes to read at once where the file's layout leaves the choice: the size of a
  /// core's second-level cache, between 256 KiB and 2 MiB.
  static std::int64_t piece_bytes();
  /// The memory taken by a buffer whose pieces have `size` bytes at most.
  static std::int64_t max_bytes(std::int64_t size);

  /// Bytes [address, address + size) of the file, 64-byte aligned. Errors: as read_exactly.
  Result<std::byte*> read(int descriptor, std::int64_t address, std::int64_t size);

 private:
  ByteBuffer bytes_;
  std::int64_t capacity_ = 0;
  std::int64_t next_ = 0;  // the end of the last piece
};

}  // namespace fdma::io
