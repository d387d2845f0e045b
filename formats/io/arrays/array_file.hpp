// Files of plain arrays: .npy and .npz of NumPy, and safetensors. They are told by their first
// bytes, never by their names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fdma/base/result.hpp"
#include "io/arrays/input_bytes.hpp"
#include "io/arrays/stored_array.hpp"

namespace fdma::io {

enum class ArrayFileKind : std::uint8_t { npy, npz, safetensors };

/// The kind of the file; empty for other files, and where there is no file to read.
std::optional<ArrayFileKind> array_file_kind(const std::string& path);

/// An open file of arrays, whose description was checked against its size.
///
/// Example     FDMA_TRY(ArrayFile file, ArrayFile::open("masks.npz"));
///             FDMA_TRY(const StoredArray* mask, file.find("/mask"));
/// Errors      open: io, corrupt_file (with the byte), unsupported, out_of_memory
class ArrayFile {
 public:
  static Result<ArrayFile> open(const std::string& path);

  ArrayFileKind kind() const { return kind_; }
  const std::string& path() const { return bytes_.path(); }
  /// By ascending name.
  const std::vector<StoredArray>& arrays() const { return arrays_; }
  /// The array of that name, with or without a '/' before it; the only one for "/" and "". Errors:
  /// io (absent), invalid_argument (its values cannot be read).
  Result<const StoredArray*> find(std::string_view name) const;
  /// Reads bytes [begin, begin + count) of the values of an array that is not deflated.
  Result<void> read(const StoredArray& array, std::int64_t begin, std::int64_t count,
                    void* out) const;
  /// All values of an array. Errors: corrupt_file (deflate, the checksum), out_of_memory.
  Result<std::vector<std::byte>> read_all(const StoredArray& array) const;

 private:
  explicit ArrayFile(InputBytes bytes) : bytes_(std::move(bytes)) {}
  Result<void> open_npy();
  Result<void> open_npz();
  Result<void> open_safetensors();
  Result<std::vector<std::byte>> inflate(const StoredArray& array) const;

  InputBytes bytes_;
  ArrayFileKind kind_ = ArrayFileKind::npy;
  std::vector<StoredArray> arrays_;
};

}  // namespace fdma::io
