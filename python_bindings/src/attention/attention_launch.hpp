// The launch of attention by a plan, shared by the functions that take tensors from Python.
#pragma once

#include <nanobind/nanobind.h>

#include <array>
#include <cstddef>
#include <utility>

#include "arrays/array_view.hpp"
#include "attention/held_plan.hpp"
#include "fdma/kernels/attention.hpp"

namespace fdma::python {

/// Whether a kernel can read the tensor in its present memory layout.
bool is_readable(const TensorView& view);

/// A bit for each tensor, in the order given, that is set if the tensor has memory and no kernel
/// can read it in its present layout.
template <std::size_t n>
int unreadable_of(const std::array<const TensorView*, n>& views) {
  int bits = 0;
  for (std::size_t i = 0; i < n; ++i) {
    if (views[i]->data != nullptr && !is_readable(*views[i])) bits |= 1 << i;
  }
  return bits;
}

/// The view [batch, len, heads, head_dim] of a tensor [batch, heads, len, head_dim].
template <class View>
void put_lengths_first(View& view) {
  std::swap(view.extents[1], view.extents[2]);
  std::swap(view.strides[1], view.strides[2]);
}

/// The numbers of a forward call. 0 stands for 1 / sqrt(head_dim), no softcap, all CPU threads.
struct CallNumbers {
  float softmax_scale, softcap;
  int num_threads;
};

/// Runs attention over readable tensors by a plan that fits them, and writes lse and out_low if
/// they have data. Rows past lengths are 0 in out and -inf in lse; those of out_low are not
/// written. heads_first: q, k, v, out are [batch, heads, len, head_dim]. `stream` and `array` are
/// those of CallStream. The caller holds the GIL, and the call releases it while it runs.
void launch_forward(const HeldPlan& plan, AttentionTensors tensors, bool heads_first,
                    const CallNumbers& numbers, nanobind::handle stream, nanobind::handle array);

}  // namespace fdma::python
