// Values of a dataset through the HDF5 library, whose silence about damaged chunks is made up for.
#pragma once

#include <cstdint>
#include <string>

#include "io/hdf5/untrusted_file.hpp"

namespace fdma::io {

/// Counts the chunks that are stored; 0 unless the dataset is chunked. HDF5 takes a chunk that it
/// does not find in a damaged index for one that was never written, and what a chunk decodes to
/// for a whole one: here the index is checked (RawChunks::check), and that deflated chunks, and by
/// what they say themselves those of szip and scaleoffset, have the size of a chunk. Errors:
/// corrupt_file, out_of_memory.
Result<std::int64_t> check_chunks(const InputFile& input, const DatasetInfo& info,
                                  const std::string& where);

/// While it lives, what is allocated holds bytes of 0x5a where the C library can do that (glibc),
/// if one of the dataset's filters is szip: its decoder leaves the end of a chunk that was cut
/// short as the memory was, and HDF5 does not say so. In a mask such a cell is neither keep nor
/// drop.
class MarkedMemory {
 public:
  explicit MarkedMemory(const DatasetInfo& info);
  ~MarkedMemory();
  MarkedMemory(const MarkedMemory&) = delete;
  MarkedMemory& operator=(const MarkedMemory&) = delete;

 private:
  bool is_marked_ = false;
};

/// Chunks that were never written.
enum class Gaps { filled, refused };

/// All values of a dataset into `out`, as elements of `memory_type`. Errors: as check_chunks;
/// corrupt_file (cannot be read, gaps that are refused).
Result<void> read_values(const InputFile& input, const DatasetInfo& info, hid_t memory_type,
                         void* out, Gaps gaps, const std::string& where);

}  // namespace fdma::io
