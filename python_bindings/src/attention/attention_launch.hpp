// What calls of attention by plans share, whoever brings the tensors.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <utility>
#include <variant>

#include "arrays/array_view.hpp"
#include "attention/plan_on_device.hpp"
#include "fdma/kernels/attention.hpp"

namespace fdma::python {

/// A plan of the CPU, or one on a GPU.
using AnyPlan = std::variant<const AttentionPlan*, const PlanOnDevice*>;

Place place_of(const AnyPlan& plan);

/// Whether a kernel reads the tensor as it lies.
bool is_readable(const TensorView& view);

/// Which of the tensors no kernel reads as they lie: a bit for each, in the order given.
template <std::size_t n>
int unreadable_of(const std::array<const TensorView*, n>& views) {
  int bits = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (views[i]->data != nullptr && !is_readable(*views[i])) bits |= 1 << i;
  }
  return bits;
}

/// [batch, heads, len, head_dim] as [batch, len, heads, head_dim].
template <class View>
void put_lengths_first(View& view) {
  std::swap(view.extents[1], view.extents[2]);
  std::swap(view.strides[1], view.strides[2]);
}

/// Runs attention over readable tensors by a plan that fits them, and writes lse and out_low if
/// they have data. Rows past lengths are 0 in out and -inf in lse; those of out_low are not
/// written. heads_first: q, k, v, out are [batch, heads, len, head_dim]. On a GPU the call runs on
/// `stream`; None means the current stream of the framework of `array`. num_threads: CPU threads; 0
/// means all. The caller holds the GIL, and the call releases it while it runs.
void launch_forward(const AnyPlan& plan, AttentionTensors tensors, bool heads_first,
                    float softmax_scale, int num_threads, nanobind::handle stream,
                    nanobind::handle array);

}  // namespace fdma::python
