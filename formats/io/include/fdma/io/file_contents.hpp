// The contents of an HDF5 file of any origin.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fdma/base/result.hpp"

namespace fdma {

/// One dataset of a file, as its header describes it. No value is read.
struct DatasetEntry {
  std::string path;                   ///< "/layer/q"
  std::string type;                   ///< "float16", "boolean", "compound"
  std::vector<std::int64_t> extents;  ///< empty for a scalar
};

struct FileContents {
  std::vector<DatasetEntry> datasets;  ///< by ascending path
  bool is_complete = true;             ///< false: there are more
};

/// The first `max_datasets` datasets of the file at `path`. Soft links, and links out of the file,
/// are not followed. A group that several hard links lead to is listed once. Groups more than 256
/// groups deep are not listed. A dataset that cannot be opened has the type "cannot be read".
///
/// Errors      io (absent), corrupt_file (not HDF5, damaged groups)
Result<FileContents> list_datasets(const std::string& path, std::int64_t max_datasets = 10000);

}  // namespace fdma
