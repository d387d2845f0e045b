// What device_scores.cpp asks of a GPU: scores of keys and their gradients, of checked tensors.
#pragma once

#include <cstdint>

#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/select/zoh_backward.hpp"
#include "fdma/select/zoh_scores.hpp"

namespace fdma::zoh {

/// Implemented by zoh_scores.cu. Errors: cuda.
class GpuScores {
 public:
  /// zoh_scores (zoh_device.hpp) of at least one key.
  virtual Result<void> launch(const ZohShape& shape, const TensorView& values,
                              const TensorView& dt_proj, const TensorView& a_coef,
                              const MutableTensorView& scores, ZohMode mode,
                              Stream stream) const = 0;

 protected:
  ~GpuScores() = default;
};

/// Implemented by zoh_backward.cu. Errors: cuda.
class GpuScoreGradients {
 public:
  virtual std::int64_t workspace_bytes(const ZohShape& shape) const = 0;
  /// zoh_scores_backward (zoh_backward_device.hpp) where some gradient is wanted.
  virtual Result<void> launch(const ZohShape& shape, const ZohBackwardTensors& tensors,
                              ZohMode mode, void* workspace, Stream stream) const = 0;

 protected:
  ~GpuScoreGradients() = default;
};

}  // namespace fdma::zoh
