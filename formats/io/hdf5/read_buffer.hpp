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

/// The memory into which parts of a file are read before they are packed. Consecutive reads take
/// consecutive places in a ring that fits in the second-level cache of a core.
///
/// Example     ReadBuffer buffer;
///             for (each part of the file) {
///               FDMA_TRY(std::byte* values, buffer.read(descriptor, address, size));
///               .. pack them
///             }
/// Owner       owns the bytes; the bytes of a read are valid until the next read
/// Memory      max_bytes() of the largest read
class ReadBuffer {
 public:
  /// Bytes after those of each read that may be loaded, too; they are 0.
  static constexpr std::int64_t kPadding = 64;

  /// The number of bytes to read at once where the file's layout leaves the choice: the size of a
  /// core's second-level cache, between 256 KiB and 2 MiB.
  static std::int64_t bytes_at_once();
  /// The memory taken by a buffer whose reads have `size` bytes at most.
  static std::int64_t max_bytes(std::int64_t size);

  /// Bytes [address, address + size) of the file, 64-byte aligned. Errors: as read_exactly.
  Result<std::byte*> read(int descriptor, std::int64_t address, std::int64_t size);

 private:
  ByteBuffer bytes_;
  std::int64_t capacity_ = 0;
  std::int64_t next_ = 0;  // the end of the last read
};

}  // namespace fdma::io
