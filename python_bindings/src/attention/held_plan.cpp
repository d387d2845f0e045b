#include "attention/held_plan.hpp"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <optional>
#include <string>

#include "arrays/call_stream.hpp"
#include "arrays/python_error.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

std::unique_ptr<HeldPlan> prepare_plan(std::shared_ptr<AttentionPlan> plan,
                                       std::optional<int> device, nb::handle stream, bool waits,
                                       bool deterministic) {
  Place place;
  place.device = plan->backend.traits().device;
  if (place.device == Device::cuda) {
    value_or_throw(check_backend(plan->backend));
    place.index = device ? *device : value_or_throw(current_device());
  } else if (device) {
    refuse(ErrorCode::invalid_argument,
           fmt::format("device: expected None for a plan for {}, got {}", to_string(plan->backend),
                       *device));
  }
  const CallStream call(place, stream);
  const nb::gil_scoped_release released;
  auto held = std::make_unique<HeldPlan>(prepared(plan, call.stream(), {deterministic}));
  if (waits && place.device == Device::cuda) value_or_throw(wait_for(call.stream()));
  return held;
}

std::string repr(const HeldPlan& held) {
  const PreparedPlan& plan = held.plan();
  const AttentionShape& shape = plan.shape();
  return fmt::format("<PreparedPlan {} on {}, {} x {} (batch x heads), {} x {}, {} bytes>",
                     to_string(plan.backend()), to_string(held.place()), shape.batch, shape.heads_q,
                     shape.max_q_len(), shape.max_kv_len(), plan.size_bytes());
}

}  // namespace

void HeldPlan::forward(const AttentionTensors& tensors, Stream stream,
                       const AttentionOptions& options) const {
  Workspace workspace = user_.workspace(plan_->device(), plan_->workspace_bytes(), stream);
  if (workspace.data() != nullptr && !workspace.is_prepared()) {
    value_or_throw(plan_->prepare_workspace(workspace.data(), stream));
  }
  value_or_throw(plan_->forward(tensors, {workspace.data(), stream, true}, options));
  workspace.leave_prepared();
}

void HeldPlan::backward(const BackwardTensors& tensors, void* workspace, Stream stream,
                        const BackwardOptions& options) const {
  Workspace own;
  if (workspace == nullptr) {
    own = user_.workspace(plan_->device(), plan_->workspace_bytes(), stream);
    workspace = own.data();
  } else if (plan_->device() >= 0) {
    user_.note_launch(stream);
  }
  value_or_throw(plan_->backward(tensors, {workspace, stream}, options));
}

std::unique_ptr<const PreparedPlan> prepared(std::shared_ptr<const AttentionPlan> plan,
                                             Stream stream, const PrepareOptions& options) {
  return value_or_throw(prepare(std::move(plan), stream, options));
}

void bind_prepared_plan(nb::module_& module) {
  nb::class_<HeldPlan>(module, "PreparedPlan",
                       "A plan where its backend runs it. prepare() makes it.")
      .def_prop_ro(
          "backend",
          [](const HeldPlan& held) { return std::string(to_string(held.plan().backend())); },
          "The name of the backend that runs it.")
      .def_prop_ro(
          "device", [](const HeldPlan& held) { return held.plan().device(); },
          "The index of the GPU; -1 for the CPU.")
      .def_prop_ro(
          "tile",
          [](const HeldPlan& held) {
            const BlockShape tile = held.plan().tile();
            return std::pair(tile.block_q, tile.block_kv);
          },
          "The sides (queries, keys) of a tile.")
      .def_prop_ro(
          "nbytes", [](const HeldPlan& held) { return held.plan().size_bytes(); },
          "Bytes that it takes where its backend computes, without workspaces.")
      .def_prop_ro(
          "workspace_nbytes", [](const HeldPlan& held) { return held.plan().workspace_bytes(); },
          "Bytes of workspace that one call needs; 0 on the CPU.")
      .def_prop_ro("is_captured", &HeldPlan::is_captured,
                   "True if a CUDA graph holds a call by this plan. The plan must live as long\n"
                   "as the graph.")
      .def("__repr__", &repr);
  module.def(
      "prepare", &prepare_plan, nb::arg("plan"), nb::kw_only(),
      nb::arg("device").none() = nb::none(), nb::arg("stream").none() = nb::none(),
      nb::arg("waits") = false, nb::arg("deterministic") = false,
      nb::sig("def prepare(plan: AttentionPlan, *, device: int | None = None, stream: _Stream | "
              "None = None, waits: bool = False, deterministic: bool = False) -> PreparedPlan"),
      "Brings a plan to where its backend runs it.\n\n"
      "A plan for the CPU is kept as it is. One for a GPU is copied to the GPU with\n"
      "the index `device`; None means the current one. The copy is ordered in\n"
      "`stream`; with waits=True it is complete on return, for every stream.\n"
      "deterministic=True also copies what deterministic calls of a backward plan\n"
      "need. NotImplementedError is raised where the backend cannot run.");
  module.def("release_workspaces", &release_workspaces,
             "Frees the workspaces that calls on GPUs share, one for each stream.\n\n"
             "Those of captured CUDA graphs live as long as their plans.");
  module.def("workspaces_nbytes", &workspaces_size_bytes,
             "Returns the bytes of all workspaces on GPUs, shared and captured.");
}

}  // namespace fdma::python
