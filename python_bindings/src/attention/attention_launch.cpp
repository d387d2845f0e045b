#include "attention/attention_launch.hpp"

#include "arrays/python_error.hpp"
#include "arrays/unwritten_rows.hpp"
#include "attention/shared_workspaces.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

constexpr std::int64_t kDeviceStride = 8;  // elements; strides of all axes but the last
constexpr std::uintptr_t kDeviceAlignment = 16;

}  // namespace

Place place_of(const AnyPlan& plan) {
  const auto* const held = std::get_if<const PlanOnDevice*>(&plan);
  return held != nullptr ? (*held)->place() : Place{};
}

bool is_readable(const TensorView& view) {
  const auto last = static_cast<std::size_t>(view.rank - 1);
  if (view.extents[last] > 1 && view.strides[last] != 1) return false;
  if (view.device == Device::cpu || view.dtype == DType::float32) return true;
  for (std::size_t i = 0; i < last; ++i) {
    if (view.extents[i] > 1 && (view.strides[i] <= 0 || view.strides[i] % kDeviceStride != 0)) {
      return false;
    }
  }
  return reinterpret_cast<std::uintptr_t>(view.data) % kDeviceAlignment == 0;
}

void launch_forward(const AnyPlan& plan, AttentionTensors tensors, bool heads_first,
                    float softmax_scale, int num_threads, nb::handle stream, nb::handle array) {
  if (heads_first) {
    put_lengths_first(tensors.q);
    put_lengths_first(tensors.kv.k);
    put_lengths_first(tensors.kv.v);
    put_lengths_first(tensors.out);
    put_lengths_first(tensors.out_low);
  }
  MutableTensorView* const new_lse = tensors.lse.data != nullptr ? &tensors.lse : nullptr;
  AttentionOptions options;
  options.softmax_scale = softmax_scale;
  options.num_threads = num_threads;
  const auto* const on_device = std::get_if<const PlanOnDevice*>(&plan);
  if (on_device == nullptr) {
    const AttentionPlan& on_host = *std::get<const AttentionPlan*>(plan);
    if (on_host.num_work_tiles() == 1) options.num_threads = 1;  // wakes no thread
    const nb::gil_scoped_release released;
    if (has_rows_past_lengths(on_host.shape, tensors)) fill_unwritten(&tensors.out, new_lse);
    value_or_throw(attention_forward(on_host, tensors, options));
    return;
  }
  const PlanOnDevice& held = **on_device;
  const CurrentDevice current = value_or_throw(CurrentDevice::make(held.place().index));
  const Stream chosen = stream_of(stream, array, held.place().index);
  const nb::gil_scoped_release released;
  if (has_rows_past_lengths(held.plan().shape(), tensors)) {
    fill_unwritten_on_device(&tensors.out, new_lse, chosen);
  }
  const StreamWorkspace workspace = shared_workspace(held, chosen);
  value_or_throw(held.plan().forward(tensors, {workspace.data, chosen, true}, options));
}

}  // namespace fdma::python
