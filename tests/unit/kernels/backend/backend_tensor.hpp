// Tensors of an attention case. Each has a host image and the same bytes in the memory of a
// fixture.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend_fixture.hpp"
#include "fdma/base/tensor_view.hpp"

namespace fdma::testing {

/// The memory layout of elements. If the head size is a multiple of 8 elements, so are all strides
/// of tensors of rank 4, as GPU kernels require.
enum class Layout : std::uint8_t {
  rows,        ///< [batch, length, heads, dim]
  head_major,  ///< [batch, heads, length, dim]
  padded,      ///< as rows, with gaps after each head and row, and with rows that no element has;
               ///< in rank 3, rows begin at any element, and outputs are transposed
};

/// Elements [batch, length, heads, dim], or [batch, heads, length] if dim is 0. The length is the
/// longest of `lengths`; the first lengths[b] (or lengths[0]) positions of batch element b are
/// valid.
///
/// Bytes that hold no valid element, canaries before and after the storage included, are 0xff (NaN)
/// in an input and the poison of the last run in an output.
class BackendTensor {
 public:
  BackendTensor(BackendFixture& fixture, DType dtype, std::int64_t batch,
                std::vector<std::int64_t> lengths, std::int64_t heads, std::int64_t dim,
                Layout layout, bool is_output);
  ~BackendTensor() { fixture_.release(memory_); }
  BackendTensor(const BackendTensor&) = delete;
  BackendTensor& operator=(const BackendTensor&) = delete;

  /// Views of the tensor in the memory of the fixture and of the host image.
  MutableTensorView view() const { return view_of(memory_ + kCanaryBytes, fixture_.device()); }
  TensorView host_view() const;

  double get(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d = 0) const {
    return value_at(offset(b, i, h) + d);
  }
  /// Changes the host image; call upload() afterwards.
  void set(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d, double value);

  /// Sets every valid element to a random number, about normal, times `scale`. The numbers are the
  /// same for every layout.
  void randomize(std::uint64_t seed, double scale);
  /// Sets every byte, canaries included.
  void poison(unsigned char byte);
  /// Copies the host image to the memory of the fixture, and back.
  void upload();
  void fetch();

  /// Says which bytes differ from the host image of the last upload; empty if none do. Valid
  /// elements of an output may differ.
  std::string stray_writes();
  /// The bytes of every valid element, in logical order.
  std::vector<unsigned char> bytes() const;

 private:
  static constexpr std::int64_t kCanaryBytes = 1024;

  std::int64_t length(std::int64_t b) const {
    return lengths_[lengths_.size() == 1 ? 0 : static_cast<std::size_t>(b)];
  }
  std::int64_t offset(std::int64_t b, std::int64_t i, std::int64_t h) const {
    return b * strides_[0] + i * strides_[1] + h * strides_[2];
  }
  double value_at(std::int64_t element) const;
  MutableTensorView view_of(unsigned char* data, Device device) const;
  /// Calls visit(offset) for the first element of each valid row of dim elements, in logical order.
  template <class Visit>
  void for_each_row(const Visit& visit) const {
    for (std::int64_t b = 0; b < batch_; ++b)
      for (std::int64_t i = 0; i < length(b); ++i)
        for (std::int64_t h = 0; h < heads_; ++h) visit(offset(b, i, h));
  }

  BackendFixture& fixture_;
  DType dtype_;
  std::int64_t batch_;
  std::vector<std::int64_t> lengths_;
  std::int64_t max_len_;
  std::int64_t spare_rows_ = 0;
  std::int64_t heads_;
  std::int64_t dim_;
  bool is_rank3_;
  bool is_output_;
  std::array<std::int64_t, 3> strides_{};  ///< strides of batch, length, heads
  std::vector<unsigned char> uploaded_;    ///< canaries and storage as of the last upload
  std::vector<unsigned char> image_;       ///< canaries and storage as fetched or set
  unsigned char* memory_ = nullptr;        ///< memory of the fixture
};

}  // namespace fdma::testing
