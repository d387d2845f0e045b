// attention_forward for callers inside the library that make parts of the plan on the device.
#pragma once

#include "cuda/device_plan.hpp"
#include "fdma/kernels/device_plan.hpp"

namespace fdma::sm90 {

/// attention_forward (fdma/kernels/device_plan.hpp) of a plan whose segments of kind gather name
/// lists of `gather`, in place of the plan's own: written by kernels earlier on `stream`. Items and
/// segments are the plan's; how many chunks each item reads, up to what they say, follows from its
/// list when the kernel runs. Column intervals may be given likewise. `has_counter`: item_counter
/// of the workspace is 0, set by a kernel earlier on `stream` or left so by the last launch.
Result<void> attention_forward_with_lists(const DevicePlan& plan, const AttentionTensors& tensors,
                                          void* workspace, Stream stream,
                                          const AttentionOptions& options,
                                          const GatherArrays& gather, bool has_counter = false);

/// Where in a forward call's workspace items are counted.
std::int32_t* item_counter(void* workspace);

}  // namespace fdma::sm90
