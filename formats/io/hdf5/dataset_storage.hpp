// What the file holds of a dataset, against what the dataset claims: memory is taken only for bytes
// that can be there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "io/hdf5/untrusted_file.hpp"

namespace fdma::io {

/// Deflate shrinks by 1032 at most; a dataset that claims more than this factor has no data.
inline constexpr std::int64_t kMaxCompression = 1040;

/// The most bytes that what the file holds of the dataset can stand for.
std::int64_t most_bytes(const InputFile& input, const DatasetInfo& info, bool is_deflated);

/// Bytes of a chunk of elements, or most + 1 where they are more than `most`; 0 unless chunked.
std::int64_t chunk_bytes(const DatasetInfo& info, std::int64_t element_bytes, std::int64_t most);

/// The file can hold these elements, plainly or with gzip, shuffle and fletcher32, in chunks of 256
/// MiB at most. In messages `what` is what the dataset holds ("a tensor"), and `where` begins them.
/// Errors: unsupported (another filter, larger chunks), corrupt_file.
Result<void> check_storage(const InputFile& input, const DatasetInfo& info,
                           std::int64_t element_bytes, std::string_view what,
                           const std::string& where);

}  // namespace fdma::io
