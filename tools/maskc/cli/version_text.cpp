#include "cli/version_text.hpp"

#include <fmt/format.h>
#include <png.h>
#include <spdlog/version.h>

#include <boost/version.hpp>
#include <nlohmann/json.hpp>

#include "fdma/io/library_versions.hpp"
#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/backends.hpp"

namespace fdma::maskc {

std::string version_text() {
  const IoLibraries io = io_libraries();
  std::string text = fmt::format("fdma-maskc {}\n", FDMA_VERSION);
  const auto line = [&text](std::string_view what, const std::string& value) {
    text += fmt::format("  {:<10}{}\n", what, value);
  };
  line(
      "libraries",
      fmt::format("HDF5 {}, libdeflate {}, oneTBB {}, libpng {}, Boost {}.{}.{}, fmt {}.{}.{}, "
                  "spdlog {}.{}.{}, nlohmann-json {}.{}.{}",
                  io.hdf5, io.libdeflate, io.tbb, png_get_libpng_ver(nullptr),
                  BOOST_VERSION / 100000, BOOST_VERSION / 100 % 1000, BOOST_VERSION % 100,
                  FMT_VERSION / 10000, FMT_VERSION / 100 % 100, FMT_VERSION % 100, SPDLOG_VER_MAJOR,
                  SPDLOG_VER_MINOR, SPDLOG_VER_PATCH, NLOHMANN_JSON_VERSION_MAJOR,
                  NLOHMANN_JSON_VERSION_MINOR, NLOHMANN_JSON_VERSION_PATCH));
  line("filters", fmt::format("{}", fmt::join(io.filters, ", ")));
  line("simd", cpu_target());
  for (const Backend backend : registered_backends()) {
    const Result<void> runs = check_backend(backend);
    line(to_string(backend), runs ? "runs here" : runs.error().message);
  }
  return text;
}

}  // namespace fdma::maskc
