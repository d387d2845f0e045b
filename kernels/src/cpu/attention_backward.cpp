// attention_backward on the CPU.
#include "fdma/kernels/attention_backward.hpp"

#include "backward_call.hpp"

namespace fdma {

Result<void> attention_backward(const AttentionPlan& plan, const BackwardTensors& tensors,
                                const BackwardOptions& options) {
  FDMA_TRY(const BackwardCall call,
           checked_backward_call(plan.direction, plan.shape, plan.score, tensors, options,
                                 Device::cpu, plan.is_parametric()));
  static_cast<void>(call);
  return Error{ErrorCode::unsupported, "backend: cpu has no backward pass yet"};
}

}  // namespace fdma
