#include "io/hdf5/dataset_values.hpp"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <new>
#include <optional>

#include "fdma/base/interval.hpp"
#include "io/hdf5/dataset_storage.hpp"
#include "io/hdf5/filter_pipeline.hpp"
#include "io/hdf5/raw_chunks.hpp"
#include "io/hdf5/read_buffer.hpp"

namespace fdma::io {
namespace {

// The name by which an object was opened.
Result<std::string> name_of(hid_t object, const std::string& where) {
  const ssize_t size = H5Iget_name(object, nullptr, 0);
  if (size <= 0) return hdf5_error(where, "HDF5 does not give its name");
  std::string name(static_cast<std::size_t>(size) + 1, '\0');
  if (H5Iget_name(object, name.data(), name.size()) < 0) {
    return hdf5_error(where, "HDF5 does not give its name");
  }
  name.pop_back();
  return name;
}

// The filters of chunks whose size after inflating can be checked here. The check of other chunks,
// and of chunks at the edge that no filter was applied to, is left to HDF5.
std::optional<FilterPipeline> pipeline_of(const DatasetInfo& info, std::int64_t chunk_bytes) {
  unsigned options = 0;
  if (H5Pget_chunk_opts(info.creation.get(), &options) < 0 || options != 0) return std::nullopt;
  std::optional<FilterPipeline> pipeline = FilterPipeline::of(info.creation.get(), chunk_bytes);
  if (pipeline && !pipeline->compresses()) pipeline.reset();
  return pipeline;
}

std::uint32_t little_endian32(const std::byte* bytes) {
  std::uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | std::to_integer<std::uint32_t>(bytes[i]);
  return value;
}

// szip and scaleoffset store in the first bytes of a chunk its size, or the number of bits of each
// value. HDF5 1.10 reads past the end of a chunk where these are wrong.
class StatedSize {
 public:
  static constexpr std::int64_t kHeadBytes = 21;  // of scaleoffset; 4 of szip

  // The reader of the size that the last filter states; empty where that is another filter.
  static std::optional<StatedSize> of(const DatasetInfo& info, std::int64_t chunk_bytes) {
    constexpr std::size_t kNumElements = 2, kElementBytes = 4;  // of scaleoffset's parameters
    StatedSize stated;
    const int num_filters = H5Pget_nfilters(info.creation.get());
    if (num_filters < 1) return std::nullopt;
    stated.index_ = num_filters - 1;
    unsigned flags = 0, config = 0, values[20] = {};
    std::size_t num_values = std::size(values);
    stated.filter_ = H5Pget_filter2(info.creation.get(), static_cast<unsigned>(stated.index_),
                                    &flags, &num_values, values, 0, nullptr, &config);
    if (stated.filter_ != H5Z_FILTER_SZIP && stated.filter_ != H5Z_FILTER_SCALEOFFSET) {
      return std::nullopt;
    }
    stated.chunk_bytes_ = chunk_bytes;
    stated.num_elements_ = values[kNumElements];
    stated.element_bytes_ = values[kElementBytes];
    return stated;
  }

  bool is_skipped(std::uint32_t filter_mask) const { return (filter_mask >> index_ & 1) != 0; }

  // Empty, or the end of a sentence.
  std::string fault(const std::byte* head, std::int64_t size) const {
    if (filter_ == H5Z_FILTER_SZIP) {
      if (size < 4) return "is too short for its size (szip)";
      const std::uint32_t stated = little_endian32(head);
      if (stated == chunk_bytes_) return {};
      return fmt::format("decodes to {} bytes (szip), expected {}", stated, chunk_bytes_);
    }
    if (num_elements_ * element_bytes_ != chunk_bytes_) {
      return fmt::format("decodes to {} elements of {} bytes (scaleoffset), expected {} bytes",
                         num_elements_, element_bytes_, chunk_bytes_);
    }
    if (size < kHeadBytes) return "is too short for its parameters (scaleoffset)";
    const std::int64_t bits = little_endian32(head);
    if (bits <= 8 * element_bytes_) {
      const std::int64_t expected = kHeadBytes + ceil_div(num_elements_ * bits, std::int64_t{8});
      if (size >= expected && size <= expected + 1) return {};
    }
    return fmt::format("has values of {} bits in {} bytes (scaleoffset), expected {} values", bits,
                       size, num_elements_);
  }

 private:
  int index_ = 0;
  H5Z_filter_t filter_ = H5Z_FILTER_NONE;
  std::int64_t chunk_bytes_ = 0;
  std::int64_t num_elements_ = 0;
  std::int64_t element_bytes_ = 0;
};

Result<std::int64_t> check_chunks_of(const InputFile& input, const DatasetInfo& info,
                                     const std::string& where) {
  if (info.chunk.empty() || info.num_elements == 0) return std::int64_t{0};
  FDMA_TRY(const std::string name, name_of(info.dataset.get(), where));
  FDMA_TRY(RawChunks chunks, RawChunks::open(input, name, where));
  const std::int64_t bytes =
      chunk_bytes(info, static_cast<std::int64_t>(H5Tget_size(info.type.get())),
                  std::numeric_limits<std::uint32_t>::max());
  const std::optional<FilterPipeline> pipeline = pipeline_of(info, bytes);
  FDMA_TRY(const std::int64_t num_stored, chunks.check());
  const std::optional<StatedSize> stated = StatedSize::of(info, bytes);
  if (!pipeline && !stated) return num_stored;
  FDMA_TRY(const int descriptor, descriptor_of(input));
  ReadBuffer stored;
  DecodeScratch scratch;
  FDMA_TRY_VOID(chunks.visit([&](const std::vector<std::int64_t>& begin,
                                 const ChunkPlace& place) -> Result<void> {
    const auto wrong = [&](ErrorCode code, const std::string& text) {
      return Error{code, fmt::format("{}: chunk {} {}", where, extents_text(begin), text)};
    };
    if (stated && !stated->is_skipped(place.filter_mask)) {
      FDMA_TRY(
          const std::byte* const head,
          stored.read(descriptor, place.address, std::min(place.size, StatedSize::kHeadBytes)));
      const std::string fault = stated->fault(head, place.size);
      return fault.empty() ? Result<void>() : wrong(ErrorCode::corrupt_file, fault);
    }
    if (!pipeline) return {};
    // Memory is bounded by what the stored bytes can inflate to.
    if (place.size > pipeline->max_stored_bytes() || bytes / kMaxCompression > place.size) {
      return wrong(ErrorCode::corrupt_file, fmt::format("takes {} bytes in the file, expected what "
                                                        "inflates to {}",
                                                        place.size, bytes));
    }
    FDMA_TRY(const std::byte* const read, stored.read(descriptor, place.address, place.size));
    const Result<const std::byte*> values =
        pipeline->decode(read, place.size, place.filter_mask, scratch);
    if (!values) return wrong(values.error().code, values.error().message);
    return {};
  }));
  return num_stored;
}

}  // namespace

MarkedMemory::MarkedMemory(const DatasetInfo& info) {
  for (int i = H5Pget_nfilters(info.creation.get()); i-- > 0;) {
    unsigned flags = 0, config = 0;
    std::size_t num_values = 0;
    is_marked_ =
        is_marked_ || H5Pget_filter2(info.creation.get(), static_cast<unsigned>(i), &flags,
                                     &num_values, nullptr, 0, nullptr, &config) == H5Z_FILTER_SZIP;
  }
#ifdef M_PERTURB
  if (is_marked_) mallopt(M_PERTURB, 0xff ^ 0x5a);
#endif
}

MarkedMemory::~MarkedMemory() {
#ifdef M_PERTURB
  if (is_marked_) mallopt(M_PERTURB, 0);
#endif
}

Result<std::int64_t> check_chunks(const InputFile& input, const DatasetInfo& info,
                                  const std::string& where) {
  try {
    return check_chunks_of(input, info, where);
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory, fmt::format("{}: out of memory", where)};
  }
}

Result<void> read_values(const InputFile& input, const DatasetInfo& info, hid_t memory_type,
                         void* out, Gaps gaps, const std::string& where) {
  if (info.num_elements == 0) return {};
  FDMA_TRY(const std::int64_t num_stored, check_chunks(input, info, where));
  if (gaps == Gaps::refused && !info.chunk.empty()) {
    std::int64_t num_chunks = 1;
    for (std::size_t d = 0; d < info.chunk.size(); ++d) {
      num_chunks *= ceil_div(info.extents[d], info.chunk[d]);
    }
    if (num_stored != num_chunks) {
      return Error{ErrorCode::corrupt_file,
                   fmt::format("{}: {} chunks are stored, expected all {} of the extents {}", where,
                               num_stored, num_chunks, extents_text(info.extents))};
    }
  }
  const MarkedMemory marked(info);
  if (H5Dread(info.dataset.get(), memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, out) < 0) {
    return hdf5_error(where, "cannot read its values");
  }
  return {};
}

}  // namespace fdma::io
