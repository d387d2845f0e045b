// The central directory of a zip archive, as numpy.savez writes it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fdma/base/result.hpp"
#include "io/arrays/input_bytes.hpp"

namespace fdma::io {

/// One member of an archive.
struct ZipMember {
  std::string name;
  std::int64_t offset = 0;  ///< of its stored bytes in the file
  std::int64_t stored_bytes = 0;
  std::int64_t inflated_bytes = 0;
  std::uint32_t checksum = 0;
  bool is_deflated = false;
};

/// The members of the archive, all of whose stored bytes lie in the file.
///
/// Method      the end record, which may be followed by a comment; the directory that it names; the
///             local header of each member, which says where its bytes begin; zip64 for all three
/// Errors      corrupt_file, with the byte; unsupported (encryption, methods other than stored and
///             deflated, archives of several files)
Result<std::vector<ZipMember>> read_zip_directory(const InputBytes& file);

}  // namespace fdma::io
