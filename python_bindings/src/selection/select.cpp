// zoh_scores, its gradients and IncrementalTopk. A selection that is not incremental is
// compile("M & topk(@scores, w)", ..).
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>

#include <algorithm>
#include <array>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arrays/array_view.hpp"
#include "arrays/call_stream.hpp"
#include "arrays/python_error.hpp"
#include "bindings.hpp"
#include "fdma/kernels/zoh_backward_device.hpp"
#include "fdma/kernels/zoh_device.hpp"
#include "fdma/select/incremental_topk.hpp"
#include "fdma/select/zoh_backward.hpp"
#include "fdma/select/zoh_scores.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

void check_same_place(std::string_view name, const Place& got, const Place& values) {
  if (got == values) return;
  refuse(ErrorCode::invalid_argument,
         fmt::format("{}: expected an array on {}, where values are, got one on {}", name,
                     to_string(values), to_string(got)));
}

ZohMode mode_of(const std::string& mode) {
  const std::optional<ZohMode> wanted = parse_zoh_mode(mode);
  if (!wanted) {
    refuse(ErrorCode::invalid_argument, fmt::format("mode: expected exp or log, got '{}'", mode));
  }
  return *wanted;
}

nb::object scores_of(nb::handle values, nb::handle dt_proj, nb::handle a_coef,
                     const std::string& mode, int num_threads, const std::optional<nb::object>& out,
                     nb::handle stream) {
  const ZohMode wanted = mode_of(mode);
  const InputArray inputs[] = {input_array("values", values), input_array("dt_proj", dt_proj),
                               input_array("a_coef", a_coef)};
  const Place place = inputs[0].place;
  check_same_place("dt_proj", inputs[1].place, place);
  check_same_place("a_coef", inputs[2].place, place);
  const bool is_on_host = place.device == Device::cpu;
  const CallStream call(place, stream, values);
  const ZohShape shape = value_or_throw(zoh_shape(inputs[0].view, inputs[1].view, inputs[2].view));
  const std::array<std::int64_t, kMaxRank> extents{shape.num_batches, shape.num_heads_kv,
                                                   shape.kv_len, 1};
  const OutputArray scores =
      out ? output_array("out", *out) : new_array("scores", DType::float32, 3, extents, place);
  check_same_place("out", scores.place, place);
  check_apart("out", scores.view.view(), "values", inputs[0].view);
  {
    const nb::gil_scoped_release released;
    value_or_throw(is_on_host ? zoh_scores(inputs[0].view, inputs[1].view, inputs[2].view,
                                           scores.view, {wanted, num_threads})
                              : zoh_scores(inputs[0].view, inputs[1].view, inputs[2].view,
                                           scores.view, wanted, call.stream()));
  }
  return scores.object;
}

// The array that receives the gradient of `input`. `object` is that array, True for a new array of
// the type of `input`, or False for none.
OutputArray gradient_of(std::string_view name, nb::handle object, const InputArray& input) {
  if (!nb::isinstance<nb::bool_>(object)) {
    OutputArray array = output_array(name, object);
    check_same_place(name, array.place, input.place);
    return array;
  }
  if (!nb::cast<bool>(object)) {
    OutputArray none;
    none.object = nb::none();
    return none;
  }
  return new_array(name, input.view.dtype, input.view.rank, input.view.extents, input.place);
}

nb::tuple gradients_of(nb::handle values, nb::handle dt_proj, nb::handle a_coef, nb::handle dscores,
                       nb::handle dvalues, nb::handle ddt_proj, nb::handle da_coef,
                       nb::handle other_dvalues, const std::string& mode, int num_threads,
                       nb::handle workspace, nb::handle stream) {
  const ZohMode wanted = mode_of(mode);
  const InputArray inputs[] = {input_array("values", values), input_array("dt_proj", dt_proj),
                               input_array("a_coef", a_coef), input_array("dscores", dscores)};
  constexpr std::string_view kNames[] = {"values", "dt_proj", "a_coef", "dscores"};
  const Place place = inputs[0].place;
  for (std::size_t i = 1; i < std::size(inputs); ++i) {
    check_same_place(kNames[i], inputs[i].place, place);
  }
  const bool is_on_host = place.device == Device::cpu;
  const CallStream call(place, stream, values);
  const OutputArray gradients[] = {gradient_of("dvalues", dvalues, inputs[0]),
                                   gradient_of("ddt_proj", ddt_proj, inputs[1]),
                                   gradient_of("da_coef", da_coef, inputs[2])};
  InputArray other;
  if (!other_dvalues.is_none()) {
    other = input_array("other_dvalues", other_dvalues);
    check_same_place("other_dvalues", other.place, place);
  }
  constexpr std::string_view kGradientNames[] = {"dvalues", "ddt_proj", "da_coef"};
  for (std::size_t out = 0; out < std::size(gradients); ++out) {
    if (gradients[out].view.data == nullptr) continue;
    for (std::size_t in = 0; in < std::size(inputs); ++in) {
      check_apart(kGradientNames[out], gradients[out].view.view(), kNames[in], inputs[in].view);
    }
  }
  const ZohBackwardTensors tensors{inputs[0].view,    inputs[1].view,    inputs[2].view,
                                   inputs[3].view,    gradients[0].view, gradients[1].view,
                                   gradients[2].view, other.view};
  const ZohShape shape = value_or_throw(zoh_backward_shape(tensors));
  OutputArray memory;
  if (!is_on_host) {
    const std::int64_t bytes = zoh_backward_workspace_bytes(shape);
    const std::array<std::int64_t, kMaxRank> extents{bytes, 1, 1, 1};
    memory = workspace.is_none() ? new_array("workspace", DType::uint8, 1, extents, place)
                                 : output_array("workspace", workspace);
    check_same_place("workspace", memory.place, place);
    if (!memory.view.view().is_contiguous() ||
        memory.view.view().num_elements() * size_bytes(memory.view.dtype) < bytes) {
      refuse(ErrorCode::invalid_argument,
             fmt::format("workspace: expected {} contiguous bytes (zoh_backward_workspace_nbytes)",
                         bytes));
    }
  }
  {
    const nb::gil_scoped_release released;
    value_or_throw(is_on_host
                       ? zoh_scores_backward(tensors, {wanted, num_threads})
                       : zoh_scores_backward(tensors, wanted, memory.view.data, call.stream()));
  }
  return nb::make_tuple(gradients[0].object, gradients[1].object, gradients[2].object);
}

// The elements of a host array in row-major order. Throws unless it has this type and rank.
template <class T>
std::vector<T> elements(std::string_view name, nb::handle object, DType dtype, int rank,
                        const char* expected) {
  const InputArray array = input_array(name, object);
  check_on_host(name, array.place);
  const TensorView& view = array.view;
  if (view.dtype != dtype || view.rank != rank || (rank == 2 && view.extents[1] != 2)) {
    refuse(ErrorCode::shape_mismatch, fmt::format("{}: expected {}, got {} of {} dimensions", name,
                                                  expected, to_string(view.dtype), view.rank));
  }
  std::vector<T> result;
  result.reserve(static_cast<std::size_t>(view.num_elements()));
  const auto* data = static_cast<const T*>(view.data);
  for (std::int64_t i = 0; i < view.extents[0]; ++i) {
    for (std::int64_t j = 0; j < view.extents[1]; ++j) {
      result.push_back(data[i * view.strides[0] + j * view.strides[1]]);
    }
  }
  return result;
}

void append(IncrementalTopk& topk, nb::handle scores, const std::optional<nb::object>& among,
            std::optional<std::int64_t> num_queries) {
  const std::vector<float> values =
      elements<float>("scores", scores, DType::float32, 1, "float32 [keys]");
  const auto count = static_cast<std::int64_t>(values.size());
  std::vector<Interval> queries(values.size());
  if (among) {
    const std::vector<std::int32_t> bounds =
        elements<std::int32_t>("among", *among, DType::int32, 2, "int32 [keys, 2]");
    if (bounds.size() != 2 * values.size()) {
      refuse(ErrorCode::shape_mismatch,
             fmt::format("among: expected {} intervals, one per score, got {}", count,
                         bounds.size() / 2));
    }
    for (std::size_t i = 0; i < queries.size(); ++i)
      queries[i] = {bounds[2 * i], bounds[2 * i + 1]};
  } else if (!num_queries || *num_queries == count) {
    return value_or_throw(topk.append_causal(values));
  } else {
    refuse(ErrorCode::invalid_argument,
           fmt::format("num_queries: expected one query per key, {}, where among is not given, got "
                       "{}; say by among which queries see each key",
                       count, *num_queries));
  }
  value_or_throw(topk.append(values, queries, num_queries.value_or(count)));
}

// A new array that holds `values`.
template <class T>
nb::object array_of(std::span<const T> values, DType dtype, int rank,
                    const std::array<std::int64_t, kMaxRank>& extents) {
  const OutputArray array = new_array("result", dtype, rank, extents);
  std::copy(values.begin(), values.end(), static_cast<T*>(array.view.data));
  return array.object;
}

nb::object keys_array(std::span<const std::int32_t> keys) {
  return array_of(keys, DType::int32, 1, {static_cast<std::int64_t>(keys.size()), 1, 1, 1});
}

// The queries of every key, [kv_len, 2]. A key without queries has {0, 0}.
nb::object intervals_of(const IncrementalTopk& topk) {
  std::vector<std::int32_t> bounds;
  bounds.reserve(static_cast<std::size_t>(2 * topk.kv_len()));
  for (std::int64_t key = 0; key < topk.kv_len(); ++key) {
    const Interval queries = topk.interval_of(key);
    bounds.push_back(queries.begin);
    bounds.push_back(queries.end);
  }
  return array_of<std::int32_t>(bounds, DType::int32, 2, {topk.kv_len(), 2, 1, 1});
}

nb::object intervals_array(const std::vector<Interval>& intervals) {
  std::vector<std::int32_t> bounds;
  bounds.reserve(2 * intervals.size());
  for (const Interval& each : intervals) bounds.insert(bounds.end(), {each.begin, each.end});
  const auto count = static_cast<std::int64_t>(intervals.size());
  return array_of<std::int32_t>(bounds, DType::int32, 2, {count, 2, 1, 1});
}

std::vector<Interval> intervals_in(std::string_view name, nb::handle object) {
  const std::vector<std::int32_t> bounds =
      elements<std::int32_t>(name, object, DType::int32, 2, "int32 [keys, 2]");
  std::vector<Interval> intervals(bounds.size() / 2);
  for (std::size_t i = 0; i < intervals.size(); ++i) {
    intervals[i] = {bounds[2 * i], bounds[2 * i + 1]};
  }
  return intervals;
}

nb::object ranks_array(const std::vector<std::uint64_t>& ranks) {
  return array_of<std::uint64_t>(ranks, DType::uint64, 1,
                                 {static_cast<std::int64_t>(ranks.size()), 1, 1, 1});
}

nb::dict state_of(const IncrementalTopk& topk) {
  const IncrementalTopk::State state = topk.state();
  std::vector<std::uint64_t> ranks;
  std::vector<Interval> queries;
  for (const IncrementalTopk::Waiting& each : state.waiting) {
    ranks.push_back(each.rank);
    queries.push_back(each.queries);
  }
  nb::dict result;
  result["w"] = state.w;
  result["q_len"] = state.q_len;
  result["group_end"] = state.group_end;
  result["last_key"] = state.last_key;
  result["last"] = nb::make_tuple(state.last.begin, state.last.end);
  result["kept"] = intervals_array(state.kept);
  result["live"] = ranks_array(state.heap);
  result["waiting"] = ranks_array(ranks);
  result["waiting_queries"] = intervals_array(queries);
  result["dropped"] = keys_array(state.dropped);
  return result;
}

IncrementalTopk topk_of(std::int64_t w, std::int64_t q_len, std::int32_t group_end,
                        std::int64_t last_key, std::pair<std::int32_t, std::int32_t> last,
                        nb::handle kept, nb::handle live, nb::handle waiting,
                        nb::handle waiting_queries, nb::handle dropped) {
  const auto ranks_in = [](const char* name, nb::handle object) {
    return elements<std::uint64_t>(name, object, DType::uint64, 1, "uint64 [keys]");
  };
  IncrementalTopk::State state;
  state.w = w;
  state.q_len = q_len;
  state.group_end = group_end;
  state.last_key = last_key;
  state.last = {last.first, last.second};
  state.kept = intervals_in("kept", kept);
  state.heap = ranks_in("live", live);
  state.dropped = elements<std::int32_t>("dropped", dropped, DType::int32, 1, "int32 [keys]");
  const std::vector<std::uint64_t> ranks = ranks_in("waiting", waiting);
  const std::vector<Interval> queries = intervals_in("waiting_queries", waiting_queries);
  if (queries.size() != ranks.size()) {
    refuse(ErrorCode::shape_mismatch, fmt::format("waiting_queries: expected {} intervals, got {}",
                                                  ranks.size(), queries.size()));
  }
  for (std::size_t i = 0; i < ranks.size(); ++i) state.waiting.push_back({ranks[i], queries[i]});
  return value_or_throw(IncrementalTopk::restore(std::move(state)));
}

}  // namespace

void bind_select(nb::module_& module) {
  module.def("zoh_scores", &scores_of, nb::arg("values"), nb::arg("dt_proj"), nb::arg("a_coef"),
             nb::kw_only(), nb::arg("mode") = "exp", nb::arg("num_threads") = 0,
             nb::arg("out") = nb::none(), nb::arg("stream").none() = nb::none(),
             "Returns the scores of keys, float32 [batch, heads_kv, kv_len].\n\n"
             "values is [batch, kv_len, heads_kv, head_dim] in float32, float16 or\n"
             "bfloat16. dt_proj is [heads_kv, heads_kv * head_dim] or [heads_kv,\n"
             "head_dim], and a_coef is [heads_kv]. The score is exp(A softplus(dt)), or A\n"
             "softplus(dt) with mode='log'. num_threads counts threads of the CPU; 0 means\n"
             "all.");
  module.def(
      "zoh_scores_backward", &gradients_of, nb::arg("values"), nb::arg("dt_proj"),
      nb::arg("a_coef"), nb::arg("dscores"), nb::kw_only(), nb::arg("dvalues") = true,
      nb::arg("ddt_proj") = true, nb::arg("da_coef") = true,
      nb::arg("other_dvalues").none() = nb::none(), nb::arg("mode") = "exp",
      nb::arg("num_threads") = 0, nb::arg("workspace").none() = nb::none(),
      nb::arg("stream").none() = nb::none(),
      nb::sig("def zoh_scores_backward(values: Array, dt_proj: Array, a_coef: Array, dscores: "
              "Array, *, dvalues: Array | bool = True, ddt_proj: Array | bool = True, da_coef: "
              "Array | bool = True, other_dvalues: Array | None = None, mode: Literal['exp', "
              "'log'] = 'exp', num_threads: int = 0, workspace: Array | None = None, stream: "
              "_Stream | None = None) -> tuple[Array | None, Array | None, Array | None]"),
      "Returns the gradients (dvalues, ddt_proj, da_coef) of zoh_scores.\n\n"
      "dscores is the gradient of the scores, float32 [batch, heads_kv, kv_len].\n"
      "Each gradient has the shape of its input. It is written into the array that\n"
      "is given, which has the type of the input or float32; True asks for a new\n"
      "array, and False for no gradient, which is returned as None. other_dvalues\n"
      "is another gradient of values that is added to dvalues; it may be dvalues\n"
      "itself. For CUDA tensors workspace has zoh_backward_workspace_nbytes bytes;\n"
      "without it the call waits for the GPU.");
  module.def(
      "zoh_backward_workspace_nbytes",
      [](std::int64_t batch, std::int64_t kv_len, std::int64_t heads_kv, std::int64_t head_dim,
         bool wide) {
        return zoh_backward_workspace_bytes({batch, kv_len, heads_kv, head_dim, !wide});
      },
      nb::arg("batch"), nb::arg("kv_len"), nb::arg("heads_kv"), nb::arg("head_dim"),
      nb::arg("wide"),
      "Returns the bytes of workspace that zoh_scores_backward needs on a GPU.\n\n"
      "wide says that dt_proj is [heads_kv, heads_kv * head_dim].");
  module.attr("OPEN_END") = kOpenEnd;
  nb::class_<IncrementalTopk>(
      module, "IncrementalTopk",
      "The top-k selection of one row of scores, kept up to date while keys and\n"
      "queries are appended.")
      .def(
          "__init__",
          [](IncrementalTopk* self, std::int64_t w) {
            new (self) IncrementalTopk(value_or_throw(IncrementalTopk::make(w)));
          },
          nb::arg("w"))
      .def("append", &append, nb::arg("scores"), nb::arg("among") = nb::none(),
           nb::arg("num_queries") = nb::none(),
           nb::sig("def append(self, scores: Array, among: Array | None = None, num_queries: int | "
                   "None = None) -> None"),
           "Appends keys with their scores, float32 [keys], and queries.\n\n"
           "Without among there is one query for each key, and key i is visible from the\n"
           "i-th of these queries on (causal). among is int32 [keys, 2], the half-open\n"
           "interval of queries that see each key; OPEN_END stands for an end that is\n"
           "not yet known. ValueError is raised for a NaN score and for a key that an\n"
           "earlier query would see.")
      .def("end_group", &IncrementalTopk::end_group,
           "Ends a document: no later query sees the keys so far.")
      .def(
          "live_keys", [](const IncrementalTopk& topk) { return keys_array(topk.live_keys()); },
          nb::sig("def live_keys(self) -> NewArray"),
          "Returns the keys that later queries may keep, ascending, as int32. A cache\n"
          "needs no others.")
      .def(
          "dropped_keys",
          [](const IncrementalTopk& topk) { return keys_array(topk.dropped_keys()); },
          nb::sig("def dropped_keys(self) -> NewArray"),
          "Returns the keys that the last append or end_group evicted, as int32.")
      .def("intervals", &intervals_of, nb::sig("def intervals(self) -> NewArray"),
           "Returns the half-open interval of the queries so far that keep each key,\n"
           "int32 [kv_len, 2].\n\n"
           "The interval is (0, 0) for a key that no query keeps.")
      .def("state", &state_of, nb::sig("def state(self) -> dict[str, Any]"),
           "Returns the whole state as a dict of the arguments of `restore`.")
      .def_static("restore", &topk_of, nb::kw_only(), nb::arg("w"), nb::arg("q_len"),
                  nb::arg("group_end"), nb::arg("last_key"), nb::arg("last"), nb::arg("kept"),
                  nb::arg("live"), nb::arg("waiting"), nb::arg("waiting_queries"),
                  nb::arg("dropped"),
                  nb::sig("def restore(*, w: int, q_len: int, group_end: int, last_key: int, last: "
                          "tuple[int, int], kept: Array, live: Array, waiting: Array, "
                          "waiting_queries: Array, dropped: Array) -> IncrementalTopk"),
                  "Returns a selection that continues from a state.\n\n"
                  "ValueError is raised for a state that no calls lead to.")
      .def_prop_ro("w", &IncrementalTopk::w, "The number of keys that each query keeps at most.")
      .def_prop_ro("q_len", &IncrementalTopk::q_len, "The number of queries so far.")
      .def_prop_ro("kv_len", &IncrementalTopk::kv_len, "The number of keys so far.")
      .def_prop_ro("num_live_keys", &IncrementalTopk::num_live_keys,
                   "The number of keys that later queries may keep.")
      .def_prop_ro("nbytes", &IncrementalTopk::size_bytes, "Bytes that the selection holds.");
}

}  // namespace fdma::python
