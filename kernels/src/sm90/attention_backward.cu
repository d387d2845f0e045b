// attention_backward on the GPU.
#include "backward_call.hpp"
#include "fdma/kernels/device_plan.hpp"
#include "sm90/device_plan.hpp"

namespace fdma {

Result<void> attention_backward(const DevicePlan& plan, const BackwardTensors& tensors, void*,
                                Stream, const BackwardOptions& options) {
  const DevicePlan::Impl& impl = plan.impl();
  FDMA_TRY(const BackwardCall call,
           checked_backward_call(impl.direction, impl.shape, impl.score, tensors, options,
                                 Device::cuda, impl.arrays.num_formulas > 0));
  static_cast<void>(call);
  return Error{ErrorCode::unsupported, "backend: sm90 has no backward pass yet"};
}

}  // namespace fdma
