#include "io/hdf5/dataset_storage.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "io/hdf5/checked_group.hpp"

namespace fdma::io {

std::int64_t most_bytes(const InputFile& input, const DatasetInfo& info, bool is_deflated) {
  constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();
  const std::int64_t stored = std::min(info.storage_bytes, input.size_bytes);
  const std::int64_t factor = is_deflated ? kMaxCompression : 1;
  return stored > kMax / factor ? kMax : stored * factor;
}

std::int64_t chunk_bytes(const DatasetInfo& info, std::int64_t element_bytes, std::int64_t most) {
  if (info.chunk.empty()) return 0;
  std::int64_t bytes = element_bytes;
  for (const std::int64_t side : info.chunk) bytes = bytes > most / side ? most + 1 : bytes * side;
  return bytes;
}

Result<void> check_storage(const InputFile& input, const DatasetInfo& info,
                           std::int64_t element_bytes, std::string_view what,
                           const std::string& where) {
  constexpr std::int64_t kMaxChunkBytes = std::int64_t{256} << 20;
  bool is_deflated = false;
  const int num_filters = H5Pget_nfilters(info.creation.get());
  for (int i = 0; i < num_filters; ++i) {
    unsigned flags = 0, config = 0;
    std::size_t num_values = 0;
    const H5Z_filter_t filter = H5Pget_filter2(info.creation.get(), static_cast<unsigned>(i),
                                               &flags, &num_values, nullptr, 0, nullptr, &config);
    if (filter == H5Z_FILTER_DEFLATE) {
      if (is_deflated) return corrupt(where, "deflated twice");
      is_deflated = true;
    } else if (filter != H5Z_FILTER_SHUFFLE && filter != H5Z_FILTER_FLETCHER32) {
      return Error{ErrorCode::unsupported,
                   fmt::format("{}: filter {}; {} is stored plainly or with gzip, shuffle and "
                               "fletcher32",
                               where, static_cast<int>(filter), what)};
    }
  }
  if (chunk_bytes(info, element_bytes, kMaxChunkBytes) > kMaxChunkBytes) {
    return Error{ErrorCode::unsupported,
                 fmt::format("{}: chunks {} take more than {} bytes each", where,
                             extents_text(info.chunk), kMaxChunkBytes)};
  }
  if (info.num_elements > most_bytes(input, info, is_deflated) / element_bytes) {
    return corrupt(where, fmt::format("extents {} of {} bytes each, but the file holds only {} "
                                      "bytes of it (values never written, or cut off)",
                                      extents_text(info.extents), element_bytes,
                                      std::min(info.storage_bytes, input.size_bytes)));
  }
  return {};
}

}  // namespace fdma::io
