// AttentionPlan, make_plan and attention.
//
// attention() takes a mask or a plan. With a mask it makes the plan of the tensors at hand; with a
// plan it only runs, which is what a loop over steps of the same shape wants.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "array_view.hpp"
#include "bindings.hpp"
#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/plan.hpp"
#include "python_error.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

using MaskOrPlan = std::variant<const BlockMask*, const AttentionPlan*>;

[[noreturn]] void refuse(ErrorCode code, std::string message) {
  throw PythonError({code, std::move(message)});
}

std::int32_t checked_count(std::string_view name, std::int64_t value) {
  if (value < 0 || value > std::numeric_limits<std::int32_t>::max()) {
    refuse(ErrorCode::invalid_argument,
           fmt::format("{}: expected a count below 2^31, got {}", name, value));
  }
  return static_cast<std::int32_t>(value);
}

ColumnMode parse_column_mode(const std::string& text) {
  for (const ColumnMode mode : {ColumnMode::automatic, ColumnMode::scan, ColumnMode::gather}) {
    if (to_string(mode) == text) return mode;
  }
  refuse(ErrorCode::invalid_argument,
         fmt::format("columns: expected automatic, scan or gather, got '{}'", text));
}

AttentionPlan make_attention_plan(const BlockMask& mask, std::optional<std::int64_t> batch,
                                  std::int64_t heads_q, std::optional<std::int64_t> heads_kv,
                                  std::int64_t head_dim, std::optional<std::int64_t> head_dim_v,
                                  const std::string& dtype,
                                  const std::optional<std::string>& out_dtype, bool key_bias,
                                  const std::string& backend, std::pair<int, int> tile,
                                  const std::string& columns) {
  AttentionShape shape;
  shape.batch = batch.value_or(mask.shape.num_batches);
  shape.heads_q = checked_count("heads_q", heads_q);
  shape.heads_kv = checked_count("heads_kv", heads_kv.value_or(heads_q));
  shape.q_lens = mask.shape.q_lens;
  shape.kv_lens = mask.shape.kv_lens;
  shape.head_dim = checked_count("head_dim", head_dim);
  shape.head_dim_v = checked_count("head_dim_v", head_dim_v.value_or(head_dim));
  shape.q_dtype = shape.k_dtype = shape.v_dtype = parse_dtype("dtype", dtype);
  shape.out_dtype = out_dtype ? parse_dtype("out_dtype", *out_dtype) : shape.q_dtype;
  PlanOptions options;
  options.backend = value_or_throw(parse_backend(backend));
  options.tile = {tile.first, tile.second};
  options.columns = parse_column_mode(columns);
  const nb::gil_scoped_release released;
  return value_or_throw(
      make_plan(mask, shape, {key_bias ? ScoreKind::key_bias : ScoreKind::none}, options));
}

void check_rank(std::string_view name, const TensorView& view, int rank, const char* layout) {
  if (view.rank == rank) return;
  refuse(ErrorCode::shape_mismatch,
         fmt::format("{}: expected {} dimensions {}, got {}", name, rank, layout, view.rank));
}

// What the plan says, or for a mask what the tensors say.
AttentionShape shape_of(const BlockMask& mask, const AttentionTensors& tensors, DType out_dtype) {
  AttentionShape shape;
  shape.batch = tensors.q.extents[0];
  shape.heads_q = checked_count("q", tensors.q.extents[2]);
  shape.heads_kv = checked_count("k", tensors.kv.k.extents[2]);
  shape.q_lens = mask.shape.q_lens;
  shape.kv_lens = mask.shape.kv_lens;
  shape.head_dim = checked_count("q", tensors.q.extents[3]);
  shape.head_dim_v = checked_count("v", tensors.kv.v.extents[3]);
  shape.q_dtype = tensors.q.dtype;
  shape.k_dtype = tensors.kv.k.dtype;
  shape.v_dtype = tensors.kv.v.dtype;
  shape.out_dtype = out_dtype;
  return shape;
}

// True iff the tensors hold rows past some element's own length, which the kernel does not write.
bool has_rows_past_lengths(const AttentionShape& shape, std::int64_t q_extent) {
  return std::any_of(shape.q_lens.begin(), shape.q_lens.end(),
                     [&](std::int64_t length) { return length < q_extent; });
}

// Rows past an element's length see no key: 0 in a new output, -inf in the lse. An output that was
// given keeps what it holds there.
void fill_unwritten(MutableTensorView* new_out, const MutableTensorView& lse) {
  if (new_out != nullptr) {
    std::fill_n(static_cast<unsigned char*>(new_out->data),
                new_out->view().num_elements() * size_bytes(new_out->dtype), 0);
  }
  if (lse.data != nullptr) {
    std::fill_n(static_cast<float*>(lse.data), lse.view().num_elements(),
                -std::numeric_limits<float>::infinity());
  }
}

nb::object attention(nb::handle q, nb::handle k, nb::handle v, const MaskOrPlan& mask,
                     const std::optional<nb::object>& key_bias, std::optional<float> softmax_scale,
                     std::optional<std::int64_t> stream, int num_threads,
                     const std::optional<nb::object>& out, bool return_lse) {
  if (stream && *stream != 0) {
    refuse(ErrorCode::invalid_argument,
           fmt::format("stream: expected None or 0 on the CPU, got {}", *stream));
  }
  if (softmax_scale && (!std::isfinite(*softmax_scale) || *softmax_scale == 0)) {
    refuse(ErrorCode::invalid_argument,
           fmt::format("softmax_scale: expected a finite number other than 0, got {}",
                       *softmax_scale));
  }
  if (num_threads < 0) {
    refuse(ErrorCode::invalid_argument,
           fmt::format("num_threads: expected 0 or more, got {}", num_threads));
  }
  const InputArray q_array = input_array("q", q);
  const InputArray k_array = input_array("k", k);
  const InputArray v_array = input_array("v", v);
  InputArray bias_array;
  AttentionTensors tensors;
  tensors.q = q_array.view;
  tensors.kv = {KvLayout::contiguous, k_array.view, v_array.view};
  check_rank("q", tensors.q, 4, "[batch, q_len, heads_q, head_dim]");
  check_rank("k", tensors.kv.k, 4, "[batch, kv_len, heads_kv, head_dim]");
  check_rank("v", tensors.kv.v, 4, "[batch, kv_len, heads_kv, head_dim_v]");
  if (key_bias) {
    bias_array = input_array("key_bias", *key_bias);
    tensors.key_bias = bias_array.view;
    check_rank("key_bias", tensors.key_bias, 3, "[batch, heads_kv, kv_len]");
  }

  const auto* const given = std::get_if<const AttentionPlan*>(&mask);
  DType out_dtype = given != nullptr ? (*given)->shape.out_dtype : tensors.q.dtype;
  OutputArray out_array, lse_array;
  if (out) {
    out_array = output_array("out", *out);
    out_dtype = out_array.view.dtype;
    check_rank("out", out_array.view.view(), 4, "[batch, q_len, heads_q, head_dim_v]");
    check_apart("out", out_array.view.view(), "q", tensors.q);
    check_apart("out", out_array.view.view(), "k", tensors.kv.k);
    check_apart("out", out_array.view.view(), "v", tensors.kv.v);
    if (key_bias) check_apart("out", out_array.view.view(), "key_bias", tensors.key_bias);
  }
  AttentionPlan made;
  if (given == nullptr) {
    const nb::gil_scoped_release released;
    const BlockMask& block_mask = *std::get<const BlockMask*>(mask);
    const ScoreSpec score{key_bias ? ScoreKind::key_bias : ScoreKind::none};
    made = value_or_throw(make_plan(block_mask, shape_of(block_mask, tensors, out_dtype), score));
  }
  const AttentionPlan& plan = given != nullptr ? **given : made;

  const std::int64_t batch = plan.shape.batch;
  const std::int64_t heads = plan.shape.heads_q;
  const std::int64_t q_extent = tensors.q.extents[1];
  if (!out) {
    out_array = new_array("out", out_dtype, 4, {batch, q_extent, heads, plan.shape.head_dim_v});
  }
  tensors.out = out_array.view;
  if (return_lse) {
    lse_array = new_array("lse", DType::float32, 3, {batch, heads, q_extent, 1});
    tensors.lse = lse_array.view;
  }
  {
    const nb::gil_scoped_release released;
    if (has_rows_past_lengths(plan.shape, q_extent)) {
      fill_unwritten(out ? nullptr : &tensors.out, tensors.lse);
    }
    AttentionOptions options;
    options.softmax_scale = softmax_scale.value_or(0);
    options.num_threads = num_threads;
    value_or_throw(attention_forward(plan, tensors, options));
  }
  if (!return_lse) return out_array.object;
  return nb::make_tuple(out_array.object, lse_array.object);
}

nb::dict counts_of(const AttentionPlan& plan) {
  nb::dict result;
  result["full_tiles"] = plan.counts.full_tiles;
  result["bitmap_tiles"] = plan.counts.bitmap_tiles;
  result["row_tiles"] = plan.counts.row_tiles;
  result["column_tiles"] = plan.counts.column_tiles;
  result["column_entries"] = plan.counts.column_entries;
  result["gather_chunks"] = plan.counts.gather_chunks;
  result["gather_entries"] = plan.counts.gather_entries;
  result["empty_items"] = plan.counts.empty_items;
  return result;
}

}  // namespace

void bind_attention(nb::module_& module) {
  nb::class_<AttentionPlan>(module, "AttentionPlan", "What will run; make_plan() makes them.")
      .def_prop_ro("backend",
                   [](const AttentionPlan& plan) { return std::string(to_string(plan.backend)); })
      .def_prop_ro("tile",
                   [](const AttentionPlan& plan) {
                     return std::pair(plan.tile.block_q, plan.tile.block_kv);
                   })
      .def_prop_ro("num_items", [](const AttentionPlan& plan) { return plan.items.size(); })
      .def_prop_ro("nbytes", &AttentionPlan::size_bytes)
      .def_prop_ro("counts", &counts_of, "Tiles and gather chunks over all items.")
      .def("__str__", [](const AttentionPlan& plan) { return to_text(plan); });
  module.def("make_plan", &make_attention_plan, nb::arg("mask"), nb::kw_only(),
             nb::arg("batch") = nb::none(), nb::arg("heads_q"), nb::arg("heads_kv") = nb::none(),
             nb::arg("head_dim"), nb::arg("head_dim_v") = nb::none(), nb::arg("dtype") = "float32",
             nb::arg("out_dtype") = nb::none(), nb::arg("key_bias") = false,
             nb::arg("backend") = "cpu", nb::arg("tile") = std::pair(0, 0),
             nb::arg("columns") = "automatic",
             "The plan of a mask for tensors of a shape, to be used by many calls of attention.");
  module.def("attention", &attention, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("mask"),
             nb::kw_only(), nb::arg("key_bias") = nb::none(), nb::arg("softmax_scale") = nb::none(),
             nb::arg("stream") = nb::none(), nb::arg("num_threads") = 0,
             nb::arg("out") = nb::none(), nb::arg("return_lse") = true,
             "softmax(softmax_scale * q k^T + key_bias, masked) v by a BlockMask or an "
             "AttentionPlan.");
  module.def("cpu_target", &cpu_target, "The instruction set that the CPU backend runs with here.");
  module.def("available_backends", [] { return std::vector<std::string>{"cpu"}; });
}

}  // namespace fdma::python
