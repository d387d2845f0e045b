// The launch of attention by a plan, shared by the functions that take tensors from Python.
#pragma once

#include <nanobind/nanobind.h>

#include <initializer_list>
#include <utility>

#include "arrays/array_view.hpp"
#include "attention/call_score.hpp"
#include "attention/held_plan.hpp"
#include "fdma/kernels/attention.hpp"

namespace fdma::python {

/// Whether a kernel can read q, k, v or dout, or with `is_of_score` a tensor of the score, in its
/// present memory layout.
bool is_readable(const TensorView& view, bool is_of_score = false);

/// A bit for each of q, k, v and the tensors of the score, in their order, and for each of `others`,
/// that is set if the tensor has memory and no kernel can read it in its present layout.
template <class Tensors>
int unreadable_of(const Tensors& tensors, const CallScore& score,
                  std::initializer_list<const TensorView*> others = {}) {
  int bits = 0, place = 0;
  const auto add = [&](const TensorView& view, bool is_of_score) {
    if (view.data != nullptr && !is_readable(view, is_of_score)) bits |= 1 << place;
    ++place;
  };
  for (const TensorView* view : {&tensors.q, &tensors.kv.k, &tensors.kv.v}) add(*view, false);
  for (const TensorView* view : score.tensors()) add(*view, true);
  for (const TensorView* view : others) add(*view, false);
  return bits;
}

/// The view [batch, len, heads, head_dim] of a tensor [batch, heads, len, head_dim].
template <class View>
void put_lengths_first(View& view) {
  std::swap(view.extents[1], view.extents[2]);
  std::swap(view.strides[1], view.strides[2]);
}

/// Runs attention over readable tensors by a plan that fits them, and writes lse and out_low if
/// they have data. Rows past lengths are 0 in out and -inf in lse; those of out_low are not
/// written. heads_first: q, k, v, out are [batch, heads, len, head_dim]. `stream` and `array` are
/// those of CallStream. The caller holds the GIL, and the call releases it while it runs.
void launch_forward(const HeldPlan& plan, AttentionTensors tensors, bool heads_first,
                    const AttentionOptions& options, nanobind::handle stream,
                    nanobind::handle array);

}  // namespace fdma::python
