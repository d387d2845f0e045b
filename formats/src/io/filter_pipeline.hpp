// The filters of a chunk that FDMA undoes itself: shuffle, fletcher32 and deflate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "fdma/formats/result.hpp"
#include "h5_handle.hpp"

struct libdeflate_decompressor;

namespace fdma::io {

/// Uninitialised bytes, aligned for vectors, that grow on demand and lose what they held.
class ByteBuffer {
 public:
  std::byte* room(std::int64_t size);

 private:
  struct Free {
    void operator()(std::byte* bytes) const;
  };
  std::unique_ptr<std::byte, Free> bytes_;
  std::int64_t capacity_ = 0;
};

/// What one thread needs to decode chunks.
class DecodeScratch {
 public:
  /// Room for the stored bytes of a chunk, with kPadding behind them.
  std::byte* stored(std::int64_t size) { return stored_.room(size + kPadding); }

 private:
  friend class FilterPipeline;
  static constexpr std::int64_t kPadding = 64;
  struct Free {
    void operator()(libdeflate_decompressor* decompressor) const;
  };
  ByteBuffer stored_;
  ByteBuffer decoded_[2];
  std::unique_ptr<libdeflate_decompressor, Free> decompressor_;
};

/// A dataset's filters in the order in which they were applied.
///
/// Example     h5py's create_dataset(.., compression="gzip", shuffle=True, fletcher32=True)
/// Memory      max_memory_bytes() for each thread that decodes
class FilterPipeline {
 public:
  /// The filters of a dataset's creation properties, whose chunks have chunk_bytes when decoded; no
  /// value if one of them is for the HDF5 library.
  static std::optional<FilterPipeline> of(hid_t creation, std::int64_t chunk_bytes);

  /// True iff the stored bytes are the values when no filter was skipped.
  bool is_plain() const { return steps_.empty(); }
  /// More than this no chunk may take in the file.
  std::int64_t max_stored_bytes() const;
  std::int64_t max_memory_bytes() const;

  /// The chunk_bytes of values in the first `size` bytes of scratch.stored(size); bit i of
  /// filter_mask says that filter i was skipped. Borrowed from scratch. Errors: corrupt_file,
  /// out_of_memory; messages are sentence tails: "takes 7 bytes, expected 64".
  Result<const std::byte*> decode(std::int64_t size, std::uint32_t filter_mask,
                                  DecodeScratch& scratch) const;

 private:
  enum class Filter : std::uint8_t { shuffle, fletcher32, deflate };
  struct Step {
    Filter filter;
    std::int64_t element_bytes;  // of shuffle
  };
  /// Bytes that step `index` was given when the chunk was written.
  std::int64_t bytes_before(std::size_t index, std::uint32_t filter_mask) const;

  std::vector<Step> steps_;
  std::int64_t chunk_bytes_ = 0;
};

}  // namespace fdma::io
