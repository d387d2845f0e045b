// Gradients of biases of pairs and of tables before and after the backward kernel, which adds to
// them or writes a part of them.
#pragma once

#include <cuda_runtime.h>

#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"

namespace fdma::gpu {

/// Sets a tensor of up to four axes, the last of which is contiguous, to 0.
cudaError_t zero_gradient(const MutableTensorView& gradient, cudaStream_t stream);

/// A float32 tensor of the extents of a 16-bit gradient, contiguous, for sums. It is allocated in the
/// order of the stream and freed so.
class GradientSums {
 public:
  GradientSums() = default;
  GradientSums(const GradientSums&) = delete;
  GradientSums& operator=(const GradientSums&) = delete;
  ~GradientSums();

  /// Zeros. Errors: out_of_memory, cuda
  Result<void> allocate(const MutableTensorView& gradient, cudaStream_t stream);
  bool is_allocated() const { return sums_.data != nullptr; }
  const MutableTensorView& view() const { return sums_; }
  /// Rounds the sums to the gradient.
  cudaError_t store() const;

 private:
  MutableTensorView gradient_, sums_;
  cudaStream_t stream_ = nullptr;
};

}  // namespace fdma::gpu
