// The filters of a chunk that FDMA undoes itself: shuffle, fletcher32, deflate and lzf.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fdma/base/result.hpp"
#include "io/hdf5/h5_handle.hpp"
#include "io/hdf5/read_buffer.hpp"

struct libdeflate_decompressor;

namespace fdma::io {

/// The memory that one thread needs to decode chunks, beside a ReadBuffer for the stored bytes.
class DecodeScratch {
 private:
  friend class FilterPipeline;
  struct Free {
    void operator()(libdeflate_decompressor* decompressor) const;
  };
  ByteBuffer decoded_[2];
  std::unique_ptr<libdeflate_decompressor, Free> decompressor_;
};

/// A dataset's filters in the order in which they were applied.
///
/// Example     h5py's create_dataset(.., compression="gzip", shuffle=True, fletcher32=True)
/// Memory      max_memory_bytes() for each thread that decodes
class FilterPipeline {
 public:
  /// The filters of a dataset's creation properties; its chunks have chunk_bytes when decoded.
  /// Empty if only the HDF5 library can undo one of them.
  static std::optional<FilterPipeline> of(hid_t creation, std::int64_t chunk_bytes);

  /// True iff the stored bytes are the values when no filter was skipped.
  bool is_plain() const { return steps_.empty(); }
  /// Whether a filter makes chunks smaller than their values.
  bool compresses() const;
  /// The most bytes that a chunk can take in the file.
  std::int64_t max_stored_bytes() const;
  /// The most bytes that a DecodeScratch can take.
  std::int64_t max_memory_bytes() const;

  /// The chunk_bytes of values that the `size` bytes at `stored` decode to. ReadBuffer::kPadding
  /// bytes of any value can be read after them. Bit i of filter_mask says that filter i was
  /// skipped. The result borrows from `stored` or scratch. Errors: corrupt_file, out_of_memory;
  /// messages are ends of sentences: "takes 7 bytes, expected 64".
  Result<const std::byte*> decode(const std::byte* stored, std::int64_t size,
                                  std::uint32_t filter_mask, DecodeScratch& scratch) const;

 private:
  enum class Filter : std::uint8_t { shuffle, fletcher32, deflate, lzf };
  struct Step {
    Filter filter;
    std::int64_t element_bytes;  // of shuffle
  };
  /// The number of bytes that step `index` was given when the chunk was written.
  std::int64_t bytes_before(std::size_t index, std::uint32_t filter_mask) const;

  std::vector<Step> steps_;
  std::int64_t chunk_bytes_ = 0;
};

}  // namespace fdma::io
