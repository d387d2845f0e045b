// Tensors on the GPU for the calls of a calibration.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "calibrate/score_parts.hpp"
#include "fdma/base/result.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/attention_backward.hpp"
#include "fdma/kernels/device_memory.hpp"

namespace fdma {

/// Memory for the largest of several shapes of one dtype and head size; every shape uses its first
/// bytes. Values are normal, and the lse is that of some two thousand keys with such scores, so
/// that backward calls compute values of realistic size.
class CalibrationTensors {
 public:
  /// `with_score` is the one of the shapes for which calls may have a score of one part.
  ///
  /// Errors  out_of_memory, cuda
  static Result<CalibrationTensors> make(std::span<const AttentionShape> shapes,
                                         Direction direction, const AttentionShape& with_score);

  /// The views borrow.
  AttentionTensors forward_views(const AttentionShape& shape, const ScoreSpec& score) const;
  BackwardTensors backward_views(const AttentionShape& shape, const ScoreSpec& score) const;

 private:
  MutableTensorView of_queries(std::size_t i, const AttentionShape& shape) const;
  MutableTensorView of_keys(std::size_t i, const AttentionShape& shape) const;
  MutableTensorView lse(const AttentionShape& shape) const;
  PartMemory part() const {
    return {bias_.data(), numbers_.data(), gradient_.data(), Device::cuda};
  }

  static constexpr std::size_t kQueryTensors = 4;  ///< q, out; backward dout, dq
  static constexpr std::size_t kKeyTensors = 4;    ///< k, v; backward dk, dv
  std::array<DeviceMemory, kQueryTensors> queries_;
  std::array<DeviceMemory, kKeyTensors> keys_;
  DeviceMemory lse_;
  DeviceMemory bias_, numbers_, gradient_;  ///< of PartMemory
};

}  // namespace fdma
