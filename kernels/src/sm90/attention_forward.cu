#include "fdma/kernels/device_plan.hpp"
namespace fdma {
Result<void> attention_forward(const DevicePlan&, const AttentionTensors&, void*, Stream,
                               const AttentionOptions&) {
  return Error{ErrorCode::unsupported, "sm90: forward has no kernel yet"};
}
}  // namespace fdma
