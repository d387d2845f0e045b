#include "attention/plan_on_device.hpp"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "arrays/python_error.hpp"
#include "arrays/tensor_exchange.hpp"
#include "fdma/kernels/backends.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

Stream stream_from(nb::handle address) {
  return reinterpret_cast<Stream>(nb::cast<std::uintptr_t>(nb::int_(address)));
}

// The package that defines the object's type: "torch" for torch.Tensor.
std::string package_of(nb::handle object) {
  const nb::handle type(reinterpret_cast<PyObject*>(Py_TYPE(object.ptr())));
  const auto module = nb::cast<std::string>(nb::str(nb::getattr(type, "__module__", nb::str(""))));
  return module.substr(0, module.find('.'));
}

// The framework is asked at run time, since this module is built without any of them.
Stream current_stream_of(nb::handle array, int device) {
  if (const std::optional<void*> stream = exchanged_stream(array, device)) {
    return reinterpret_cast<Stream>(*stream);
  }
  const std::string package = package_of(array);
  if (package == "torch") {
    const nb::object cuda = nb::module_::import_("torch.cuda");
    return stream_from(cuda.attr("current_stream")(device).attr("cuda_stream"));
  }
  if (package == "cupy") {
    return stream_from(nb::module_::import_("cupy.cuda").attr("get_current_stream")().attr("ptr"));
  }
  return nullptr;
}

std::unique_ptr<PlanOnDevice> upload_plan(const AttentionPlan& plan, std::optional<int> device,
                                          nb::handle stream, bool waits, bool deterministic) {
  std::optional<CurrentDevice> current;
  if (device) current.emplace(make_current({Device::cuda, *device}));
  const Stream chosen = stream.is_none() ? nullptr : stream_of(stream, nb::none(), 0);
  const nb::gil_scoped_release released;
  auto held = std::make_unique<PlanOnDevice>(prepared(plan, chosen, {deterministic}));
  if (waits) value_or_throw(wait_for(chosen));
  return held;
}

std::string repr(const PlanOnDevice& held) {
  const AttentionShape& shape = held.plan().shape();
  return fmt::format("<DevicePlan on cuda:{}, {} x {} (batch x heads), {} x {}, {} bytes>",
                     held.plan().device(), shape.batch, shape.heads_q, shape.max_q_len(),
                     shape.max_kv_len(), held.plan().size_bytes());
}

}  // namespace

std::unique_ptr<const PreparedPlan> prepared(const AttentionPlan& plan, Stream stream,
                                             const PrepareOptions& options) {
  if (plan.backend.traits().device == Device::cpu) {
    refuse(ErrorCode::unsupported,
           fmt::format("upload: expected a plan for {}, got one for {}",
                       to_string(backend_for(Device::cuda)), to_string(plan.backend)));
  }
  return value_or_throw(prepare(plan, stream, options));  // a copy, which the backend may keep
}

void* PlanOnDevice::workspace(Stream stream) const {
  const StreamNumber number = value_or_throw(number_of(stream));
  if (number.capture != 0) is_captured_ = true;
  const std::lock_guard lock(mutex_);
  auto found = workspaces_.find(number);
  if (found == workspaces_.end()) {
    DeviceMemory memory = value_or_throw(DeviceMemory::allocate(plan_->workspace_bytes()));
    value_or_throw(plan_->prepare_workspace(memory.data(), stream));
    found = workspaces_.emplace(number, std::move(memory)).first;
  }
  return found->second.data();
}

void PlanOnDevice::note_launch(Stream stream) const {
  if (value_or_throw(number_of(stream)).capture != 0) is_captured_ = true;
}

bool PlanOnDevice::is_captured() const { return is_captured_; }

std::int64_t PlanOnDevice::workspace_bytes() const {
  const std::lock_guard lock(mutex_);
  return static_cast<std::int64_t>(workspaces_.size()) * plan_->workspace_bytes();
}

CurrentDevice make_current(const Place& place) {
  Result<CurrentDevice> current = CurrentDevice::make(place.index);
  if (!current) value_or_throw(check_backend(backend_for(Device::cuda)));
  CurrentDevice guard = value_or_throw(std::move(current));
  value_or_throw(check_backend(backend_for(Device::cuda)));
  return guard;
}

Stream stream_of(nb::handle stream, nb::handle array, int device) {
  if (stream.is_none()) return current_stream_of(array, device);
  if (nb::isinstance<nb::int_>(stream)) return stream_from(stream);
  if (nb::hasattr(stream, "__cuda_stream__")) {
    return stream_from(nb::cast<nb::tuple>(stream.attr("__cuda_stream__")())[1]);
  }
  for (const char* name : {"cuda_stream", "ptr"}) {
    if (nb::hasattr(stream, name)) return stream_from(stream.attr(name));
  }
  const auto type = nb::cast<std::string>(
      nb::str(nb::handle(reinterpret_cast<PyObject*>(Py_TYPE(stream.ptr()))).attr("__name__")));
  throw nb::type_error(
      fmt::format("stream: expected None, an integer or an object with __cuda_stream__, got {}",
                  type)
          .c_str());
}

void bind_device_plan(nb::module_& module) {
  nb::class_<PlanOnDevice>(module, "DevicePlan",
                           "A plan in the memory of a GPU. upload() makes it.")
      .def_prop_ro(
          "device", [](const PlanOnDevice& held) { return held.plan().device(); },
          "The index of the GPU.")
      .def_prop_ro(
          "tile",
          [](const PlanOnDevice& held) {
            const BlockShape tile = held.plan().tile();
            return std::pair(tile.block_q, tile.block_kv);
          },
          "The sides (queries, keys) of a tile.")
      .def_prop_ro(
          "nbytes", [](const PlanOnDevice& held) { return held.plan().size_bytes(); },
          "Bytes of device memory without the workspaces.")
      .def_prop_ro(
          "launch_nbytes", [](const PlanOnDevice& held) { return held.plan().workspace_bytes(); },
          "Bytes of workspace that one launch needs.")
      .def_prop_ro("workspace_nbytes", &PlanOnDevice::workspace_bytes,
                   "Bytes of the workspaces that the plan owns so far.\n\n"
                   "`attention` has one workspace for each stream and each graph capture.\n"
                   "`attention_call` has one for each graph capture; its streams share theirs\n"
                   "among plans, and those are not counted.")
      .def_prop_ro("is_captured", &PlanOnDevice::is_captured,
                   "True if a CUDA graph holds a call by this plan. The plan must live as long\n"
                   "as the graph.")
      .def("__repr__", &repr);
  module.def(
      "upload", &upload_plan, nb::arg("plan"), nb::kw_only(), nb::arg("device").none() = nb::none(),
      nb::arg("stream").none() = nb::none(), nb::arg("waits") = false,
      nb::arg("deterministic") = false,
      nb::sig("def upload(plan: AttentionPlan, *, device: int | None = None, stream: _Stream | "
              "None = None, waits: bool = False, deterministic: bool = False) -> DevicePlan"),
      "Copies a plan for sm90 to a GPU and returns it.\n\n"
      "device is the index of the GPU; None means the current one. The copy is\n"
      "ordered in `stream`; with waits=True it is complete on return, for every\n"
      "stream. deterministic=True also copies what deterministic calls of a\n"
      "backward plan need. NotImplementedError is raised for a plan of another\n"
      "backend or a GPU of another architecture.");
}

}  // namespace fdma::python
