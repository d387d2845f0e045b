// attention_forward for callers inside the library that make parts of the plan on the device.
#pragma once

#include "cuda/device_plan.hpp"
#include "fdma/kernels/device_plan.hpp"

namespace fdma::sm90 {

/// Runs attention_forward (fdma/kernels/device_plan.hpp) with a plan whose segments of kind gather
/// name lists of `gather` instead of the plan's own lists. Kernels earlier on `stream` write these
/// lists. Work tiles and segments are the plan's. Each work tile reads as many index tiles as its
/// list holds when the kernel runs, at most as many as the work tile says. Column intervals may be
/// given likewise. `has_counter` says that work_tile_counter of the workspace is 0: a kernel
/// earlier on `stream` set it, or the last launch left it so.
Result<void> attention_forward_with_lists(const DevicePlan& plan, const AttentionTensors& tensors,
                                          void* workspace, Stream stream,
                                          const AttentionOptions& options,
                                          const KvIndexArrays& gather, bool has_counter = false);

/// Address of the work-tile counter in the workspace of a forward call.
std::int32_t* work_tile_counter(void* workspace);

}  // namespace fdma::sm90
