// Reading a dense dataset from the file itself, without HDF5's data path.
//
//   contiguous   Reads of ReadBuffer::bytes_at_once() bytes, by rows or parts of a row, are packed
//                as soon as they are there.
//   chunked      The calling thread asks HDF5's index for the addresses of a slab's chunks while
//                the slab before is packed. Each task reads one chunk, or several adjacent ones at
//                once, undoes their filters and packs them.
//   not written  One row of the fill value serves all rows.
//
// Reading is by pread and not by mmap: a file that another program shortens then gives an error and
// not a signal. Addresses and sizes are compared with the file's size before anything is allocated,
// and the decoded size of a chunk is known (filter_pipeline.hpp).
#include <fmt/format.h>
#include <tbb/enumerable_thread_specific.h>
#include <tbb/parallel_for.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "io/dense/slab_feed.hpp"
#include "io/hdf5/filter_pipeline.hpp"
#include "io/hdf5/raw_chunks.hpp"
#include "io/hdf5/read_buffer.hpp"

namespace fdma::io {
namespace {

constexpr std::int64_t kBitsPerWord = 64;

// `count` copies of the fill value as the file would store it.
Result<std::vector<std::byte>> fill_values(const DatasetInfo& info, std::int64_t element_bytes,
                                           std::int64_t count, const std::string& where) {
  std::vector<std::byte> values(static_cast<std::size_t>(element_bytes * count));
  H5D_fill_value_t status = H5D_FILL_VALUE_UNDEFINED;
  if (H5Pfill_value_defined(info.creation.get(), &status) < 0) {
    return hdf5_error(where, "cannot read its fill value");
  }
  H5D_fill_time_t fill_time = H5D_FILL_TIME_IFSET;
  if (H5Pget_fill_time(info.creation.get(), &fill_time) < 0) {
    return hdf5_error(where, "cannot read its fill value");
  }
  if (status == H5D_FILL_VALUE_UNDEFINED || fill_time == H5D_FILL_TIME_NEVER) return values;
  if (H5Pget_fill_value(info.creation.get(), info.type.get(), values.data()) < 0) {
    return hdf5_error(where, "cannot read its fill value");
  }
  for (std::int64_t i = 1; i < count; ++i) {
    std::memcpy(values.data() + i * element_bytes, values.data(),
                static_cast<std::size_t>(element_bytes));
  }
  return values;
}

class ContiguousFeed final : public SlabFeed {
 public:
  ContiguousFeed(int descriptor, std::optional<std::int64_t> address, std::vector<std::byte> fill,
                 std::int64_t element_bytes, const DenseGeometry& geometry)
      : descriptor_(descriptor),
        address_(address),
        fill_(std::move(fill)),
        size_(element_bytes),
        geometry_(geometry) {}

  /// The most columns that are read at once.
  static std::int64_t cols_at_once(std::int64_t num_k, std::int64_t element_bytes) {
    return std::min(num_k, ReadBuffer::bytes_at_once() / element_bytes);
  }

  Result<void> fetch(const Slab&, int) override { return {}; }

  void pack(const Slab& slab, int, SlabConsumer& consumer) override {
    const auto [num_b, num_h, num_q, num_k] = slab.count;
    const std::int64_t cols = cols_at_once(num_k, size_);
    // Rows are adjacent in the file only if they are whole.
    const bool is_whole = cols == geometry_.extents[3];
    const std::int64_t rows =
        is_whole ? std::max<std::int64_t>(1, ReadBuffer::bytes_at_once() / (cols * size_)) : 1;
    const std::int64_t col_reads = ceil_div(num_k, cols), row_reads = ceil_div(num_q, rows);
    const std::int64_t plane_reads = col_reads * row_reads;
    tbb::parallel_for(
        std::int64_t{0}, num_b * num_h * plane_reads,
        [&, heads = num_h, q_count = num_q, k_count = num_k](std::int64_t i) {
          const std::int64_t plane = i / plane_reads;
          const std::int64_t q = i % plane_reads / col_reads * rows, k = i % col_reads * cols;
          BoxValues box;
          box.begin = {slab.begin[0] + plane / heads, slab.begin[1] + plane % heads,
                       slab.begin[2] + q, slab.begin[3] + k};
          box.count = {1, 1, std::min(rows, q_count - q), std::min(cols, k_count - k)};
          read_and_pack(box, consumer);
        });
  }

  // Parts of a row begin at multiples of 64 keys.
  bool shares_words() const override { return false; }
  std::int64_t bytes_per_thread() const override {
    return ReadBuffer::max_bytes(ReadBuffer::bytes_at_once());
  }

 private:
  void read_and_pack(BoxValues& box, SlabConsumer& consumer) {
    if (!address_) {
      box.values = fill_.data();
      box.strides = {0, 0, 0, size_};
      consumer.pack(box);
      return;
    }
    const std::array<std::int64_t, 4>& extents = geometry_.extents;
    const std::int64_t first =
        ((box.begin[0] * extents[1] + box.begin[1]) * extents[2] + box.begin[2]) * extents[3] +
        box.begin[3];
    const std::int64_t bytes = box.count[2] * box.count[3] * size_;
    const Result<std::byte*> values =
        buffers_.local().read(descriptor_, *address_ + first * size_, bytes);
    if (!values) return consumer.fail(box.begin, values.error());
    box.values = *values;
    box.strides = {0, 0, box.count[3] * size_, size_};
    consumer.pack(box);
  }

  int descriptor_;
  std::optional<std::int64_t> address_;  // empty: never written
  std::vector<std::byte> fill_;
  std::int64_t size_;
  const DenseGeometry& geometry_;
  tbb::enumerable_thread_specific<ReadBuffer> buffers_;
};

class ChunkedFeed final : public SlabFeed {
 public:
  ChunkedFeed(int descriptor, RawChunks chunks, FilterPipeline pipeline,
              std::vector<std::byte> fill, std::int64_t element_bytes,
              const DenseGeometry& geometry)
      : descriptor_(descriptor),
        chunks_(std::move(chunks)),
        pipeline_(std::move(pipeline)),
        fill_(std::move(fill)),
        size_(element_bytes),
        geometry_(geometry) {
    chunk_bytes_ = size_;
    for (const std::int64_t side : geometry.chunk) chunk_bytes_ *= side;
    strides_[3] = size_;
    for (std::size_t axis = 3; axis > 0; --axis) {
      strides_[axis - 1] = strides_[axis] * geometry.chunk[axis];
    }
  }

  Result<void> fetch(const Slab& slab, int place) override {
    std::vector<ChunkPlace>& places = places_[place];
    places.clear();
    const CellIndex counts = chunk_counts(slab);
    const std::int64_t num_chunks = counts[0] * counts[1] * counts[2] * counts[3];
    places.reserve(static_cast<std::size_t>(num_chunks));
    std::vector<std::int64_t> begin;
    for (std::int64_t i = 0; i < num_chunks; ++i) {
      const CellIndex cell = chunk_begin(slab, counts, i);
      begin.clear();
      for (const int axis : geometry_.axes) begin.push_back(cell[static_cast<std::size_t>(axis)]);
      FDMA_TRY(const ChunkPlace found, chunks_.find(begin, pipeline_.max_stored_bytes()));
      places.push_back(found);
    }
    find_runs(places, runs_[place]);
    return {};
  }

  void pack(const Slab& slab, int place, SlabConsumer& consumer) override {
    const CellIndex counts = chunk_counts(slab);
    const std::vector<ChunkPlace>& places = places_[place];
    tbb::parallel_for(std::size_t{0}, runs_[place].size(), [&](std::size_t r) {
      const Run& run = runs_[place][r];
      const std::byte* stored = nullptr;
      if (run.end - run.begin > 1) {
        // A run that cannot be read is read again chunk by chunk, to name the chunk.
        const ChunkPlace &first = places[run.begin], &last = places[run.end - 1];
        const Result<std::byte*> bytes = scratch_.local().stored.read(
            descriptor_, first.address, last.address + last.size - first.address);
        if (bytes) stored = *bytes;
      }
      for (std::size_t i = run.begin; i < run.end; ++i) {
        const ChunkPlace& chunk = places[i];
        BoxValues box;
        box.begin = chunk_begin(slab, counts, static_cast<std::int64_t>(i));
        for (std::size_t axis = 0; axis < 4; ++axis) {
          box.count[axis] =
              std::min(geometry_.chunk[axis], geometry_.extents[axis] - box.begin[axis]);
        }
        const Result<void> status = read_and_pack(
            chunk,
            stored == nullptr ? nullptr : stored + (chunk.address - places[run.begin].address), box,
            consumer);
        if (status) continue;
        consumer.fail(box.begin,
                      {status.error().code,
                       fmt::format("the chunk of cell (b {}, h {}, q {}, k {}), {} bytes at {}, {}",
                                   box.begin[0], box.begin[1], box.begin[2], box.begin[3],
                                   chunk.size, chunk.address, status.error().message)});
      }
    });
  }

  bool shares_words() const override {
    return geometry_.chunk[3] % kBitsPerWord != 0 && geometry_.chunk[3] < geometry_.extents[3];
  }
  std::int64_t bytes_per_thread() const override {
    return ReadBuffer::max_bytes(pipeline_.max_stored_bytes()) + pipeline_.max_memory_bytes();
  }

 private:
  struct Scratch {
    ReadBuffer stored;
    DecodeScratch decode;
  };
  // Chunks [begin, end) of a slab; several are read at once.
  struct Run {
    std::size_t begin;
    std::size_t end;
  };

  // Chunks are adjacent in the file if they were written in order. A run decodes to at most
  // bytes_at_once, or a quarter of that where inflating dominates, so that threads can share the
  // work.
  void find_runs(const std::vector<ChunkPlace>& places, std::vector<Run>& runs) const {
    const std::int64_t most_bytes = ReadBuffer::bytes_at_once() / (pipeline_.compresses() ? 4 : 1);
    const auto most_chunks = static_cast<std::size_t>(most_bytes / chunk_bytes_);
    const std::int64_t alignment = std::max<std::int64_t>(4, size_);  // of values and checksums
    runs.clear();
    for (std::size_t i = 0; i < places.size(); ++i) {
      if (!runs.empty()) {
        const ChunkPlace &first = places[runs.back().begin], &before = places[i - 1];
        const ChunkPlace& chunk = places[i];
        const std::int64_t offset = chunk.address - first.address;
        if (before.is_stored && chunk.is_stored && before.address + before.size == chunk.address &&
            i - runs.back().begin < most_chunks && offset + chunk.size <= most_bytes &&
            offset % alignment == 0) {
          runs.back().end = i + 1;
          continue;
        }
      }
      runs.push_back({i, i + 1});
    }
  }

  CellIndex chunk_counts(const Slab& slab) const {
    CellIndex counts;
    for (std::size_t axis = 0; axis < 4; ++axis) {
      counts[axis] = ceil_div(slab.count[axis], geometry_.chunk[axis]);
    }
    return counts;
  }

  CellIndex chunk_begin(const Slab& slab, const CellIndex& counts, std::int64_t index) const {
    CellIndex cell;
    for (std::size_t axis = 4; axis-- > 0;) {
      cell[axis] = slab.begin[axis] + index % counts[axis] * geometry_.chunk[axis];
      index /= counts[axis];
    }
    return cell;
  }

  // `stored` is the chunk's bytes, or nullptr if they are still to be read.
  Result<void> read_and_pack(const ChunkPlace& chunk, const std::byte* stored, BoxValues& box,
                             SlabConsumer& consumer) {
    if (!chunk.is_stored) {
      box.values = fill_.data();
      box.strides = {0, 0, 0, size_};
      consumer.pack(box);
      return {};
    }
    const bool is_plain = pipeline_.is_plain();
    if (is_plain && chunk.size != chunk_bytes_) {
      return Error{ErrorCode::corrupt_file, fmt::format("should take {} bytes", chunk_bytes_)};
    }
    if (is_plain && chunk_bytes_ > ReadBuffer::bytes_at_once()) {
      return read_by_rows(chunk, box, consumer);
    }
    Scratch& scratch = scratch_.local();
    if (stored == nullptr) {
      FDMA_TRY(stored, scratch.stored.read(descriptor_, chunk.address, chunk.size));
    }
    box.values = stored;
    if (!is_plain) {
      FDMA_TRY(box.values, pipeline_.decode(stored, chunk.size, chunk.filter_mask, scratch.decode));
    }
    box.strides = strides_;
    consumer.pack(box);
    return {};
  }

  // Reads a large chunk of plain values, some whole rows at once.
  Result<void> read_by_rows(const ChunkPlace& chunk, const BoxValues& whole,
                            SlabConsumer& consumer) {
    ReadBuffer& buffer = scratch_.local().stored;
    const std::int64_t rows = std::max<std::int64_t>(1, ReadBuffer::bytes_at_once() / strides_[2]);
    BoxValues box = whole;
    for (std::int64_t b = 0; b < whole.count[0]; ++b) {
      for (std::int64_t h = 0; h < whole.count[1]; ++h) {
        for (std::int64_t q = 0; q < whole.count[2]; q += rows) {
          box.begin = {whole.begin[0] + b, whole.begin[1] + h, whole.begin[2] + q, whole.begin[3]};
          box.count = {1, 1, std::min(rows, whole.count[2] - q), whole.count[3]};
          const std::int64_t bytes = box.count[2] * strides_[2];
          FDMA_TRY(box.values,
                   buffer.read(descriptor_,
                               chunk.address + b * strides_[0] + h * strides_[1] + q * strides_[2],
                               bytes));
          box.strides = strides_;
          consumer.pack(box);
        }
      }
    }
    return {};
  }

  int descriptor_;
  RawChunks chunks_;
  FilterPipeline pipeline_;
  std::vector<std::byte> fill_;
  std::int64_t size_;
  std::int64_t chunk_bytes_ = 0;
  CellIndex strides_{};  // of values in a chunk
  const DenseGeometry& geometry_;
  std::vector<ChunkPlace> places_[2];
  std::vector<Run> runs_[2];
  tbb::enumerable_thread_specific<Scratch> scratch_;
};

}  // namespace

Result<std::unique_ptr<SlabFeed>> make_direct_feed(const InputFile& input,
                                                   const std::string& dataset,
                                                   const DatasetInfo& info,
                                                   const DenseElement& element, BlockShape block,
                                                   int num_threads, const std::string& where,
                                                   DenseGeometry& geometry) {
  std::unique_ptr<SlabFeed> none;
  const std::int64_t size = element.size_bytes();
  if (!element.is_stored_as_is() || info.num_elements == 0) return none;
  const H5D_layout_t layout = H5Pget_layout(info.creation.get());
  if (layout != H5D_CONTIGUOUS && layout != H5D_CHUNKED) return none;
  FDMA_TRY(const int descriptor, descriptor_of(input));
  if (layout == H5D_CHUNKED) {
    DenseGeometry direct = geometry;
    if (!direct.make_direct(info, block, size, num_threads)) return none;
    std::int64_t chunk_bytes = size;
    for (const std::int64_t side : geometry.chunk) chunk_bytes *= side;
    std::optional<FilterPipeline> pipeline = FilterPipeline::of(info.creation.get(), chunk_bytes);
    if (!pipeline) return none;
    FDMA_TRY(RawChunks chunks, RawChunks::open(input, dataset, where));
    FDMA_TRY_VOID(chunks.check());
    FDMA_TRY(std::vector<std::byte> fill,
             fill_values(info, size, std::min(geometry.chunk[3], geometry.extents[3]), where));
    geometry = std::move(direct);
    return std::unique_ptr<SlabFeed>(std::make_unique<ChunkedFeed>(
        descriptor, std::move(chunks), *std::move(pipeline), std::move(fill), size, geometry));
  }
  H5D_space_status_t status = H5D_SPACE_STATUS_NOT_ALLOCATED;
  if (H5Dget_space_status(info.dataset.get(), &status) < 0) {
    return hdf5_error(where, "cannot find its values");
  }
  std::optional<std::int64_t> address;
  if (status != H5D_SPACE_STATUS_NOT_ALLOCATED) {
    const haddr_t offset = H5Dget_offset(info.dataset.get());
    if (offset == HADDR_UNDEF || info.storage_bytes != info.num_elements * size) return none;
    const auto bytes = static_cast<std::uint64_t>(info.storage_bytes);
    if (!is_inside(offset, bytes, input.size_bytes)) {
      return Error{ErrorCode::corrupt_file,
                   fmt::format("{}: its values would take bytes [{}, {} + {}), but the file has {}",
                               where, offset, offset, bytes, input.size_bytes)};
    }
    address = static_cast<std::int64_t>(offset);
  }
  geometry.make_direct(info, block, size, num_threads);
  FDMA_TRY(std::vector<std::byte> fill,
           fill_values(info, size, ContiguousFeed::cols_at_once(geometry.extents[3], size), where));
  return std::unique_ptr<SlabFeed>(
      std::make_unique<ContiguousFeed>(descriptor, address, std::move(fill), size, geometry));
}

}  // namespace fdma::io
