// An uploaded plan as Python holds it, together with the workspaces of its calls.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>

#include "arrays/array_view.hpp"
#include "fdma/kernels/device_memory.hpp"
#include "fdma/kernels/device_stream.hpp"
#include "fdma/kernels/prepared_plan.hpp"

namespace fdma::python {

/// A prepared plan on a GPU, and a workspace for every stream that has run it. Calls on one stream follow each
/// other, so they share one workspace. A captured CUDA graph may be replayed on any stream, so each
/// capture has a workspace of its own. All workspaces live as long as the plan.
class PlanOnDevice {
 public:
  explicit PlanOnDevice(std::unique_ptr<const PreparedPlan> plan) : plan_(std::move(plan)) {}

  const PreparedPlan& plan() const { return *plan_; }
  Place place() const { return {Device::cuda, plan_->device()}; }
  /// The workspace for a launch on `stream`. The plan's device must be current. Any thread may call
  /// this, without the GIL. If the plan is for forward calls, the workspace is a kept one
  /// (Launch::is_kept).
  void* workspace(Stream stream) const;
  /// Records a launch on `stream` whose workspace the caller provides; is_captured uses the record.
  void note_launch(Stream stream) const;
  /// Whether a call was captured into a CUDA graph, which then reads the plan at every replay.
  bool is_captured() const;
  /// The bytes of all workspaces made so far.
  std::int64_t workspace_bytes() const;

 private:
  std::unique_ptr<const PreparedPlan> plan_;
  mutable std::mutex mutex_;
  mutable std::atomic<bool> is_captured_ = false;
  mutable std::map<StreamNumber, DeviceMemory> workspaces_;
};

/// prepare (prepared_plan.hpp) for a GPU. `plan` may be destroyed when the call returns.
std::unique_ptr<const PreparedPlan> prepared(const AttentionPlan& plan, Stream stream,
                                             const PrepareOptions& options = {});

/// Makes the device of `place` current while the result lives. Errors: those of check_backend,
/// which name the available backends.
CurrentDevice make_current(const Place& place);

/// The stream that a caller named for a call on `device`. It is an integer (cudaStream_t), an
/// object with `__cuda_stream__` (its second entry), or a stream of PyTorch (cuda_stream) or CuPy
/// (ptr). None means the current stream of the framework of `array` if that has one (PyTorch,
/// CuPy), otherwise the default stream. Anything else is a TypeError.
Stream stream_of(nanobind::handle stream, nanobind::handle array, int device);

/// DevicePlan (PlanOnDevice), upload.
void bind_device_plan(nanobind::module_& module);

}  // namespace fdma::python
