// Tensors of an attention case: a host image and the same bytes where a backend computes.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend_fixture.hpp"
#include "fdma/base/mutable_tensor_view.hpp"

namespace fdma::testing {

/// How elements lie in memory. All strides of rank 4 are multiples of 8 elements where the head
/// size is, as a GPU wants them.
enum class Layout : std::uint8_t {
  rows,        ///< [batch, length, heads, dim]
  head_major,  ///< [batch, heads, length, dim]
  padded,      ///< rows, with gaps after each head and row and rows that no element has; of rank 3
               ///< rows begin at any element, and those of an output are transposed
};

/// Elements [batch, length, heads, dim], or [batch, heads, length] where dim = 0 is given; length
/// up to the longest of `lengths`, of which the first lengths[b] (or lengths[0]) of element b are
/// valid.
///
/// What is not valid is NaN (bytes 0xff) in an input and the poison of the last run in an output,
/// canaries before and after the storage included.
class BackendTensor {
 public:
  BackendTensor(BackendFixture& fixture, DType dtype, std::int64_t batch,
                std::vector<std::int64_t> lengths, std::int64_t heads, std::int64_t dim,
                Layout layout, bool is_output);
  ~BackendTensor() { fixture_.release(memory_); }
  BackendTensor(const BackendTensor&) = delete;
  BackendTensor& operator=(const BackendTensor&) = delete;

  /// Where the machine computes, and the host image.
  MutableTensorView view() const { return view_of(memory_ + kCanaryBytes, fixture_.device()); }
  MutableTensorView host_view() const;

  double get(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d = 0) const {
    return value_at(offset(b, i, h) + d);
  }
  /// Changes the host image; upload() follows.
  void set(std::int64_t b, std::int64_t i, std::int64_t h, std::int64_t d, double value);

  /// Sets every valid element at random, about normal, times `scale`: the same for every layout.
  void randomize(std::uint64_t seed, double scale);
  /// Sets every byte, canaries included.
  void poison(unsigned char byte);
  /// Host image to machine, and back.
  void upload();
  void fetch();

  /// What differs from the host image of the last upload beside valid elements (beside nothing for
  /// an input); empty if nothing.
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
  /// Calls visit(offset) for the first of each dim valid elements, in logical order.
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
  std::array<std::int64_t, 3> strides_{};  ///< of batch, length, heads
  std::vector<unsigned char> uploaded_;    ///< canaries and storage as of the last upload
  std::vector<unsigned char> image_;       ///< the same, as fetched or set
  unsigned char* memory_ = nullptr;        ///< the machine's
};

}  // namespace fdma::testing
