// The general way: HDF5 reads the values of a slab into memory, converted to the machine's types.
#include <tbb/parallel_for.h>

#include <algorithm>
#include <vector>

#include "io/dense/slab_feed.hpp"
#include "io/hdf5/dataset_values.hpp"

namespace fdma::io {

void pack_row_major(const Slab& slab, const std::byte* values, std::int64_t element_bytes,
                    SlabConsumer& consumer) {
  const auto [num_b, num_h, num_q, num_k] = slab.count;
  const std::int64_t row_bytes = num_k * element_bytes;
  constexpr std::int64_t kRowsAtOnce = 8;
  const std::int64_t boxes_per_plane = ceil_div(num_q, kRowsAtOnce);
  tbb::parallel_for(std::int64_t{0}, num_b * num_h * boxes_per_plane,
                    [&, rows = num_q, cols = num_k, heads = num_h](std::int64_t i) {
                      const std::int64_t plane = i / boxes_per_plane,
                                         q = i % boxes_per_plane * kRowsAtOnce;
                      BoxValues box;
                      box.begin = {slab.begin[0] + plane / heads, slab.begin[1] + plane % heads,
                                   slab.begin[2] + q, slab.begin[3]};
                      box.count = {1, 1, std::min(kRowsAtOnce, rows - q), cols};
                      box.values = values + (plane * rows + q) * row_bytes;
                      box.strides = {0, 0, row_bytes, element_bytes};
                      consumer.pack_plainly(box);
                    });
}

namespace {

class LibraryFeed final : public SlabFeed {
 public:
  LibraryFeed(const DatasetInfo& info, const DenseGeometry& geometry, const DenseElement& element,
              std::string where)
      : info_(info),
        geometry_(geometry),
        element_(element),
        where_(std::move(where)),
        dataset_(info.dataset.get()),
        space_(H5Dget_space(dataset_), H5Sclose) {
    H5D_fill_time_t fill_time = H5D_FILL_TIME_IFSET;
    leaves_gaps_ =
        H5Pget_fill_time(info.creation.get(), &fill_time) < 0 || fill_time == H5D_FILL_TIME_NEVER;
  }

  Result<void> fetch(const Slab& slab, int place) override {
    std::vector<hsize_t> begin, count;
    for (const int axis : geometry_.axes) {
      begin.push_back(static_cast<hsize_t>(slab.begin[static_cast<std::size_t>(axis)]));
      count.push_back(static_cast<hsize_t>(slab.count[static_cast<std::size_t>(axis)]));
    }
    std::vector<std::byte>& out = values_[place];
    const auto bytes = static_cast<std::size_t>(geometry_.slab_values() * element_.size_bytes());
    if (out.size() < bytes) out.resize(bytes);
    // HDF5 leaves `out` unchanged for chunks that were never written if told not to fill.
    if (leaves_gaps_) std::fill(out.begin(), out.end(), std::byte{});
    const Handle memory(H5Screate_simple(static_cast<int>(count.size()), count.data(), nullptr),
                        H5Sclose);
    const MarkedMemory marked(info_);
    if (!space_ || !memory ||
        H5Sselect_hyperslab(space_.get(), H5S_SELECT_SET, begin.data(), nullptr, count.data(),
                            nullptr) < 0 ||
        H5Dread(dataset_, element_.memory_type(), memory.get(), space_.get(), H5P_DEFAULT,
                out.data()) < 0) {
      return hdf5_error(where_, "cannot read its values");
    }
    return {};
  }

  void pack(const Slab& slab, int place, SlabConsumer& consumer) override {
    pack_row_major(slab, values_[place].data(), element_.size_bytes(), consumer);
  }

  bool shares_words() const override { return true; }
  std::int64_t bytes_per_thread() const override { return 0; }

 private:
  const DatasetInfo& info_;
  const DenseGeometry& geometry_;
  const DenseElement& element_;
  std::string where_;
  hid_t dataset_;
  Handle space_;
  bool leaves_gaps_ = false;
  std::vector<std::byte> values_[2];
};

}  // namespace

std::unique_ptr<SlabFeed> make_library_feed(const DatasetInfo& info, const DenseGeometry& geometry,
                                            const DenseElement& element, std::string where) {
  return std::make_unique<LibraryFeed>(info, geometry, element, std::move(where));
}

}  // namespace fdma::io
