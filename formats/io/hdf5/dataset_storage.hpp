// Compares the bytes that the file holds for a dataset with what the dataset claims. Memory is
// taken only for bytes that can be there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "io/hdf5/untrusted_file.hpp"

namespace fdma::io {

/// Deflate shrinks by a factor of 1032 at most; a dataset that claims more than this has no data.
inline constexpr std::int64_t kMaxCompression = 1040;

/// The largest number of bytes that the stored bytes of the dataset can decode to.
std::int64_t most_bytes(const InputFile& input, const DatasetInfo& info, bool is_deflated);

/// Bytes of a chunk of elements, or most + 1 if they are more than `most`; 0 unless chunked.
std::int64_t chunk_bytes(const DatasetInfo& info, std::int64_t element_bytes, std::int64_t most);

/// Checks that the file can hold these elements, stored plainly or with gzip, shuffle and
/// fletcher32, in chunks of at most 256 MiB. In messages `where` comes first, and `what` is what
/// the dataset holds ("a tensor"). Errors: unsupported (another filter, larger chunks),
/// corrupt_file.
Result<void> check_storage(const InputFile& input, const DatasetInfo& info,
                           std::int64_t element_bytes, std::string_view what,
                           const std::string& where);

}  // namespace fdma::io
