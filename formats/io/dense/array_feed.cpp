// Values of .npy, .npz and safetensors arrays. Those of a deflated member are inflated once, whole.
#include <algorithm>
#include <cstring>
#include <vector>

#include "io/dense/slab_feed.hpp"

namespace fdma::io {
namespace {

class ArrayFeed final : public SlabFeed {
 public:
  ArrayFeed(const ArrayFile& file, const StoredArray& array, const DenseGeometry& geometry,
            const DenseElement& element)
      : file_(file), array_(array), geometry_(geometry), element_(element) {}

  Result<void> fetch(const Slab& slab, int place) override {
    if (array_.is_deflated && inflated_.empty()) {
      FDMA_TRY(inflated_, file_.read_all(array_));
    }
    std::vector<std::byte>& out = values_[place];
    const auto bytes = static_cast<std::size_t>(geometry_.slab_values() * element_.size_bytes());
    if (out.size() < bytes) out.resize(bytes);
    const auto [num_b, num_h, num_q, num_k] = slab.count;
    const auto& extents = geometry_.extents;
    // Whole rows of one plane lie one after the other.
    const bool has_whole_rows = num_k == extents[3];
    const std::int64_t run_rows = has_whole_rows ? num_q : 1;
    const std::int64_t run_bytes = run_rows * num_k * element_.size_bytes();
    std::byte* at = out.data();
    for (std::int64_t b = 0; b < num_b; ++b) {
      for (std::int64_t h = 0; h < num_h; ++h) {
        for (std::int64_t q = 0; q < num_q; q += run_rows) {
          const std::int64_t plane = (slab.begin[0] + b) * extents[1] + slab.begin[1] + h;
          const std::int64_t cell =
              (plane * extents[2] + slab.begin[2] + q) * extents[3] + slab.begin[3];
          FDMA_TRY_VOID(copy(cell * element_.size_bytes(), run_bytes, at));
          at += run_bytes;
        }
      }
    }
    return {};
  }

  void pack(const Slab& slab, int place, SlabConsumer& consumer) override {
    pack_row_major(slab, values_[place].data(), element_.size_bytes(), consumer);
  }

  bool shares_words() const override { return true; }
  std::int64_t bytes_per_thread() const override { return 0; }

 private:
  Result<void> copy(std::int64_t begin, std::int64_t count, std::byte* out) const {
    if (!array_.is_deflated) return file_.read(array_, begin, count, out);
    std::memcpy(out, inflated_.data() + begin, static_cast<std::size_t>(count));
    return {};
  }

  const ArrayFile& file_;
  const StoredArray& array_;
  const DenseGeometry& geometry_;
  const DenseElement& element_;
  std::vector<std::byte> inflated_;
  std::vector<std::byte> values_[2];
};

}  // namespace

std::unique_ptr<SlabFeed> make_array_feed(const ArrayFile& file, const StoredArray& array,
                                          const DenseGeometry& geometry,
                                          const DenseElement& element) {
  return std::make_unique<ArrayFeed>(file, array, geometry, element);
}

}  // namespace fdma::io
