// Reading a user's dense mask.
//
// The calling thread alone talks to HDF5. While it reads slab n + 1 into one buffer, a task packs
// slab n from the other one to bits, eight to 64 times smaller, and completed rows of tiles go to
// the builder of their plane at once. What stays in memory is two slabs, the packed rows of one
// band, and the distinct compiled masks.
//
// Example: a contiguous 131072 x 131072 byte mask is read in slabs of 128 whole rows (16 MiB); one
// chunked 512 x 512 in slabs of 64 chunks, a row of chunks being a band.
#include <fmt/format.h>
#include <tbb/blocked_range.h>
#include <tbb/parallel_for.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <algorithm>
#include <mutex>
#include <new>
#include <variant>

#include "dense_element.hpp"
#include "dense_geometry.hpp"
#include "dense_plane.hpp"
#include "fdma/io/dense_dataset.hpp"
#include "untrusted_file.hpp"

namespace fdma {
namespace io {
namespace {

using Cell = std::array<std::int64_t, 4>;  // b, h, q, k

struct BadCell {
  bool found = false;
  Cell cell{};
  std::string complaint;
};

// Consumes slabs: packs them and turns complete rows into masks. Used by one task at a time.
class SlabConsumer {
 public:
  SlabConsumer(const DenseElement& element, const DenseGeometry& geometry,
               const DenseReadOptions& options)
      : element_(element), geometry_(geometry), options_(options) {
    group_of_.resize(static_cast<std::size_t>(geometry.extents[0] * geometry.extents[1]));
  }

  void consume(const Slab& slab, const std::byte* values) {
    if (planes_.empty()) open_planes(slab);
    const std::int64_t num_rows = slab.count[2];
    const std::int64_t num_planes = std::ssize(planes_);
    tbb::parallel_for(tbb::blocked_range<std::int64_t>(0, num_planes * num_rows, 8),
                      [&](const tbb::blocked_range<std::int64_t>& range) {
                        for (std::int64_t i = range.begin(); i < range.end(); ++i) {
                          pack_row(slab, values, i / num_rows, i % num_rows);
                        }
                      });
    if (slab.ends_band && !bad_.found && geometry_.dims != DenseDims::bk) {
      tbb::parallel_for(std::int64_t{0}, num_planes, [&](std::int64_t p) {
        planes_[static_cast<std::size_t>(p)].complete(slab.begin[2] + num_rows);
      });
    }
    if (slab.ends_group) close_planes(slab);
  }

  /// A bad cell was found and no cell that is still unread comes before it.
  bool is_settled(const Slab& slab) const {
    if (!bad_.found) return false;
    const bool is_first_plane = bad_.cell[0] == slab.begin[0] && bad_.cell[1] == slab.begin[1];
    const bool is_last_group =
        bad_.cell[0] == slab.begin[0] || slab.begin[1] + slab.count[1] == geometry_.extents[1];
    return (slab.ends_group && is_last_group) || (slab.ends_band && is_first_plane);
  }
  const BadCell& bad() const { return bad_; }

  /// Masks without cells have no slabs.
  void add_empty_planes() {
    DensePlane plane(q_len(), geometry_.extents[3], options_.block, 1);
    masks_.push_back(plane.finish());
  }

  BlockMask result() && {
    BlockMask mask;
    mask.block = options_.block;
    mask.shape.num_batches = geometry_.extents[0];
    mask.shape.num_heads = geometry_.extents[1];
    mask.shape.q_lens = {q_len()};
    mask.shape.kv_lens = {geometry_.extents[3]};
    // Planes arrive group by group; groups are numbered by first occurrence in (b, h) order.
    std::vector<std::int32_t> number(masks_.size(), -1);
    std::vector<SegmentMask> ordered;
    for (std::int32_t& group : group_of_) {
      std::int32_t& renamed = number[static_cast<std::size_t>(group)];
      if (renamed < 0) {
        renamed = static_cast<std::int32_t>(ordered.size());
        ordered.push_back(std::move(masks_[static_cast<std::size_t>(group)]));
      }
      group = renamed;
    }
    mask.group_of = std::move(group_of_);
    mask.groups = std::move(ordered);
    return mask;
  }

 private:
  std::int64_t q_len() const {
    if (geometry_.dims != DenseDims::bk) return geometry_.extents[2];
    return options_.q_len > 0 ? options_.q_len : geometry_.extents[3];
  }

  void open_planes(const Slab& slab) {
    const std::int64_t num_planes = slab.count[0] * slab.count[1];
    planes_.reserve(static_cast<std::size_t>(num_planes));
    for (std::int64_t p = 0; p < num_planes; ++p) {
      planes_.emplace_back(geometry_.extents[2], geometry_.extents[3], options_.block,
                           geometry_.band_rows);
    }
  }

  void pack_row(const Slab& slab, const std::byte* values, std::int64_t plane, std::int64_t row) {
    const std::int64_t num_rows = slab.count[2], num_cols = slab.count[3];
    const std::byte* first = values + (plane * num_rows + row) * num_cols * element_.size_bytes();
    const std::int64_t q = slab.begin[2] + row;
    const std::int64_t index = element_.pack(
        first, num_cols, planes_[static_cast<std::size_t>(plane)].row(q), slab.begin[3]);
    if (index < 0) return;
    const Cell cell{slab.begin[0] + plane / slab.count[1], slab.begin[1] + plane % slab.count[1], q,
                    slab.begin[3] + index};
    const std::lock_guard lock(bad_mutex_);
    if (bad_.found && bad_.cell < cell) return;
    bad_ = {true, cell, element_.complaint(first + index * element_.size_bytes())};
  }

  void close_planes(const Slab& slab) {
    for (std::int64_t p = 0; p < std::ssize(planes_) && !bad_.found; ++p) {
      DensePlane& plane = planes_[static_cast<std::size_t>(p)];
      const std::int64_t b = slab.begin[0] + p / slab.count[1];
      const std::int64_t h = slab.begin[1] + p % slab.count[1];
      group_of_[static_cast<std::size_t>(b * geometry_.extents[1] + h)] = intern(
          geometry_.dims == DenseDims::bk
              ? mask_of_equal_rows(plane.row(0), q_len(), geometry_.extents[3], options_.block)
              : plane.finish());
    }
    planes_.clear();
  }

  // Equal cells give equal arrays, so comparing arrays finds equal heads.
  std::int32_t intern(SegmentMask mask) {
    const auto it = std::find(masks_.begin(), masks_.end(), mask);
    if (it != masks_.end()) return static_cast<std::int32_t>(it - masks_.begin());
    masks_.push_back(std::move(mask));
    return static_cast<std::int32_t>(masks_.size() - 1);
  }

  const DenseElement& element_;
  const DenseGeometry& geometry_;
  const DenseReadOptions& options_;
  std::vector<DensePlane> planes_;  // of the group in hand, heads fastest
  std::vector<SegmentMask> masks_;  // distinct, in order of arrival
  std::vector<std::int32_t> group_of_;
  std::mutex bad_mutex_;
  BadCell bad_;
};

// Reads the values of slabs, in the memory order b, h, q, k.
class SlabReader {
 public:
  SlabReader(const DatasetInfo& info, const DenseGeometry& geometry, const DenseElement& element,
             std::string where)
      : geometry_(geometry),
        element_(element),
        where_(std::move(where)),
        dataset_(info.dataset.get()),
        space_(H5Dget_space(dataset_), H5Sclose) {}

  Result<void> read(const Slab& slab, std::byte* out) {
    std::vector<hsize_t> begin, count;
    for (const int axis : geometry_.axes) {
      begin.push_back(static_cast<hsize_t>(slab.begin[static_cast<std::size_t>(axis)]));
      count.push_back(static_cast<hsize_t>(slab.count[static_cast<std::size_t>(axis)]));
    }
    const Handle memory(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr),
                        H5Sclose);
    if (!space_ || !memory ||
        H5Sselect_hyperslab(space_.get(), H5S_SELECT_SET, begin.data(), nullptr, count.data(),
                            nullptr) < 0 ||
        H5Dread(dataset_, element_.memory_type(), memory.get(), space_.get(), H5P_DEFAULT, out) <
            0) {
      return hdf5_error(where_, "cannot read its values");
    }
    return {};
  }

 private:
  const DenseGeometry& geometry_;
  const DenseElement& element_;
  std::string where_;
  hid_t dataset_;
  Handle space_;
};

// Reads every slab and hands it to the consumer, one slab behind unless there is one thread only.
Result<void> stream(SlabReader& reader, SlabConsumer& consumer, const DenseGeometry& geometry,
                    const DenseElement& element, const DenseReadOptions& options,
                    const std::string& where) {
  const int available = tbb::this_task_arena::max_concurrency();
  tbb::task_arena arena(options.num_threads > 0 ? std::min(options.num_threads, available)
                                                : available);
  const bool overlaps = arena.max_concurrency() > 1;
  const auto bytes = static_cast<std::size_t>(geometry.slab_values() * element.size_bytes());
  std::vector<std::byte> buffers[2];
  for (auto& buffer : buffers) buffer.resize(overlaps || &buffer == buffers ? bytes : 0);
  const std::int64_t total_bytes = geometry.num_values() * element.size_bytes();
  std::int64_t done_bytes = 0;
  Result<void> status;
  tbb::task_group tasks;
  Slab previous{};
  bool has_previous = false;
  const auto settle = [&] {  // waits for the slab before; true if nothing needs to be read any more
    if (!has_previous) return false;
    arena.execute([&] { tasks.wait(); });
    return consumer.is_settled(previous);
  };
  std::size_t current = 0;
  geometry.for_each_slab([&](const Slab& slab) {
    if (options.is_cancelled && options.is_cancelled()) {
      status = Error{ErrorCode::io, fmt::format("{}: interrupted", where)};
      return false;
    }
    std::byte* values = buffers[current].data();
    status = reader.read(slab, values);
    if (!status) return false;
    if (settle()) return false;
    previous = slab;
    has_previous = true;
    if (overlaps) {
      arena.execute(
          [&] { tasks.run([&consumer, slab, values] { consumer.consume(slab, values); }); });
      current ^= 1;
    } else {
      arena.execute([&] { consumer.consume(slab, values); });
      if (consumer.is_settled(slab)) return false;
    }
    done_bytes +=
        slab.count[0] * slab.count[1] * slab.count[2] * slab.count[3] * element.size_bytes();
    if (options.progress) options.progress(done_bytes, total_bytes);
    return true;
  });
  settle();
  return status;
}

Result<void> check_options(const DenseReadOptions& options) {
  FDMA_TRY_VOID(validate(options.block));
  if (options.q_len < 0 || options.q_len > kMaxLength) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("q_len: {} is outside [0, {}]", options.q_len, kMaxLength)};
  }
  if (options.q_len > 0 && options.dims != DenseDims::bk) {
    return Error{ErrorCode::invalid_argument,
                 "q_len is for padding masks (--dims bk); other dense masks have their query rows"};
  }
  return {};
}

// With cache_bytes below what the dataset needs, returns what it needs and reads nothing.
Result<std::variant<BlockMask, std::int64_t>> read_checked(const std::string& path,
                                                           const std::string& dataset,
                                                           const DenseReadOptions& options,
                                                           std::int64_t cache_bytes) {
  const std::string where = fmt::format("'{}:{}'", path, dataset);
  FDMA_TRY(const InputFile input, open_input(path, cache_bytes));
  FDMA_TRY(const DatasetInfo info, open_dataset(input.file.get(), dataset, where));
  FDMA_TRY(const DenseElement element, DenseElement::of(info, options, where));
  FDMA_TRY(const DenseGeometry geometry,
           DenseGeometry::of(info, options, element.size_bytes(), where));
  if (geometry.cache_bytes > cache_bytes) return {geometry.cache_bytes};
  SlabReader reader(info, geometry, element, where);
  SlabConsumer consumer(element, geometry, options);
  if (geometry.num_values() == 0) {
    consumer.add_empty_planes();
  } else {
    FDMA_TRY_VOID(stream(reader, consumer, geometry, element, options, where));
  }
  if (consumer.bad().found) {
    const Cell& cell = consumer.bad().cell;
    return Error{ErrorCode::invalid_argument,
                 fmt::format("{}: cell (b {}, h {}, q {}, k {}) {}", where, cell[0], cell[1],
                             cell[2], cell[3], consumer.bad().complaint)};
  }
  return {std::move(consumer).result()};
}

}  // namespace
}  // namespace io

Result<BlockMask> read_dense_mask(const std::string& path, const std::string& dataset,
                                  const DenseReadOptions& options) {
  try {
    FDMA_TRY_VOID(io::check_options(options));
    const io::Session session;
    // HDF5 takes the size of its chunk cache when the file is opened, before the chunks are known.
    std::int64_t cache_bytes = 0;
    for (;;) {
      FDMA_TRY(auto outcome, io::read_checked(path, dataset, options, cache_bytes));
      if (auto* mask = std::get_if<BlockMask>(&outcome)) return std::move(*mask);
      cache_bytes = std::get<std::int64_t>(outcome);
    }
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory,
                 fmt::format("out of memory reading '{}:{}'", path, dataset)};
  }
}

}  // namespace fdma
