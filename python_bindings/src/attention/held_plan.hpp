// A prepared plan as Python holds it.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <memory>
#include <utility>

#include "arrays/array_view.hpp"
#include "attention/workspaces.hpp"
#include "fdma/kernels/prepared_plan.hpp"

namespace fdma::python {

/// A prepared plan, of the CPU or on a GPU, whose calls take their workspaces from the store.
/// Calls follow the rules of PreparedPlan; the device of place() is the current one.
class HeldPlan {
 public:
  explicit HeldPlan(std::unique_ptr<const PreparedPlan> plan) : plan_(std::move(plan)) {}

  const PreparedPlan& plan() const { return *plan_; }
  Place place() const {
    return plan_->device() < 0 ? Place{} : Place{Device::cuda, plan_->device()};
  }
  /// Whether a call was captured into a CUDA graph, which then reads the plan at every replay.
  bool is_captured() const { return user_.is_captured(); }

  /// Throws the errors of PreparedPlan and of the workspace. Any thread may call these, without
  /// the GIL. `workspace` is that of the caller, or null.
  void forward(const AttentionTensors& tensors, Stream stream,
               const AttentionOptions& options) const;
  void backward(const BackwardTensors& tensors, void* workspace, Stream stream,
                const BackwardOptions& options) const;

 private:
  std::unique_ptr<const PreparedPlan> plan_;
  WorkspaceUser user_;
};

/// prepare (prepared_plan.hpp), or its error as an exception.
std::unique_ptr<const PreparedPlan> prepared(std::shared_ptr<const AttentionPlan> plan,
                                             Stream stream, const PrepareOptions& options = {});

/// PreparedPlan (HeldPlan), prepare, release_workspaces, workspaces_nbytes.
void bind_prepared_plan(nanobind::module_& module);

}  // namespace fdma::python
