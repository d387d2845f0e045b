// The libraries that read and write files, for reports.
#pragma once

#include <string>
#include <vector>

namespace fdma {

struct IoLibraries {
  std::string hdf5;  ///< "1.10.8", of the library that is loaded
  std::string libdeflate;
  std::string tbb;
  std::vector<std::string> filters;  ///< of dense datasets and tables: "gzip", "lzf", "szip"
};

/// What this process has loaded. Plugins are not counted.
IoLibraries io_libraries();

}  // namespace fdma
