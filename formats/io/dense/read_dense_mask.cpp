// Reading a user's dense mask.
//
// Only the calling thread calls HDF5. While it fetches slab n + 1, tasks turn slab n into bits,
// eight to 64 times smaller than the values. Completed tile rows go to the builder of their plane
// at once. Memory holds the values of two slabs (16 MiB each) or, where the file is read directly,
// a chunk or as much as the cache holds for each thread; the packed rows of one band; and the
// distinct compiled masks.
//
// Example: a contiguous 131072 x 131072 byte mask is read in slabs of 128 whole rows (16 MiB). One
// chunked 512 x 512 is read in slabs of 64 chunks, and a row of chunks is a band.
#include <fmt/format.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>

#include <algorithm>
#include <new>
#include <variant>

#include "fdma/io/dense_dataset.hpp"
#include "io/arrays/array_file.hpp"
#include "io/dense/element.hpp"
#include "io/dense/geometry.hpp"
#include "io/dense/slab_consumer.hpp"
#include "io/dense/slab_feed.hpp"
#include "io/hdf5/dataset_values.hpp"
#include "io/hdf5/untrusted_file.hpp"

namespace fdma {
namespace io {
namespace {

// Decides whether HDF5 may load plugins while this object lives, and then restores the former
// state.
class PluginLoading {
 public:
  explicit PluginLoading(bool is_allowed) {
    is_known_ = H5PLget_loading_state(&before_) >= 0;
    if (is_known_) H5PLset_loading_state(is_allowed ? H5PL_ALL_PLUGIN : 0);
  }
  ~PluginLoading() {
    if (is_known_) H5PLset_loading_state(before_);
  }
  PluginLoading(const PluginLoading&) = delete;
  PluginLoading& operator=(const PluginLoading&) = delete;

 private:
  unsigned before_ = 0;
  bool is_known_ = false;
};

int num_threads_of(const DenseReadOptions& options) {
  const int available = tbb::this_task_arena::max_concurrency();
  return options.num_threads > 0 ? std::min(options.num_threads, available) : available;
}

// Fetches every slab and hands it to the consumer one slab later, or at once if there is one
// thread.
Result<void> stream(SlabFeed& feed, SlabConsumer& consumer, const DenseGeometry& geometry,
                    std::int64_t element_bytes, const DenseReadOptions& options,
                    const std::string& where) {
  constexpr std::int64_t kThreadBytes = std::int64_t{128} << 20;  // of all threads together
  const std::int64_t fitting = kThreadBytes / std::max<std::int64_t>(1, feed.bytes_per_thread());
  tbb::task_arena arena(
      static_cast<int>(std::clamp<std::int64_t>(fitting, 1, num_threads_of(options))));
  const bool overlaps = arena.max_concurrency() > 1;
  const std::int64_t total_bytes = geometry.num_values() * element_bytes;
  std::int64_t done_bytes = 0;
  Result<void> status;
  tbb::task_group tasks;
  Slab previous{};
  bool has_previous = false;
  const auto settle = [&] {  // waits for the slab before; true if nothing more needs to be read
    if (!has_previous) return false;
    arena.execute([&] { tasks.wait(); });
    return consumer.is_settled(previous);
  };
  const auto consume = [&feed, &consumer](const Slab& slab, int place) {
    consumer.begin_slab(slab);
    feed.pack(slab, place, consumer);
    consumer.end_slab(slab);
  };
  int place = 0;
  geometry.for_each_slab([&](const Slab& slab) {
    if (options.is_cancelled && options.is_cancelled()) {
      status = Error{ErrorCode::io, fmt::format("{}: interrupted", where)};
      return false;
    }
    status = feed.fetch(slab, place);
    if (!status) return false;
    if (settle()) return false;
    previous = slab;
    has_previous = true;
    if (overlaps) {
      arena.execute([&] { tasks.run([&consume, slab, place] { consume(slab, place); }); });
      place ^= 1;
    } else {
      arena.execute([&] { consume(slab, place); });
      if (consumer.is_settled(slab)) return false;
    }
    done_bytes += slab.count[0] * slab.count[1] * slab.count[2] * slab.count[3] * element_bytes;
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

// The type that HDF5 has for the elements of an array; bfloat16 is a floating type of its layout.
Handle hdf5_type_of(DType dtype) {
  const auto copy = [](hid_t type) { return Handle(H5Tcopy(type), H5Tclose); };
  switch (dtype) {
    case DType::boolean:
      return copy(H5T_STD_U8LE);
    case DType::int8:
      return copy(H5T_STD_I8LE);
    case DType::int16:
      return copy(H5T_STD_I16LE);
    case DType::int32:
      return copy(H5T_STD_I32LE);
    case DType::int64:
      return copy(H5T_STD_I64LE);
    case DType::uint8:
      return copy(H5T_STD_U8LE);
    case DType::uint16:
      return copy(H5T_STD_U16LE);
    case DType::uint32:
      return copy(H5T_STD_U32LE);
    case DType::uint64:
      return copy(H5T_STD_U64LE);
    case DType::float32:
      return copy(H5T_IEEE_F32LE);
    case DType::float64:
      return copy(H5T_IEEE_F64LE);
    case DType::float16:
    case DType::bfloat16:
      break;
  }
  const bool is_half = dtype == DType::float16;
  Handle type = copy(H5T_IEEE_F32LE);
  const std::size_t exponent_bits = is_half ? 5 : 8, mantissa_bits = 15 - exponent_bits;
  if (!type || H5Tset_fields(type.get(), 15, mantissa_bits, exponent_bits, 0, mantissa_bits) < 0 ||
      H5Tset_precision(type.get(), 16) < 0 || H5Tset_size(type.get(), 2) < 0 ||
      H5Tset_ebias(type.get(), is_half ? 15 : 127) < 0) {
    return {};
  }
  return type;
}

Result<BlockMask> read_array_mask(const std::string& path, const std::string& name,
                                  const DenseReadOptions& options) {
  FDMA_TRY(const ArrayFile file, ArrayFile::open(path));
  FDMA_TRY(const StoredArray* array, file.find(name));
  const std::string where =
      array->name.empty() ? fmt::format("'{}'", path) : fmt::format("'{}:/{}'", path, array->name);
  DatasetInfo info;
  info.type = hdf5_type_of(array->dtype);
  if (!info.type) return hdf5_error(where, "cannot make its type");
  info.extents = array->extents;
  info.storage_bytes = array->size_bytes;
  info.num_elements = array->size_bytes / size_bytes(array->dtype);
  FDMA_TRY(const DenseElement element, DenseElement::of(info, options, where));
  FDMA_TRY(const DenseGeometry geometry,
           DenseGeometry::of(info, options, element.size_bytes(), where));
  const std::unique_ptr<SlabFeed> feed = make_array_feed(file, *array, geometry, element);
  SlabConsumer consumer(element, geometry, options, feed->shares_words());
  FDMA_TRY_VOID(stream(*feed, consumer, geometry, element.size_bytes(), options, where));
  return std::move(consumer).finish(where);
}

// If cache_bytes is below what the dataset needs, returns the needed number and reads nothing.
Result<std::variant<BlockMask, std::int64_t>> read_checked(const std::string& path,
                                                           const std::string& dataset,
                                                           const DenseReadOptions& options,
                                                           std::int64_t cache_bytes) {
  const std::string where = fmt::format("'{}:{}'", path, dataset);
  FDMA_TRY(const InputFile input, open_input(path, cache_bytes));
  FDMA_TRY(const DatasetInfo info, open_dataset(input.file.get(), dataset, where));
  FDMA_TRY(const DenseElement element, DenseElement::of(info, options, where));
  FDMA_TRY(DenseGeometry geometry, DenseGeometry::of(info, options, element.size_bytes(), where));
  std::unique_ptr<SlabFeed> feed;
  if (options.reads_directly) {
    FDMA_TRY(feed, make_direct_feed(input, dataset, info, element, options.block,
                                    num_threads_of(options), where, geometry));
  }
  if (!feed) {
    if (geometry.cache_bytes > cache_bytes) return {geometry.cache_bytes};
    FDMA_TRY_VOID(check_chunks(input, info, where));
    feed = make_library_feed(info, geometry, element, where);
  }
  SlabConsumer consumer(element, geometry, options, feed->shares_words());
  FDMA_TRY_VOID(stream(*feed, consumer, geometry, element.size_bytes(), options, where));
  FDMA_TRY(BlockMask mask, std::move(consumer).finish(where));
  return {std::move(mask)};
}

}  // namespace
}  // namespace io

Result<BlockMask> read_dense_mask(const std::string& path, const std::string& dataset,
                                  const DenseReadOptions& options) {
  try {
    FDMA_TRY_VOID(io::check_options(options));
    const io::Session session;
    const io::PluginLoading plugins(options.allow_plugins);
    if (io::array_file_kind(path)) return io::read_array_mask(path, dataset, options);
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
