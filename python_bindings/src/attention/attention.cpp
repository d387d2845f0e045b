// AttentionPlan, make_plan and attention.
//
// attention() takes a mask, a plan or a prepared plan. It makes the plan of a mask for the given
// tensors, and prepares a plan that is not prepared for this call alone. By a prepared plan it only
// runs; loops over steps of the same shape use this. The device of the tensors decides which
// backend computes.
#include "fdma/kernels/attention.hpp"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "arrays/array_view.hpp"
#include "arrays/call_stream.hpp"
#include "arrays/python_error.hpp"
#include "arrays/unwritten_rows.hpp"
#include "attention/call_score.hpp"
#include "attention/held_plan.hpp"
#include "bindings.hpp"
#include "fdma/base/overloads.hpp"
#include "fdma/kernels/backends.hpp"
#include "fdma/kernels/plan.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

using MaskOrPlan = std::variant<const BlockMask*, std::shared_ptr<AttentionPlan>, const HeldPlan*>;

// The value of an option that is either the backend's choice ("automatic") or off ("never").
template <class Mode>
Mode parse_automatic(std::string_view name, const std::string& text) {
  if (text == "automatic") return Mode::automatic;
  if (text == "never") return Mode::never;
  refuse(ErrorCode::invalid_argument,
         fmt::format("{}: expected automatic or never, got '{}'", name, text));
}

ScoreSpec score_of_parts(const std::vector<std::string>& names) {
  ScoreSpec score;
  for (const std::string& given : names) {
    bool is_known = false;
#define FDMA_SCORE_PART(name, meaning) \
  if (given == #name) score.name = is_known = true;
#include "fdma/formats/score_parts.def"
    if (!is_known) {
      refuse(ErrorCode::invalid_argument, fmt::format("score: no part is named '{}'", given));
    }
  }
  return score;
}

AttentionPlan make_attention_plan(const BlockMask& mask, std::optional<std::int64_t> batch,
                                  std::int64_t heads_q, std::optional<std::int64_t> heads_kv,
                                  std::int64_t head_dim, std::optional<std::int64_t> head_dim_v,
                                  const std::string& dtype,
                                  const std::optional<std::string>& out_dtype,
                                  const std::vector<std::string>& score, const std::string& backend,
                                  std::pair<int, int> tile, const std::string& columns,
                                  const std::string& split, const std::string& pack,
                                  std::int64_t num_workers, const std::string& form,
                                  const std::string& direction, int num_threads) {
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
  options.backend = backend == "auto" ? default_backend() : value_or_throw(parse_backend(backend));
  options.tile = {tile.first, tile.second};
  options.columns = value_or_throw(parse_column_mode(columns));
  options.split = parse_automatic<SplitMode>("split", split);
  options.pack = parse_automatic<PackMode>("pack", pack);
  options.num_workers = checked_count("num_workers", num_workers);
  options.form = value_or_throw(parse_plan_form(form));
  options.direction = value_or_throw(parse_direction(direction));
  options.num_threads = num_threads;
  const ScoreSpec parts = score_of_parts(score);
  const nb::gil_scoped_release released;
  return value_or_throw(make_plan(mask, shape, parts, options));
}

void check_rank(std::string_view name, const TensorView& view, int rank, const char* layout) {
  if (view.rank == rank) return;
  refuse(ErrorCode::shape_mismatch,
         fmt::format("{}: expected {} dimensions {}, got {}", name, rank, layout, view.rank));
}

// The shape of a call by its mask and tensors.
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

/// The arrays of a call: those that the caller gave, and later the outputs that were made.
struct CallArrays {
  InputArray q, k, v;
  std::vector<InputArray> of_score;
  CallScore score;
  InputArray q_lens, kv_lens, cu_seqlens;
  OutputArray out, lse;
  bool is_new_out = false, is_new_lse = false;
  AttentionTensors tensors;

  const Place& place() const { return q.place; }
};

void check_place(std::string_view name, const Place& place, const Place& expected) {
  if (place == expected) return;
  refuse(ErrorCode::invalid_argument,
         fmt::format("{}: expected an array on {}, where q is, got one on {}", name,
                     to_string(expected), to_string(place)));
}

// An output that the caller gave. It must be on the device of q and overlap no input.
OutputArray given_output(const char* name, nb::handle object, int rank, const char* layout,
                         const CallArrays& arrays) {
  OutputArray output = output_array(name, object);
  check_rank(name, output.view.view(), rank, layout);
  check_place(name, output.place, arrays.place());
  const TensorView view = output.view.view();
  check_apart(name, view, "q", arrays.tensors.q);
  check_apart(name, view, "k", arrays.tensors.kv.k);
  check_apart(name, view, "v", arrays.tensors.kv.v);
  for (const TensorView* tensor : arrays.score.tensors()) {
    if (tensor->data != nullptr) check_apart(name, view, "the score's tensors", *tensor);
  }
  return output;
}

CallArrays given_arrays(nb::handle q, nb::handle k, nb::handle v, nb::handle score,
                        const std::optional<nb::object>& out,
                        const std::optional<nb::object>& lse) {
  CallArrays arrays;
  AttentionTensors& tensors = arrays.tensors;
  arrays.q = input_array("q", q);
  arrays.k = input_array("k", k);
  arrays.v = input_array("v", v);
  tensors.q = arrays.q.view;
  tensors.kv = {KvLayout::contiguous, arrays.k.view, arrays.v.view};
  check_rank("q", tensors.q, 4, "[batch, q_len, heads_q, head_dim]");
  check_rank("k", tensors.kv.k, 4, "[batch, kv_len, heads_kv, head_dim]");
  check_rank("v", tensors.kv.v, 4, "[batch, kv_len, heads_kv, head_dim_v]");
  check_place("k", arrays.k.place, arrays.place());
  check_place("v", arrays.v.place, arrays.place());
  arrays.score = GivenScore(score).score([&](const char* name, nb::handle object) -> TensorView {
    arrays.of_score.push_back(input_array(name, object));
    const InputArray& array = arrays.of_score.back();
    check_place(name, array.place, arrays.place());
    return array.view;
  });
  if (out) {
    arrays.out = given_output("out", *out, 4, "[batch, q_len, heads_q, head_dim_v]", arrays);
    tensors.out = arrays.out.view;
  }
  if (lse) {
    arrays.lse = given_output("lse", *lse, 3, "[batch, heads_q, q_len]", arrays);
    tensors.lse = arrays.lse.view;
    if (out) check_apart("lse", tensors.lse.view(), "out", tensors.out.view());
  }
  return arrays;
}

/// The lengths that a call of a closed-form plan brings. An empty one means that of the plan.
struct CallLengths {
  std::optional<nb::object> q_lens, kv_lens, cu_seqlens;
};

void take_lengths(CallArrays& arrays, const CallLengths& lengths) {
  const auto take = [&](const char* name, const std::optional<nb::object>& given, InputArray& array,
                        TensorView& view) {
    if (!given) return;
    array = input_array(name, *given);
    check_place(name, array.place, arrays.place());
    view = array.view;
    if (arrays.out.object.is_valid()) {
      check_apart("out", arrays.tensors.out.view(), name, view);
    }
    if (arrays.lse.object.is_valid()) {
      check_apart("lse", arrays.tensors.lse.view(), name, view);
    }
  };
  take("q_lens", lengths.q_lens, arrays.q_lens, arrays.tensors.q_lens);
  take("kv_lens", lengths.kv_lens, arrays.kv_lens, arrays.tensors.kv_lens);
  take("cu_seqlens", lengths.cu_seqlens, arrays.cu_seqlens, arrays.tensors.cu_seqlens);
}

// Allocates the outputs that the caller did not give. If they are on a device, it must be the
// current one.
void make_outputs(CallArrays& arrays, const AttentionShape& shape, DType out_dtype,
                  bool return_lse) {
  const std::int64_t q_extent = arrays.tensors.q.extents[1];
  if (!arrays.out.object.is_valid()) {
    arrays.out =
        new_array("out", out_dtype, 4, {shape.batch, q_extent, shape.heads_q, shape.head_dim_v},
                  arrays.place());
    arrays.tensors.out = arrays.out.view;
    arrays.is_new_out = true;
  }
  if (!arrays.lse.object.is_valid() && return_lse) {
    arrays.lse = new_array("lse", DType::float32, 3, {shape.batch, shape.heads_q, q_extent, 1},
                           arrays.place());
    arrays.tensors.lse = arrays.lse.view;
    arrays.is_new_lse = true;
  }
}

nb::object results_of(const CallArrays& arrays, bool return_lse) {
  if (!return_lse) return arrays.out.object;
  return nb::make_tuple(arrays.out.object, arrays.lse.object);
}

AttentionPlan plan_for(const BlockMask& mask, const CallArrays& arrays, DType out_dtype) {
  const nb::gil_scoped_release released;
  PlanOptions options;
  options.backend = backend_for(arrays.place().device);
  return value_or_throw(
      make_plan(mask, shape_of(mask, arrays.tensors, out_dtype), arrays.score.spec(), options));
}

void refuse_place(const Place& got, const std::string& expected) {
  refuse(ErrorCode::invalid_argument,
         fmt::format("q: expected an array on {}, got one on {}", expected, to_string(got)));
}

// The plan of a mask, or a given plan, prepared for one call. Its destructor waits for the call.
std::unique_ptr<HeldPlan> prepared_for_call(const MaskOrPlan& mask, const CallArrays& arrays,
                                            DType out_dtype, Stream stream) {
  std::shared_ptr<const AttentionPlan> plan;
  if (const auto* const given = std::get_if<std::shared_ptr<AttentionPlan>>(&mask)) {
    plan = *given;
    const Device device = plan->backend.traits().device;
    if (device != arrays.place().device) {
      refuse_place(arrays.place(), fmt::format("{}, where plans for {} run",
                                               device == Device::cpu ? "the host" : "a GPU",
                                               to_string(plan->backend)));
    }
  } else {
    plan = std::make_shared<AttentionPlan>(
        plan_for(*std::get<const BlockMask*>(mask), arrays, out_dtype));
  }
  const nb::gil_scoped_release released;
  return std::make_unique<HeldPlan>(prepared(std::move(plan), stream));
}

nb::object run(CallArrays& arrays, const HeldPlan& plan, const AttentionOptions& options,
               Stream stream, DType out_dtype, bool return_lse) {
  const AttentionShape& shape = plan.plan().shape();
  make_outputs(arrays, shape, out_dtype, return_lse);
  {
    const nb::gil_scoped_release released;
    if (has_rows_past_lengths(shape, arrays.tensors)) {
      fill_unwritten(arrays.is_new_out ? &arrays.tensors.out : nullptr,
                     arrays.is_new_lse ? &arrays.tensors.lse : nullptr, stream);
    }
    plan.forward(arrays.tensors, stream, options);
  }
  return results_of(arrays, return_lse);
}

DType out_dtype_of(const MaskOrPlan& mask, const CallArrays& arrays) {
  if (arrays.out.object.is_valid()) return arrays.out.view.dtype;
  if (const auto* const plan = std::get_if<std::shared_ptr<AttentionPlan>>(&mask)) {
    return (*plan)->shape.out_dtype;
  }
  if (const auto* const held = std::get_if<const HeldPlan*>(&mask)) {
    return (*held)->plan().shape().out_dtype;
  }
  return arrays.tensors.q.dtype;
}

nb::object attention(nb::handle q, nb::handle k, nb::handle v, const MaskOrPlan& mask,
                     nb::handle score, std::optional<float> softmax_scale, nb::handle stream,
                     int num_threads, const std::optional<nb::object>& out,
                     const std::optional<nb::object>& lse, bool return_lse,
                     const std::optional<nb::object>& q_lens,
                     const std::optional<nb::object>& kv_lens,
                     const std::optional<nb::object>& cu_seqlens, bool waits) {
  if (softmax_scale && (!std::isfinite(*softmax_scale) || *softmax_scale == 0)) {
    refuse(ErrorCode::invalid_argument,
           fmt::format("softmax_scale: expected a finite number other than 0, got {}",
                       *softmax_scale));
  }
  if (num_threads < 0) {
    refuse(ErrorCode::invalid_argument,
           fmt::format("num_threads: expected 0 or more, got {}", num_threads));
  }
  if (lse && !return_lse) {
    refuse(ErrorCode::invalid_argument, "lse: expected None with return_lse=False");
  }
  CallArrays arrays = given_arrays(q, k, v, score, out, lse);
  take_lengths(arrays, {q_lens, kv_lens, cu_seqlens});
  const DType out_dtype = out_dtype_of(mask, arrays);
  AttentionOptions options;
  options.softmax_scale = softmax_scale.value_or(0);
  options.num_threads = num_threads;
  arrays.score.set(arrays.tensors, options);
  const CallStream call(arrays.place(), stream, q);
  const auto run_by = [&](const HeldPlan& plan) {
    return run(arrays, plan, options, call.stream(), out_dtype, return_lse);
  };
  nb::object results;
  if (const auto* const plan = std::get_if<const HeldPlan*>(&mask)) {
    const Place place = (*plan)->place();
    if (!(place == arrays.place()))
      refuse_place(arrays.place(), to_string(place) + ", where the plan is");
    results = run_by(**plan);
  } else {
    auto plan_of_call = prepared_for_call(mask, arrays, out_dtype, call.stream());
    results = run_by(*plan_of_call);
    const nb::gil_scoped_release released;
    plan_of_call.reset();
  }
  if (waits && arrays.place().device == Device::cuda) {
    const nb::gil_scoped_release released;
    value_or_throw(wait_for(call.stream()));
  }
  return results;
}

nb::dict counts_of(const AttentionPlan& plan) {
  nb::dict result;
  result["full_tiles"] = plan.counts.full_tiles;
  result["formula_tiles"] = plan.counts.formula_tiles;
  result["bitmap_tiles"] = plan.counts.bitmap_tiles;
  result["row_tiles"] = plan.counts.row_tiles;
  result["column_tiles"] = plan.counts.column_tiles;
  result["column_entries"] = plan.counts.column_entries;
  result["gather_chunks"] = plan.counts.gather_chunks;
  result["gather_entries"] = plan.counts.gather_entries;
  result["moved_keys"] = plan.counts.moved_keys;
  result["empty_items"] = plan.counts.empty_items;
  return result;
}

}  // namespace

void bind_attention(nb::module_& module) {
  nb::class_<AttentionPlan>(
      module, "AttentionPlan",
      "What will run for a mask and the shapes of the tensors. make_plan() makes\n"
      "it.")
      .def_prop_ro(
          "backend", [](const AttentionPlan& plan) { return std::string(to_string(plan.backend)); },
          "The name of the backend that runs the plan.")
      .def_prop_ro(
          "tile",
          [](const AttentionPlan& plan) {
            return std::pair(plan.tile.block_q, plan.tile.block_kv);
          },
          "The sides (queries, keys) of a tile.")
      .def_prop_ro(
          "heads_per_tile", [](const AttentionPlan& plan) { return plan.heads_per_tile; },
          "The number of query heads that share a tile. Such a tile has tile[0] rows\n"
          "for each of them.")
      .def_prop_ro("num_work_tiles", &AttentionPlan::num_work_tiles, "The number of work tiles.")
      .def_prop_ro(
          "num_split_rows",
          [](const AttentionPlan& plan) {
            return std::visit(
                Overloads{[](const SegmentPlan& form) { return form.split_rows.size(); },
                          [](const ClosedFormPlan&) { return std::size_t{0}; },
                          [](const KvWorklist&) { return std::size_t{0}; }},
                plan.form);
          },
          "The number of query tiles whose keys are split over several work tiles.")
      .def_prop_ro(
          "form",
          [](const AttentionPlan& plan) { return std::string(to_string(plan.planned_form())); },
          "How the plan holds the mask: 'segments' or 'parametric'.")
      .def_prop_ro(
          "direction",
          [](const AttentionPlan& plan) { return std::string(to_string(plan.direction)); },
          "'forward' or 'backward'.")
      .def_prop_ro("nbytes", &AttentionPlan::size_bytes, "Bytes that the plan holds.")
      .def_prop_ro("counts", &counts_of,
                   nb::for_getter(nb::sig("def counts(self) -> dict[str, int]")),
                   "The numbers of tiles of each kind and of index tiles, over all work tiles.")
      .def_prop_ro(
          "choices", [](const AttentionPlan& plan) { return to_text(plan.report); },
          "What the planner chose, what else it considered, and the predicted costs.")
      .def("__str__", [](const AttentionPlan& plan) { return to_text(plan); });
  module.def(
      "make_plan", &make_attention_plan, nb::arg("mask"), nb::kw_only(),
      nb::arg("batch") = nb::none(), nb::arg("heads_q"), nb::arg("heads_kv") = nb::none(),
      nb::arg("head_dim"), nb::arg("head_dim_v") = nb::none(), nb::arg("dtype") = "float32",
      nb::arg("out_dtype") = nb::none(), nb::arg("score") = std::vector<std::string>{},
      nb::arg("backend") = "cpu", nb::arg("tile") = std::pair(0, 0),
      nb::arg("columns") = "automatic", nb::arg("split") = "automatic",
      nb::arg("pack") = "automatic", nb::arg("num_workers") = 0, nb::arg("form") = "segments",
      nb::arg("direction") = "forward", nb::arg("num_threads") = 0,
      nb::sig(
          "def make_plan(mask: BlockMask, *, batch: int | None = None, heads_q: int, heads_kv: int "
          "| None = None, head_dim: int, head_dim_v: int | None = None, dtype: _DType = 'float32', "
          "out_dtype: _DType | None = None, score: Sequence[_ScorePart] = (), "
          "backend: Literal['cpu', "
          "'sm90', 'auto'] = 'cpu', tile: tuple[int, int] = (0, 0), columns: Literal['automatic', "
          "'scan', 'gather', 'reorder'] = 'automatic', split: Literal['automatic', 'never'] = "
          "'automatic', pack: Literal['automatic', 'never'] = 'automatic', num_workers: int = 0, "
          "form: Literal['segments', 'parametric'] = 'segments', direction: Literal['forward', "
          "'backward'] = 'forward', num_threads: int = 0) -> AttentionPlan"),
      "Returns the plan of a mask for the shapes of q, k and v. Any number of calls\n"
      "may use it.\n\n"
      "form='parametric' keeps the mask in closed form, and each call may then\n"
      "bring its own lengths and documents. direction='backward' makes a plan for\n"
      "attention_backward_call. tile is (queries, keys); (0, 0) leaves the choice\n"
      "to the backend. num_workers counts the workers that rows are split for; 0\n"
      "means 132 on a GPU. num_threads counts the threads of the CPU that make the\n"
      "plan (0 means all) and does not change it. score names the parts that each\n"
      "call brings. ValueError is raised for counts\n"
      "of heads or batch elements that do not fit the mask, NotImplementedError for\n"
      "a plan that the backend does not run.");
  module.def("attention", &attention, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("mask"),
             nb::kw_only(), nb::arg("score").none() = nb::none(),
             nb::arg("softmax_scale") = nb::none(), nb::arg("stream").none() = nb::none(),
             nb::arg("num_threads") = 0, nb::arg("out") = nb::none(), nb::arg("lse") = nb::none(),
             nb::arg("return_lse") = true, nb::arg("q_lens") = nb::none(),
             nb::arg("kv_lens") = nb::none(), nb::arg("cu_seqlens") = nb::none(),
             nb::arg("waits") = false,
             "Computes softmax(score of softmax_scale * q k^T, masked) v and the\n"
             "log-sum-exp of each row.\n\n"
             "q is [batch, q_len, heads_q, head_dim], k [batch, kv_len, heads_kv,\n"
             "head_dim] and v [batch, kv_len, heads_kv, head_dim_v], in float32, float16\n"
             "or bfloat16. score is a tuple of the fields of ScoreArguments. out is [batch,\n"
             "q_len, heads_q, head_dim_v], and lse is float32 [batch, heads_q, q_len],\n"
             "-inf for a row without keys. softmax_scale defaults to 1 / sqrt(head_dim).\n"
             "mask is a BlockMask, an AttentionPlan or a PreparedPlan. The int32 arrays\n"
             "q_lens and kv_lens [batch], and cu_seqlens [documents + 1] or [batch,\n"
             "documents + 1], lie on the device of q and replace the lengths and documents\n"
             "of a closed-form plan. On a GPU a call by a PreparedPlan returns after the\n"
             "launch; with waits=True it returns when the results are there.");
  module.def("cpu_target", &cpu_target,
             "Returns the name of the instruction set with which the CPU backend runs\n"
             "here.");
  module.def(
      "available_backends",
      [] {
        std::vector<std::string> names;
        for (const Backend backend : available_backends()) names.emplace_back(to_string(backend));
        return names;
      },
      "Returns the names of the backends that can run here.");
  bind_prepared_plan(module);
}

}  // namespace fdma::python
