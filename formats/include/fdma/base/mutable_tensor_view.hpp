// A borrowed tensor that is written to.
#pragma once

#include "fdma/base/tensor_view.hpp"

namespace fdma {

/// A TensorView whose elements the callee writes. Same shapes, invariants and ownership; two
/// elements never share an address.
struct MutableTensorView {
  void* data = nullptr;
  DType dtype = DType::float32;
  Device device = Device::cpu;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> extents{1, 1, 1, 1};
  std::array<std::int64_t, kMaxRank> strides{0, 0, 0, 0};

  /// The same elements, to be read.
  TensorView view() const { return {data, dtype, device, rank, extents, strides}; }
};

/// A contiguous row-major host view over `data` with the given extents.
inline MutableTensorView make_contiguous_mutable_view(void* data, DType dtype, int rank,
                                                      const std::int64_t* extents) {
  const TensorView view = make_contiguous_view(data, dtype, rank, extents);
  return {data, view.dtype, view.device, view.rank, view.extents, view.strides};
}

}  // namespace fdma
