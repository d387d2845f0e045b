// An array as a .npy, .npz or safetensors file describes it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"

namespace fdma::io {

/// Nothing has been allocated on the file's word; sizes are checked against the file.
struct StoredArray {
  std::string name;     ///< empty for the array of a .npy file
  std::string problem;  ///< why its values cannot be read; empty if they can
  DType dtype = DType::boolean;
  std::vector<std::int64_t> extents;
  std::int64_t offset = 0;  ///< of the values; in a deflated member from its first inflated byte
  std::int64_t size_bytes = 0;

  // A deflated member of an archive.
  bool is_deflated = false;
  std::int64_t stored_offset = 0;
  std::int64_t stored_bytes = 0;
  std::int64_t inflated_bytes = 0;
  std::uint32_t checksum = 0;  ///< CRC-32 of the inflated bytes
};

/// Type and extents that the header of a .npy array states.
struct NpyHeader {
  std::string problem;
  DType dtype = DType::boolean;
  std::vector<std::int64_t> extents;
  std::int64_t data_offset = 0;  ///< from the begin of the header
};

/// The longest .npy header that is read, its magic included.
inline constexpr std::int64_t kMaxNpyHeader = (std::int64_t{1} << 16) + 16;

/// Reads the header at the front of `bytes`, which hold at least that or the whole file. `where` and
/// `base` name the file and the place of bytes[0] in it. Errors: corrupt_file, with the byte.
Result<NpyHeader> parse_npy_header(std::string_view bytes, const std::string& where,
                                   std::int64_t base);

/// The bytes of an array of these extents. Errors: corrupt_file (more than 2^62 bytes).
Result<std::int64_t> array_bytes(DType dtype, const std::vector<std::int64_t>& extents,
                                 const std::string& where);

}  // namespace fdma::io
