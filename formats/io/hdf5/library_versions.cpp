#include "fdma/io/library_versions.hpp"

#include <fmt/format.h>
#include <hdf5.h>
#include <libdeflate.h>
#include <tbb/version.h>

#include <utility>

#include "io/hdf5/h5_handle.hpp"
#include "io/hdf5/lzf_filter.hpp"

namespace fdma {

IoLibraries io_libraries() {
  const io::Session session;
  IoLibraries libraries;
  unsigned major = 0, minor = 0, release = 0;
  H5get_libversion(&major, &minor, &release);
  libraries.hdf5 = fmt::format("{}.{}.{}", major, minor, release);
  libraries.libdeflate = LIBDEFLATE_VERSION_STRING;
  libraries.tbb = TBB_runtime_version();
  for (const auto& [filter, name] :
       {std::pair<H5Z_filter_t, const char*>{H5Z_FILTER_DEFLATE, "gzip"},
        {io::kLzfFilter, "lzf"},
        {H5Z_FILTER_SHUFFLE, "shuffle"},
        {H5Z_FILTER_FLETCHER32, "fletcher32"},
        {H5Z_FILTER_SZIP, "szip"},
        {H5Z_FILTER_NBIT, "nbit"},
        {H5Z_FILTER_SCALEOFFSET, "scaleoffset"}}) {
    if (H5Zfilter_avail(filter) > 0) libraries.filters.emplace_back(name);
  }
  return libraries;
}

}  // namespace fdma
