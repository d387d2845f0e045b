// merge: attention results over disjoint sets of keys, as one result.
#include "fdma/kernels/merge.hpp"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays/array_view.hpp"
#include "arrays/call_stream.hpp"
#include "arrays/python_error.hpp"
#include "bindings.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

/// The arrays that a call reads.
struct MergeInputs {
  std::vector<InputArray> arrays;
  std::vector<MergePart> parts;
  TensorView sinks;
  Place place;

  const TensorView& take(const std::string& name, nb::handle object) {
    arrays.push_back(input_array(name, object, Gradients::elsewhere));
    if (arrays.size() == 1) place = arrays[0].place;
    check_on(name, arrays.back().place, place);
    return arrays.back().view;
  }
};

MutableTensorView written(const char* name, nb::handle object, const MergeInputs& inputs) {
  const OutputArray array = output_array(name, object, Gradients::elsewhere);
  check_on(name, array.place, inputs.place);
  for (std::size_t i = 0; i < inputs.parts.size(); ++i) {
    check_apart(name, array.view.view(), fmt::format("parts[{}].out", i), inputs.parts[i].out);
    check_apart(name, array.view.view(), fmt::format("parts[{}].lse", i), inputs.parts[i].lse);
  }
  if (inputs.sinks.data != nullptr) check_apart(name, array.view.view(), "sinks", inputs.sinks);
  return array.view;
}

void merge_parts(const std::vector<std::pair<nb::object, nb::object>>& parts, nb::handle sinks,
                 nb::handle out, nb::handle lse, int num_threads, nb::handle stream) {
  MergeInputs inputs;
  for (const auto& [part_out, part_lse] : parts) {
    const std::string name = fmt::format("parts[{}]", inputs.parts.size());
    const TensorView taken = inputs.take(name + ".out", part_out);
    inputs.parts.push_back({taken, inputs.take(name + ".lse", part_lse)});
  }
  if (!sinks.is_none()) inputs.sinks = inputs.take("sinks", sinks);
  const MergeTensors tensors{inputs.parts, inputs.sinks, written("out", out, inputs),
                             written("lse", lse, inputs)};
  check_apart("lse", tensors.lse.view(), "out", tensors.out.view());
  const CallStream call(inputs.place, stream, out);
  const nb::gil_scoped_release released;
  value_or_throw(inputs.place.device == Device::cpu ? merge(tensors, num_threads)
                                                    : merge(tensors, call.stream()));
}

}  // namespace

void bind_merge(nb::module_& module) {
  module.def("merge", &merge_parts, nb::arg("parts"), nb::kw_only(), nb::arg("sinks").none(),
             nb::arg("out"), nb::arg("lse"), nb::arg("num_threads") = 0,
             nb::arg("stream").none() = nb::none(),
             nb::sig("def merge(parts: Sequence[tuple[Array, Array]], *, sinks: Array | None, out: "
                     "Array, lse: Array, num_threads: int = 0, stream: _Stream | None = None) -> "
                     "None"),
             "Merges attention results (out, lse) over disjoint sets of keys into `out` and `lse`. "
             "out is [batch, q_len, heads_q, head_dim_v], lse [batch, heads_q, q_len], sinks "
             "[heads_q] or [batch, heads_q, q_len].");
}

}  // namespace fdma::python
