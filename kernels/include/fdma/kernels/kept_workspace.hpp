// attention_forward in a workspace that the caller keeps, which saves one launch.
#pragma once

#include "fdma/base/result.hpp"
#include "fdma/kernels/device_plan.hpp"

namespace fdma {

/// Prepares a workspace of attention_forward to be kept, in the order of `stream`, without waiting.
/// `workspace` has the workspace_bytes() of a forward plan.
///
/// Errors      cuda; unsupported without CUDA
Result<void> prepare_workspace(void* workspace, Stream stream = nullptr);

/// attention_forward (device_plan.hpp) in a kept workspace. Since prepare_workspace, only forward
/// launches by this or other plans may have written to it. Each launch leaves the count of work
/// tiles as it found it, so no kernel has to reset it.
///
///     prepare_workspace(workspace, stream);
///     for (..) attention_forward_in_kept_workspace(plan, tensors, workspace, stream, options);
///
/// Errors      those of attention_forward
Result<void> attention_forward_in_kept_workspace(const DevicePlan& plan,
                                                 const AttentionTensors& tensors, void* workspace,
                                                 Stream stream = nullptr,
                                                 const AttentionOptions& options = {});

}  // namespace fdma
