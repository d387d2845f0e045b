// A causal attention case for kernels with policies of a test's own, with its reference in float64.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "device_array.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/kernels/plan.hpp"
#include "sm90/backward/kernels.hpp"
#include "sm90/forward/kernels.hpp"

namespace fdma::gpu_test {

/// What policies do to a cell, as the reference does it.
struct CellRules {
  using OfCell = std::function<double(int head, int query, int key)>;

  OfCell added_logit = [](int, int, int) { return 0.0; };
  OfCell weight = [](int, int, int) { return 1.0; };
  bool reverses_keys = false;  ///< key k is row kv_len - 1 - k of K and V
};

/// Root mean square of the differences over that of the reference; of lse, the largest difference.
struct PolicyErrors {
  double out = 0, lse = 0, dq = 0, dk = 0, dv = 0;
};

/// Random tensors of bfloat16 with head_dim 64, packed heads, and lengths that are no multiples of
/// a tile.
class PolicyCase {
 public:
  static constexpr std::int32_t kHeadDim = 64;

  PolicyCase();

  /// Runs the forward pass by the kernel.
  void forward(const sm90::ForwardKernel& kernel);
  /// Runs the backward pass by the kernel, after a forward pass.
  void backward(const sm90::BackwardKernel& kernel);
  PolicyErrors forward_errors(const CellRules& rules) const;
  PolicyErrors backward_errors(const CellRules& rules) const;

 private:
  struct Results;

  Results reference(const CellRules& rules) const;
  AttentionPlan plan(Direction direction) const;

  AttentionShape shape_;
  std::vector<float> q_, k_, v_, dout_;  // values that bfloat16 represents
  DeviceArray<std::uint16_t> d_q_, d_k_, d_v_, d_dout_, d_out_;
  DeviceArray<float> d_lse_, d_dq_, d_dk_, d_dv_;
};

}  // namespace fdma::gpu_test
