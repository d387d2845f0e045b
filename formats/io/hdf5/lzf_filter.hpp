// h5py's second filter, LZF, of which the HDF5 library has no decoder.
#pragma once

#include <hdf5.h>

#include <cstddef>
#include <cstdint>

namespace fdma::io {

/// The number under which HDF5 files name the filter.
inline constexpr H5Z_filter_t kLzfFilter = 32000;

/// Decodes the `size` bytes at `stored` into at most `capacity` bytes at `out`. Returns the number
/// of bytes made, or -1 if the stored bytes are no LZF or need more room.
///
/// Method      a control byte below 32 copies the next control + 1 bytes; any other repeats 3 to
///             264 bytes that were made before, up to 8192 bytes back
/// Cost        about 1 ns a byte
std::int64_t decode_lzf(const std::byte* stored, std::int64_t size, std::byte* out,
                        std::int64_t capacity);

/// Lets the HDF5 library of this process decode LZF. Call it inside a Session.
void register_lzf_filter();

}  // namespace fdma::io
