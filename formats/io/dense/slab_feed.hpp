// The sources of the values of slabs: HDF5, or the file itself.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "io/arrays/array_file.hpp"
#include "io/dense/slab_consumer.hpp"
#include "io/hdf5/untrusted_file.hpp"

namespace fdma::io {

/// One way of reading a dataset. Slabs come in the order of the geometry and alternate between two
/// places, so that one can be fetched while the values of the other are packed.
class SlabFeed {
 public:
  SlabFeed() = default;
  SlabFeed(const SlabFeed&) = delete;
  SlabFeed& operator=(const SlabFeed&) = delete;
  virtual ~SlabFeed() = default;

  /// Does what needs HDF5, on the thread that owns the HDF5 session. Errors: corrupt_file.
  virtual Result<void> fetch(const Slab& slab, int place) = 0;
  /// Hands all values of the slab to the consumer, in parallel, inside a task and without HDF5.
  virtual void pack(const Slab& slab, int place, SlabConsumer& consumer) = 0;
  /// True if the bits of one word may come from different boxes.
  virtual bool shares_words() const = 0;
  /// Memory that each packing thread takes.
  virtual std::int64_t bytes_per_thread() const = 0;
};

/// Reads every slab by H5Dread: any filter, any type that HDF5 converts.
std::unique_ptr<SlabFeed> make_library_feed(const DatasetInfo& info, const DenseGeometry& geometry,
                                            const DenseElement& element, std::string where);

/// Reads an array of a .npy, .npz or safetensors file, whose values are in row-major order.
std::unique_ptr<SlabFeed> make_array_feed(const ArrayFile& file, const StoredArray& array,
                                          const DenseGeometry& geometry,
                                          const DenseElement& element);

/// Hands the values of a slab, which lie in row-major order at `values`, to the consumer, in
/// parallel.
void pack_row_major(const Slab& slab, const std::byte* values, std::int64_t element_bytes,
                    SlabConsumer& consumer);

/// Reads contiguous and chunked datasets straight from the file, in parallel. Null for what it does
/// not read: compact storage, filters other than shuffle, fletcher32 and deflate, types that HDF5
/// must convert, huge or tiny chunks. Changes the geometry to its own order. Errors: io,
/// corrupt_file.
Result<std::unique_ptr<SlabFeed>> make_direct_feed(const InputFile& input,
                                                   const std::string& dataset,
                                                   const DatasetInfo& info,
                                                   const DenseElement& element, BlockShape block,
                                                   int num_threads, const std::string& where,
                                                   DenseGeometry& geometry);

}  // namespace fdma::io
