#include "attention/attention_launch.hpp"

#include <cstdint>

#include "arrays/call_stream.hpp"
#include "arrays/unwritten_rows.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

constexpr std::int64_t kDeviceStride = 8;  // elements; strides of all axes but the last
constexpr std::uintptr_t kDeviceAlignment = 16;

}  // namespace

bool is_readable(const TensorView& view, bool is_of_score) {
  const auto last = static_cast<std::size_t>(view.rank - 1);
  if (view.extents[last] > 1 && view.strides[last] != 1) return false;
  if (is_of_score || view.device == Device::cpu || view.dtype == DType::float32) return true;
  for (std::size_t i = 0; i < last; ++i) {
    if (view.extents[i] > 1 && (view.strides[i] <= 0 || view.strides[i] % kDeviceStride != 0)) {
      return false;
    }
  }
  return reinterpret_cast<std::uintptr_t>(view.data) % kDeviceAlignment == 0;
}

void launch_forward(const HeldPlan& plan, AttentionTensors tensors, bool heads_first,
                    const AttentionOptions& options, nb::handle stream, nb::handle array) {
  if (heads_first) {
    put_lengths_first(tensors.q);
    put_lengths_first(tensors.kv.k);
    put_lengths_first(tensors.kv.v);
    put_lengths_first(tensors.out);
    put_lengths_first(tensors.out_low);
  }
  const CallStream call(plan.place(), stream, array);
  const nb::gil_scoped_release released;
  if (has_rows_past_lengths(plan.plan().shape(), tensors)) {
    fill_unwritten(&tensors.out, tensors.lse.data != nullptr ? &tensors.lse : nullptr,
                   call.stream());
  }
  plan.forward(tensors, call.stream(), options);
}

}  // namespace fdma::python
