// Values of a dataset through the HDF5 library, with the checks of chunks that the library omits.
#pragma once

#include <cstdint>
#include <string>

#include "io/hdf5/untrusted_file.hpp"

namespace fdma::io {

/// Checks the chunks of a dataset and counts those that are stored; 0 unless it is chunked. HDF5
/// takes a chunk that it does not find in a damaged index for one that was never written, and takes
/// any decoded chunk for a whole one. This function checks the index (RawChunks::check). It also
/// checks that deflated chunks have the size of a chunk, and those of szip and scaleoffset by what
/// they say themselves. Errors: corrupt_file, out_of_memory.
Result<std::int64_t> check_chunks(const InputFile& input, const DatasetInfo& info,
                                  const std::string& where);

/// While this object lives, allocated memory holds bytes of 0x5a where the C library can do that
/// (glibc), if one of the dataset's filters is szip. The decoder of szip leaves the end of a chunk
/// that was cut short as the memory was, and HDF5 does not report it. Such a cell of a mask is then
/// neither keep nor drop.
class MarkedMemory {
 public:
  explicit MarkedMemory(const DatasetInfo& info);
  ~MarkedMemory();
  MarkedMemory(const MarkedMemory&) = delete;
  MarkedMemory& operator=(const MarkedMemory&) = delete;

 private:
  bool is_marked_ = false;
};

/// What to do with chunks that were never written.
enum class Gaps { filled, refused };

/// Reads all values of a dataset into `out`, as elements of `memory_type`. Errors: as check_chunks;
/// corrupt_file (cannot be read, gaps that are refused).
Result<void> read_values(const InputFile& input, const DatasetInfo& info, hid_t memory_type,
                         void* out, Gaps gaps, const std::string& where);

}  // namespace fdma::io
