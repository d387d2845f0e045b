// Filters are undone last first. The size that each of them must produce follows from the chunk's
// shape, because at most one of them compresses. A chunk that decodes to another size is corrupt,
// so no file can make this code allocate or write more than a chunk.
//
// libdeflate's fast loop needs room: within some 40 bytes of the input's end and 300 bytes of the
// output's end it goes on byte by byte. A mask of 256 KiB may compress to 300 bytes, and 40 of
// these stand for an eighth of the mask. Both ends therefore get padding, and the sizes are checked
// afterwards: such masks decode at 19 GB/s instead of 4 GB/s.
#include "io/hdf5/filter_pipeline.hpp"

#include <fmt/format.h>
#include <libdeflate.h>

#include <algorithm>

#include "io/hdf5/dense_kernels.hpp"
#include "io/hdf5/lzf_filter.hpp"

namespace fdma::io {
namespace {

constexpr std::int64_t kChecksumBytes = 4;
constexpr std::int64_t kOutputPadding = 512;

// HDF5 before 1.6.3 swapped the bytes of both halves on little-endian machines, and still accepts
// that.
bool is_checksum(std::uint32_t stored, std::uint32_t computed) {
  const std::uint32_t swapped = (computed & 0x00ff00ff) << 8 | (computed >> 8 & 0x00ff00ff);
  return stored == computed || stored == swapped;
}

std::uint32_t little_endian32(const std::byte* bytes) {
  std::uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return value;
}

bool is_skipped(std::uint32_t filter_mask, std::size_t index) {
  return (filter_mask >> index & 1) != 0;
}

Error corrupt(const std::string& text) { return {ErrorCode::corrupt_file, text}; }

}  // namespace

void DecodeScratch::Free::operator()(libdeflate_decompressor* decompressor) const {
  libdeflate_free_decompressor(decompressor);
}

std::optional<FilterPipeline> FilterPipeline::of(hid_t creation, std::int64_t chunk_bytes) {
  constexpr int kMaxFilters = 32;  // bits of a filter mask
  FilterPipeline pipeline;
  pipeline.chunk_bytes_ = chunk_bytes;
  const int num_filters = H5Pget_nfilters(creation);
  if (num_filters < 0 || num_filters > kMaxFilters) return std::nullopt;
  bool compresses = false;
  for (int i = 0; i < num_filters; ++i) {
    unsigned flags = 0, config = 0, values[8] = {};
    std::size_t num_values = std::size(values);
    char name[1] = "";
    switch (H5Pget_filter2(creation, static_cast<unsigned>(i), &flags, &num_values, values,
                           sizeof name, name, &config)) {
      case H5Z_FILTER_SHUFFLE:
        if (num_values != 1 || values[0] == 0) return std::nullopt;
        pipeline.steps_.push_back({Filter::shuffle, values[0]});
        break;
      case H5Z_FILTER_FLETCHER32:
        pipeline.steps_.push_back({Filter::fletcher32, 0});
        break;
      case H5Z_FILTER_DEFLATE:
        if (compresses) return std::nullopt;
        compresses = true;
        pipeline.steps_.push_back({Filter::deflate, 0});
        break;
      case kLzfFilter:
        if (compresses) return std::nullopt;
        compresses = true;
        pipeline.steps_.push_back({Filter::lzf, 0});
        break;
      default:
        return std::nullopt;
    }
  }
  return pipeline;
}

bool FilterPipeline::compresses() const {
  return std::any_of(steps_.begin(), steps_.end(), [](const Step& step) {
    return step.filter == Filter::deflate || step.filter == Filter::lzf;
  });
}

std::int64_t FilterPipeline::max_stored_bytes() const {
  // Deflate adds at most 0.1 % (stored blocks), lzf nothing; a larger chunk was not made by them.
  return chunk_bytes_ + chunk_bytes_ / 8 + 4096;
}

std::int64_t FilterPipeline::max_memory_bytes() const {
  if (is_plain()) return 0;
  const std::int64_t decoded = chunk_bytes_ + std::ssize(steps_) * kChecksumBytes + kOutputPadding;
  return 2 * decoded;
}

std::int64_t FilterPipeline::bytes_before(std::size_t index, std::uint32_t filter_mask) const {
  std::int64_t bytes = chunk_bytes_;
  for (std::size_t i = 0; i < index; ++i) {
    if (steps_[i].filter == Filter::fletcher32 && !is_skipped(filter_mask, i)) {
      bytes += kChecksumBytes;
    }
  }
  return bytes;
}

Result<const std::byte*> FilterPipeline::decode(const std::byte* stored, std::int64_t size,
                                                std::uint32_t filter_mask,
                                                DecodeScratch& scratch) const {
  const std::byte* bytes = stored;
  int next = 0;  // index into scratch.decoded_
  for (std::size_t i = steps_.size(); i-- > 0;) {
    if (is_skipped(filter_mask, i)) continue;
    if (steps_[i].filter == Filter::fletcher32) {
      if (size < kChecksumBytes) return corrupt("is too short for its checksum");
      size -= kChecksumBytes;
      if (!is_checksum(little_endian32(bytes + size), fletcher32(bytes, size))) {
        return corrupt("does not match its checksum (fletcher32)");
      }
    } else if (steps_[i].filter == Filter::shuffle) {
      const std::int64_t element_bytes = steps_[i].element_bytes;
      if (element_bytes == 1 || size / element_bytes < 2) continue;
      std::byte* out = scratch.decoded_[next].room(size + kOutputPadding);
      unshuffle(bytes, size, element_bytes, out);
      bytes = out;
      next ^= 1;
    } else if (steps_[i].filter == Filter::lzf) {
      const std::int64_t expected = bytes_before(i, filter_mask);
      std::byte* out = scratch.decoded_[next].room(expected + kOutputPadding);
      const std::int64_t made = decode_lzf(bytes, size, out, expected);
      if (made < 0) return corrupt(fmt::format("is no lzf of {} bytes", expected));
      if (made != expected) {
        return corrupt(fmt::format("decodes to {} bytes, expected {} (lzf)", made, expected));
      }
      bytes = out;
      size = expected;
      next ^= 1;
    } else {
      if (!scratch.decompressor_) scratch.decompressor_.reset(libdeflate_alloc_decompressor());
      if (!scratch.decompressor_) return Error{ErrorCode::out_of_memory, "out of memory"};
      const std::int64_t expected = bytes_before(i, filter_mask);
      std::byte* out = scratch.decoded_[next].room(expected + kOutputPadding);
      std::size_t used = 0, made = 0;
      const libdeflate_result result = libdeflate_zlib_decompress_ex(
          scratch.decompressor_.get(), bytes, static_cast<std::size_t>(size + ReadBuffer::kPadding),
          out, static_cast<std::size_t>(expected + kOutputPadding), &used, &made);
      if (result == LIBDEFLATE_INSUFFICIENT_SPACE ||
          (result == LIBDEFLATE_SUCCESS && static_cast<std::int64_t>(made) != expected)) {
        return corrupt(fmt::format(
            "inflates to {}{} bytes, expected {}", result == LIBDEFLATE_SUCCESS ? "" : "more than ",
            result == LIBDEFLATE_SUCCESS ? made : expected + kOutputPadding, expected));
      }
      if (result != LIBDEFLATE_SUCCESS || static_cast<std::int64_t>(used) > size) {
        return corrupt("cannot be inflated (deflate)");
      }
      bytes = out;
      size = expected;
      next ^= 1;
    }
  }
  if (size != chunk_bytes_) {
    return corrupt(fmt::format("takes {} bytes, expected {}", size, chunk_bytes_));
  }
  return bytes;
}

}  // namespace fdma::io
