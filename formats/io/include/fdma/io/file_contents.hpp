// What an HDF5 file holds, whoever wrote it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "fdma/base/result.hpp"

namespace fdma {

/// One dataset of a file, as it says itself; no value was read.
struct DatasetEntry {
  std::string path;                   ///< "/layer/q"
  std::string type;                   ///< "float16", "boolean", "compound"
  std::vector<std::int64_t> extents;  ///< none for a scalar
};

struct FileContents {
  std::vector<DatasetEntry> datasets;  ///< by path, ascending
  bool is_complete = true;             ///< false: there are more
};

/// The first `max_datasets` datasets of the file at `path`. Links are not followed out of the file
/// nor, as soft links, inside it; a group that several hard links lead to is listed once, and none
/// that lies more than 256 groups deep. A dataset that cannot be opened has the type
/// "cannot be read".
///
/// Errors      io (absent), corrupt_file (not HDF5, damaged groups)
Result<FileContents> list_datasets(const std::string& path, std::int64_t max_datasets = 10000);

}  // namespace fdma
