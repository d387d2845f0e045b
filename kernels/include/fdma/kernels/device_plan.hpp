// A plan in the memory of a GPU, and attention by it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "fdma/base/result.hpp"
#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/attention_backward.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// A plan of a GPU backend, uploaded. One plan can be used by every layer and step with the same
/// mask, shapes and dtypes, and by any number of streams of its device at once.
///
/// Owner       owns its device memory (size_bytes), released by the destructor, which waits for the
///             kernels that use it
class DevicePlan {
 public:
  DevicePlan(DevicePlan&&) noexcept;
  DevicePlan& operator=(DevicePlan&&) noexcept;
  ~DevicePlan();

  const AttentionShape& shape() const;
  const ScoreSpec& score() const;
  Direction direction() const;
  BlockShape tile() const;
  /// The CUDA device that holds it.
  int device() const;
  /// Bytes of device memory.
  std::int64_t size_bytes() const;
  /// Bytes of workspace that one launch needs, a constant of the plan.
  std::int64_t workspace_bytes() const;

  struct Impl;
  const Impl& impl() const { return *impl_; }
  explicit DevicePlan(std::unique_ptr<Impl> impl);

 private:
  std::unique_ptr<Impl> impl_;
};

struct UploadOptions {
  /// Uploads what deterministic calls need: for a backward plan of work tiles or of kv worklists,
  /// 4 bytes for each tile that a work tile walks. Other plans need nothing more.
  bool deterministic = false;
};

/// Copies a plan of backend sm90 to the current device, in the order of `stream`; kernels on other
/// streams must wait for it. Must not be called while a stream is captured. `plan` may be destroyed
/// when the call returns.
///
/// Errors      unsupported (backend, build, GPU), out_of_memory, cuda
Result<DevicePlan> upload(const AttentionPlan& plan, Stream stream = nullptr,
                          const UploadOptions& options = {});

/// attention_forward (attention.hpp) on the GPU, in the order of `stream`. It returns after the
/// launch, without waiting, and may be captured into a CUDA graph. The bits are the same every run.
/// options.num_threads, num_work_tiles_done and is_cancelled do not apply.
///
/// A value in v that is not finite also makes those rows of a visited tile NaN that do not see its
/// key. Keys past an element's length never matter.
///
/// Shapes      tensors are device tensors; head_dim is contiguous, other strides are multiples of 8
///             elements, addresses of q, k, v are multiples of 16 bytes
///             workspace: workspace_bytes() of device memory, 16-aligned, that no other launch uses
///             at the same time
/// Errors      shape_mismatch, invalid_argument, unsupported (strides, alignment, device, a plan
///             for backward calls), cuda. All are checked before the launch
Result<void> attention_forward(const DevicePlan& plan, const AttentionTensors& tensors,
                               void* workspace, Stream stream = nullptr,
                               const AttentionOptions& options = {});

/// attention_backward (attention_backward.hpp) on the GPU, by an uploaded backward plan. Launches,
/// workspace and options are as of attention_forward above. With options.deterministic the bits are
/// the same every run, and the call is somewhat slower; a plan that is not in closed form must have
/// been uploaded for it.
///
/// A value in q, k, v or dout that is not finite may reach the gradients of any row and key of a
/// visited tile, whether they see each other or not. Which ones it reaches may differ from run to
/// run, also with options.deterministic. Elements past a length never matter.
///
/// Shapes      tensors, gradients included, are device tensors; strides but the last are multiples
///             of 8 elements, addresses are multiples of 16 bytes
/// Errors      shape_mismatch, invalid_argument, unsupported (strides, alignment, device, a plan
///             for forward calls), cuda. All are checked before the launch
Result<void> attention_backward(const DevicePlan& plan, const BackwardTensors& tensors,
                                void* workspace, Stream stream = nullptr,
                                const BackwardOptions& options = {});

}  // namespace fdma
