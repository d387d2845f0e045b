// A tensor for tests with any order of dimensions, gaps between rows, guards around the storage,
// and poison in all bytes that hold no valid element.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "backend/guarded_buffer.hpp"
#include "fdma/base/tensor_view.hpp"

namespace fdma::testing {

/// The memory layout of the elements.
enum class Order : std::uint8_t {
  rows,        ///< row-major: [batch, length, heads, dim]
  head_major,  ///< [batch, heads, length, dim]
  gaps,        ///< row-major with 3 elements between rows, so that nothing is aligned
  reversed,    ///< heads descend in memory, so that their stride is negative
};

/// Elements [batch, length, heads, dim], or [batch, heads, length] if dim is 0.
///
/// Batch element b has lengths[b] (or lengths[0]) rows. The extents are those of the longest
/// element, but the storage ends with the last valid row, so that reading past it may fault.
/// Everything is poisoned with 0xff bytes (NaN in every type) until it is set.
class TestTensor {
 public:
  TestTensor(DType dtype, std::int64_t batch, std::vector<std::int64_t> lengths, std::int64_t heads,
             std::int64_t dim, Order order, GuardSide side);

  TensorView view() const { return mutable_view().view(); }
  MutableTensorView mutable_view() const;
  double get(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d = 0) const;
  void set(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d, double value);

  /// Sets random elements, about normal, times `scale`. They are the same for every order and
  /// guard.
  void randomize(std::uint64_t seed, double scale);
  /// Rows [0, length(b)) of one head, row-major.
  std::vector<double> head(std::int64_t b, std::int64_t h) const;
  /// The bytes of every valid element, in logical order.
  std::vector<unsigned char> bytes() const;

  void fill(unsigned char value) { buffer_->fill(value); }
  void make_read_only() { buffer_->make_read_only(); }
  /// Says what was written to bytes that hold no valid element and held `poison` before; empty if
  /// nothing was.
  std::string stray_writes(unsigned char poison) const;

 private:
  std::int64_t length(std::int64_t b) const {
    return lengths_[lengths_.size() == 1 ? 0 : static_cast<std::size_t>(b)];
  }
  std::int64_t offset(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d) const {
    return base_ + b * strides_[0] + i * strides_[1] + h * strides_[2] + d;
  }
  void for_each(const std::function<void(std::int64_t offset)>& visit) const;

  DType dtype_;
  std::int64_t batch_;
  std::vector<std::int64_t> lengths_;
  std::int64_t max_len_;
  std::int64_t heads_;
  std::int64_t dim_;
  bool is_rank3_;
  std::array<std::int64_t, 3> strides_{};  ///< strides of batch, length, heads
  std::int64_t base_ = 0;                  ///< index of element (0, 0, 0, 0)
  std::unique_ptr<GuardedBuffer> buffer_;
};

}  // namespace fdma::testing
