// The places of a dataset's chunks in the file.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "io/hdf5/chunk_tree.hpp"
#include "io/hdf5/untrusted_file.hpp"

namespace fdma::io {

struct ChunkNotes;

/// Finds chunks by HDF5's own index, whatever its kind, without reading them.
///
/// HDF5 1.10 has no function that gives a chunk's address in less than a walk over all chunks.
/// However, H5Dread_chunk looks one chunk up and then asks the file driver for its bytes. The
/// driver used here answers questions for metadata, and when raw data is asked for it only notes
/// address and size. The addresses are thus those that HDF5 reads from, userblock included.
///
/// Memory      that of HDF5 for a second view of the open file
class RawChunks {
 public:
  /// `input` is open and `dataset` names a chunked dataset in it. Errors: as open_dataset.
  static Result<RawChunks> open(const InputFile& input, const std::string& dataset,
                                const std::string& where);
  RawChunks(RawChunks&&) noexcept;
  RawChunks& operator=(RawChunks&&) noexcept;
  ~RawChunks();

  /// Counts the chunks that are stored, and checks the index. What HDF5 does not find in a damaged
  /// index counts as never written, so the index is checked as a whole. Each of its chunks lies at
  /// a multiple of the chunk's sides inside the extents and is found there, once. No chunk overlaps
  /// another one or the begin of the file's structures.
  ///
  /// Cost        the version 1 B-tree is read once more; with another index every chunk of the
  ///             extents is looked up; memory 16 B for each run of chunks that are adjacent in the
  ///             file
  /// Errors      corrupt_file
  Result<std::int64_t> check();
  /// Visits every stored chunk. Errors: corrupt_file; those of `visit`.
  Result<void> visit(const ChunkVisit& visit);

  /// The chunk whose first element is at `begin`. The place lies inside the file and has at most
  /// max_bytes. Errors: corrupt_file.
  Result<ChunkPlace> find(const std::vector<std::int64_t>& begin, std::int64_t max_bytes);

 private:
  RawChunks();

  bool has_tree() const;
  Result<void> visit_tree(const ChunkVisit& visit) const;
  Result<void> visit_slots(const ChunkVisit& visit);
  /// The chunk or chunks whose bytes hold `address`, as text.
  Result<std::string> chunks_at(std::int64_t address);

  std::unique_ptr<ChunkNotes> notes_;  // outlives file_ and info_, whose driver points to it
  Handle file_;
  DatasetInfo info_;
  std::string where_;
  std::vector<hsize_t> offset_;
};

/// Reads exactly [address, address + size) of the file. Errors: io, corrupt_file (the file ends
/// before).
Result<void> read_exactly(int descriptor, std::int64_t address, std::int64_t size, std::byte* out);

/// The descriptor of an open file. Owned by HDF5. Errors: io.
Result<int> descriptor_of(const InputFile& input);

/// Whether [address, address + size) lies in a file of file_bytes.
inline bool is_inside(std::uint64_t address, std::uint64_t size, std::int64_t file_bytes) {
  const auto end = static_cast<std::uint64_t>(file_bytes);
  return size <= end && address <= end - size;
}

}  // namespace fdma::io
