// attention_forward in a workspace that a caller keeps: one launch less on the host.
#pragma once

#include "fdma/base/result.hpp"
#include "fdma/kernels/device_plan.hpp"

namespace fdma {

/// Makes workspace of attention_forward ready to be kept, in the order of `stream`, without
/// waiting. `workspace`: workspace_bytes() bytes of a forward plan.
///
/// Errors  cuda; unsupported without CUDA
Result<void> prepare_workspace(void* workspace, Stream stream = nullptr);

/// attention_forward (device_plan.hpp) in a kept workspace: since prepare_workspace nothing but
/// forward launches, by this or other plans, has written to it. Their count of work items comes
/// back to where it began, so no kernel has to reset it.
///
///     prepare_workspace(workspace, stream);
///     for (..) attention_forward_in_kept_workspace(plan, tensors, workspace, stream, options);
///
/// Errors  those of attention_forward
Result<void> attention_forward_in_kept_workspace(const DevicePlan& plan,
                                                 const AttentionTensors& tensors, void* workspace,
                                                 Stream stream = nullptr,
                                                 const AttentionOptions& options = {});

}  // namespace fdma
