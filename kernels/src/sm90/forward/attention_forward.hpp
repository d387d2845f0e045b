// attention_forward by an uploaded plan, also with parts of the plan that were made on the device.
#pragma once

#include <cstdint>

#include "cuda/device_plan.hpp"
#include "fdma/kernels/prepared_plan.hpp"
#include "sm90/shared/neutral.hpp"

namespace fdma::sm90 {

struct ForwardKernel;  // kernels.hpp

/// PreparedPlan::forward (fdma/kernels/prepared_plan.hpp) by `plan`. A kept workspace is one whose
/// work_tile_counter is 0, which is how every launch leaves it.
Result<void> attention_forward(const DevicePlan& plan, const AttentionTensors& tensors,
                               const Launch& launch, const AttentionOptions& options);

/// The same with a plan whose segments of kind gather name lists of `gather` instead of the plan's
/// own lists. Kernels earlier on the stream write these lists. Work tiles and segments are the
/// plan's. Each work tile reads as many index tiles as its list holds when the kernel runs, at most
/// as many as the work tile says. Column intervals may be given likewise.
Result<void> attention_forward_with_lists(const DevicePlan& plan, const AttentionTensors& tensors,
                                          const Launch& launch, const AttentionOptions& options,
                                          const KvIndexArrays& gather);

/// The same by a kernel of the caller's, with policies that no call chooses yet. It holds the head
/// sizes and the element type of the plan.
Result<void> attention_forward_by(const ForwardKernel& kernel, const DevicePlan& plan,
                                  const AttentionTensors& tensors, const Launch& launch,
                                  const AttentionOptions& options);

/// Bytes of workspace that one launch needs.
std::int64_t forward_workspace_bytes(const DevicePlan& plan);

/// Address of the work-tile counter in the workspace of a forward call.
std::int32_t* work_tile_counter(void* workspace);

}  // namespace fdma::sm90
