// DynamicMaskAttention: scores, selection and attention in one call, prepared for a shape. The file
// is long because it has the signatures and docstrings of both the forward and the backward call.
#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <array>
#include <cmath>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "arrays/array_view.hpp"
#include "arrays/call_stream.hpp"
#include "arrays/python_error.hpp"
#include "arrays/unwritten_rows.hpp"
#include "attention/workspaces.hpp"
#include "bindings.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/served_pairs.hpp"
#include "fdma/kernels/device_topk.hpp"
#include "fdma/kernels/dynamic_mask_attention.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

using Lengths = std::variant<std::int64_t, std::vector<std::int64_t>>;

/// A DynamicMaskAttention as Python holds it. On a GPU it comes with a status word.
class HeldAttention {
 public:
  HeldAttention(DynamicMaskAttention attention, DeviceMemory status)
      : attention_(std::move(attention)), status_(std::move(status)) {}

  const DynamicMaskAttention& attention() const { return attention_; }
  bool is_on_device() const { return attention_.device() >= 0; }
  Place place() const {
    return is_on_device() ? Place{Device::cuda, attention_.device()} : Place{};
  }
  /// Null on the host.
  std::uint32_t* status() const { return static_cast<std::uint32_t*>(status_.data()); }
  const WorkspaceUser& user() const { return user_; }

 private:
  DynamicMaskAttention attention_;
  DeviceMemory status_;
  WorkspaceUser user_;
};

std::vector<std::int64_t> lengths_of(const Lengths& lengths) {
  if (const auto* const one = std::get_if<std::int64_t>(&lengths)) return {*one};
  return std::get<std::vector<std::int64_t>>(lengths);
}

// Sets the mask M of each (batch element, KV head) from a mask with 1 or heads_kv heads.
void set_among(const BlockMask& among, DynamicMaskSpec& spec) {
  const AttentionShape& shape = spec.shape;
  const MaskShape& mask = among.shape;
  if ((mask.num_batches != 1 && mask.num_batches != shape.batch) ||
      (mask.num_heads != 1 && mask.num_heads != shape.heads_kv)) {
    refuse(ErrorCode::shape_mismatch,
           fmt::format("among: a mask of {} x {} (batch x heads) serves no {} x {} rows (batch x "
                       "heads_kv)",
                       mask.num_batches, mask.num_heads, shape.batch, shape.heads_kv));
  }
  value_or_throw(check_serves(among, shape.batch, shape.heads_kv, "among: it", "k has"));
  value_or_throw(check_serves(among, shape.batch, shape.heads_q, "among: it", "q has"));
  for (std::int64_t g = 0; g < among.num_groups(); ++g) {
    spec.masks.push_back(columns_from_segment(segment_of_group(among, g, among.block)));
  }
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads_kv; ++h) {
      spec.mask_of.push_back(
          among.group(mask.num_batches == 1 ? 0 : b, mask.num_heads == 1 ? 0 : h));
    }
  }
}

SelectionReading parse_reading(const std::string& text) {
  for (const auto reading : {SelectionReading::automatic, SelectionReading::gather,
                             SelectionReading::scan, SelectionReading::all}) {
    if (to_string(reading) == text) return reading;
  }
  refuse(ErrorCode::invalid_argument,
         fmt::format("reading: expected automatic, gather, scan or all, got '{}'", text));
}

DynamicMaskStage parse_stage(const std::string& text) {
  constexpr std::array<const char*, 4> kNames{"scores", "selection", "lists", "attention"};
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (text == kNames[i]) return static_cast<DynamicMaskStage>(i);
  }
  refuse(ErrorCode::invalid_argument,
         fmt::format("stages: expected scores, selection, lists or attention, got '{}'", text));
}

HeldAttention make_attention(std::int64_t keep_window_size, const BlockMask* among,
                             const std::optional<Lengths>& q_len,
                             const std::optional<Lengths>& kv_len,
                             std::optional<std::int64_t> batch, std::int64_t heads_q,
                             std::optional<std::int64_t> heads_kv, std::int64_t head_dim,
                             std::optional<std::int64_t> head_dim_v, const std::string& dtype,
                             const std::optional<std::string>& out_dtype, const std::string& bias,
                             bool drop_zero_scores, const std::string& backend,
                             const std::string& reading, bool gradients, std::optional<int> device,
                             nb::handle stream) {
  DynamicMaskSpec spec;
  spec.has_gradients = gradients;
  AttentionShape& shape = spec.shape;
  if ((among != nullptr) == (q_len || kv_len)) {
    refuse(ErrorCode::invalid_argument,
           "among: expected either a mask, which has its lengths, or q_len and kv_len");
  }
  if (among == nullptr) {
    shape.q_lens = lengths_of(q_len ? *q_len : *kv_len);
    shape.kv_lens = lengths_of(kv_len ? *kv_len : *q_len);
  } else {
    shape.q_lens = among->shape.q_lens;
    shape.kv_lens = among->shape.kv_lens;
  }
  const auto num_lengths =
      static_cast<std::int64_t>(std::max(shape.q_lens.size(), shape.kv_lens.size()));
  shape.batch = batch.value_or(among != nullptr ? among->shape.num_batches : num_lengths);
  shape.heads_q = checked_count("heads_q", heads_q);
  shape.heads_kv = checked_count("heads_kv", heads_kv.value_or(heads_q));
  shape.head_dim = checked_count("head_dim", head_dim);
  shape.head_dim_v = checked_count("head_dim_v", head_dim_v.value_or(head_dim));
  shape.q_dtype = shape.k_dtype = shape.v_dtype = parse_dtype("dtype", dtype);
  shape.out_dtype = out_dtype ? parse_dtype("out_dtype", *out_dtype) : shape.q_dtype;
  value_or_throw(validate(shape));
  spec.w = keep_window_size;
  spec.bias = value_or_throw(parse_score_bias(bias));
  spec.drops_zero_scores = drop_zero_scores;
  spec.backend = backend == "auto" ? default_backend() : value_or_throw(parse_backend(backend));
  spec.reading = parse_reading(reading);
  Place place{spec.backend.traits().device};
  if (place.device == Device::cuda) {
    value_or_throw(check_backend(spec.backend));
    place.index = device ? *device : value_or_throw(current_device());
  }
  const CallStream call(place, stream);
  const Stream chosen = call.stream();
  const nb::gil_scoped_release released;
  if (among != nullptr) set_among(*among, spec);
  DynamicMaskAttention made = value_or_throw(DynamicMaskAttention::make(std::move(spec), chosen));
  DeviceMemory status;
  if (made.device() >= 0) {
    status = value_or_throw(DeviceMemory::allocate(sizeof(std::uint32_t)));
    value_or_throw(fill_with_zeros(status.data(), sizeof(std::uint32_t), chosen));
    value_or_throw(wait_for(chosen));
  }
  return {std::move(made), std::move(status)};
}

/// The arrays of a call. Each must be on the device of the attention object.
class CallArrays {
 public:
  explicit CallArrays(const Place& place) : place_(place) {}

  TensorView input(const char* name, nb::handle object) {
    inputs_.push_back(input_array(name, object));
    check_place(name, inputs_.back().place);
    read_.emplace_back(name, inputs_.back().view);
    return inputs_.back().view;
  }
  TensorView input_or_none(const char* name, nb::handle object) {
    return object.is_none() ? TensorView{} : input(name, object);
  }
  // An output that is written only if the caller gives memory for it.
  MutableTensorView given(const char* name, nb::handle object) {
    if (object.is_none()) return {};
    return output(name, nb::borrow(object), DType::float32, 0, {}).view;
  }
  // The array that the caller gave as `object`, or a new one.
  OutputArray output(const char* name, const std::optional<nb::object>& object, DType dtype,
                     int rank, const std::array<std::int64_t, kMaxRank>& extents) {
    if (!object) return new_array(name, dtype, rank, extents, place_);
    OutputArray array = output_array(name, *object);
    check_place(name, array.place);
    for (const auto& [read, view] : read_) check_apart(name, array.view.view(), read, view);
    read_.emplace_back(name, array.view.view());
    return array;
  }

 private:
  void check_place(const char* name, const Place& got) const {
    if (got == place_) return;
    refuse(ErrorCode::invalid_argument,
           fmt::format("{}: expected an array on {}, where this was made for, got one on {}", name,
                       to_string(place_), to_string(got)));
  }

  Place place_;
  std::vector<InputArray> inputs_;
  std::vector<std::pair<std::string, TensorView>> read_;  // no output may overlap these
};

void check_4d(const char* name, const TensorView& view) {
  if (view.rank == 4) return;
  refuse(ErrorCode::shape_mismatch,
         fmt::format("{}: expected 4 dimensions [batch, len, heads, head_dim], got {}", name,
                     view.rank));
}

// Fills the rows past an element's length in outputs that are new.
void fill_unwritten_rows(const HeldAttention& held, DynamicMaskTensors& tensors, bool is_new_out,
                         bool is_new_lse, Stream stream) {
  AttentionTensors rows{};
  rows.q = tensors.q;
  if (!has_rows_past_lengths(held.attention().spec().shape, rows)) return;
  fill_unwritten(is_new_out ? &tensors.out : nullptr, is_new_lse ? &tensors.lse : nullptr, stream);
}

nb::tuple run(const HeldAttention& held, nb::handle q, nb::handle k, nb::handle v,
              const std::optional<nb::object>& dt_proj, const std::optional<nb::object>& a_coef,
              const std::optional<nb::object>& scores, std::optional<float> softmax_scale,
              nb::handle stream, int num_threads, const std::optional<nb::object>& out,
              const std::optional<nb::object>& lse, bool return_lse, bool return_scores,
              bool return_kept, const std::pair<std::string, std::string>& stages,
              const std::optional<nb::object>& scores_out,
              const std::optional<nb::object>& kept_out, nb::handle out_low) {
  if (softmax_scale && (!std::isfinite(*softmax_scale) || *softmax_scale == 0)) {
    refuse(ErrorCode::invalid_argument,
           fmt::format("softmax_scale: expected a finite number other than 0, got {}",
                       *softmax_scale));
  }
  const DynamicMaskAttention& attention = held.attention();
  const AttentionShape& shape = attention.spec().shape;
  CallArrays arrays(held.place());
  DynamicMaskTensors tensors{};
  tensors.q = arrays.input("q", q);
  tensors.kv.k = arrays.input("k", k);
  tensors.kv.v = arrays.input("v", v);
  check_4d("q", tensors.q);
  check_4d("k", tensors.kv.k);
  check_4d("v", tensors.kv.v);
  if (dt_proj) tensors.dt_proj = arrays.input("dt_proj", *dt_proj);
  if (a_coef) tensors.a_coef = arrays.input("a_coef", *a_coef);
  if (scores) tensors.scores = arrays.input("scores", *scores);
  const CallStream call(held.place(), stream, q);
  const std::int64_t q_extent = tensors.q.extents[1], kv_len = shape.max_kv_len();
  const OutputArray made_out = arrays.output(
      "out", out, shape.out_dtype, 4, {shape.batch, q_extent, shape.heads_q, shape.head_dim_v});
  tensors.out = made_out.view;
  tensors.out_low = arrays.given("out_low", out_low);
  OutputArray made_lse, made_scores, made_kept;
  if (return_lse) {
    made_lse =
        arrays.output("lse", lse, DType::float32, 3, {shape.batch, shape.heads_q, q_extent, 1});
    tensors.lse = made_lse.view;
  }
  if ((return_scores || scores_out) && !scores) {
    made_scores = arrays.output("scores_out", scores_out, DType::float32, 3,
                                {shape.batch, shape.heads_kv, kv_len, 1});
    tensors.made_scores = made_scores.view;
  }
  if (return_kept || kept_out) {
    made_kept = arrays.output("kept_out", kept_out, DType::int32, 4,
                              {shape.batch, shape.heads_kv, kv_len, 2});
    tensors.kept = made_kept.view;
  }
  DynamicMaskOptions options;
  options.attention.softmax_scale = softmax_scale.value_or(0);
  options.attention.num_threads = num_threads;
  options.first = parse_stage(stages.first);
  options.last = parse_stage(stages.second);
  {
    const nb::gil_scoped_release released;
    fill_unwritten_rows(held, tensors, !out, return_lse && !lse, call.stream());
    const Workspace workspace =
        held.user().workspace(attention.device(), attention.workspace_bytes(), call.stream());
    value_or_throw(attention.run(tensors, workspace.data(), held.status(), call.stream(), options));
  }
  const auto object_or_none = [](bool is_there, const nb::object& object) {
    return is_there ? object : nb::none();
  };
  return nb::make_tuple(
      made_out.object, object_or_none(return_lse, made_lse.object),
      scores && return_scores ? *scores : object_or_none(return_scores, made_scores.object),
      object_or_none(return_kept, made_kept.object));
}

// Sets the rows of gradients past the lengths of elements to zero; no kernel writes them.
void zero_unwritten_rows(const HeldAttention& held, const DynamicMaskBackwardTensors& tensors,
                         Stream stream) {
  AttentionTensors rows{};
  rows.q = tensors.q;
  rows.kv = tensors.kv;
  if (!has_rows_past_lengths(held.attention().spec().shape, rows)) return;
  for (const MutableTensorView* view : {&tensors.dq, &tensors.dk, &tensors.dv}) {
    fill_unwritten(view, nullptr, stream);
  }
}

void backward(const HeldAttention& held, nb::handle q, nb::handle k, nb::handle v,
              nb::handle dt_proj, nb::handle a_coef, nb::handle scores, nb::handle kept,
              nb::handle out, nb::handle lse, nb::handle dout, nb::handle dlse, nb::handle dq,
              nb::handle dk, nb::handle dv, nb::handle dscores, nb::handle ddt_proj,
              nb::handle da_coef, std::optional<float> softmax_scale, bool deterministic,
              nb::handle workspace, nb::handle stream, int num_threads, nb::handle out_low) {
  const DynamicMaskAttention& attention = held.attention();
  CallArrays arrays(held.place());
  DynamicMaskBackwardTensors tensors;
  tensors.q = arrays.input("q", q);
  tensors.kv.k = arrays.input("k", k);
  tensors.kv.v = arrays.input("v", v);
  tensors.dt_proj = arrays.input_or_none("dt_proj", dt_proj);
  tensors.a_coef = arrays.input_or_none("a_coef", a_coef);
  tensors.scores = arrays.input("scores", scores);
  tensors.kept = arrays.input_or_none("kept", kept);
  tensors.out = arrays.input("out", out);
  tensors.lse = arrays.input("lse", lse);
  tensors.out_low = arrays.input_or_none("out_low", out_low);
  tensors.dout = arrays.input("dout", dout);
  tensors.dlse = arrays.input_or_none("dlse", dlse);
  check_4d("q", tensors.q);
  check_4d("k", tensors.kv.k);
  check_4d("v", tensors.kv.v);
  tensors.dq = arrays.given("dq", dq);
  tensors.dk = arrays.given("dk", dk);
  tensors.dv = arrays.given("dv", dv);
  tensors.dscores = arrays.given("dscores", dscores);
  tensors.ddt_proj = arrays.given("ddt_proj", ddt_proj);
  tensors.da_coef = arrays.given("da_coef", da_coef);
  BackwardOptions options;
  options.softmax_scale = softmax_scale.value_or(0);
  options.deterministic = deterministic;
  options.num_threads = num_threads;
  const MutableTensorView memory = arrays.given("workspace", workspace);
  const std::int64_t needed = attention.backward_workspace_bytes(options);
  const std::int64_t bytes =
      memory.data == nullptr ? 0 : memory.extents[0] * size_bytes(memory.dtype);
  if (bytes < needed) {
    refuse(ErrorCode::invalid_argument,
           fmt::format("workspace: expected {} bytes, got {}", needed, bytes));
  }
  const CallStream call(held.place(), stream, q);
  const nb::gil_scoped_release released;
  if (held.is_on_device()) held.user().note_launch(call.stream());
  zero_unwritten_rows(held, tensors, call.stream());
  value_or_throw(attention.backward(tensors, memory.data, call.stream(), options));
}

bool saw_nan(const HeldAttention& held, nb::handle stream) {
  if (!held.is_on_device()) return false;
  const CallStream call(held.place(), stream);
  const nb::gil_scoped_release released;
  std::uint32_t status = 0;
  value_or_throw(copy_to_host(&status, held.status(), sizeof status, call.stream()));
  value_or_throw(fill_with_zeros(held.status(), sizeof status, call.stream()));
  return (status & kTopkSawNan) != 0;
}

BlockMask to_mask(const HeldAttention& held, nb::handle kept,
                  std::pair<std::int32_t, std::int32_t> block, nb::handle stream) {
  const AttentionShape& shape = held.attention().spec().shape;
  const InputArray input = input_array("kept", kept);
  const std::array<std::int64_t, kMaxRank> expected{shape.batch, shape.heads_kv, shape.max_kv_len(),
                                                    2};
  if (!(input.place == held.place()) || input.view.dtype != DType::int32 || input.view.rank != 4 ||
      input.view.extents != expected || !input.view.is_contiguous()) {
    refuse(ErrorCode::shape_mismatch,
           fmt::format("kept: expected contiguous int32 of shape ({}) on {}, as run() returns it",
                       fmt::join(expected, ", "), to_string(held.place())));
  }
  const CallStream call(held.place(), stream, kept);
  const nb::gil_scoped_release released;
  return value_or_throw(held.attention().to_mask(static_cast<const Interval*>(input.view.data),
                                                 {block.first, block.second}, call.stream()));
}

}  // namespace

void bind_dynamic_mask(nb::module_& module) {
  nb::class_<HeldAttention>(
      module, "DynamicMaskAttention",
      "Scores of keys, selection of the best ones for each query, and attention\n"
      "over these.\n\n"
      "It is prepared once for the shapes of the tensors.")
      .def(
          "__init__",
          [](HeldAttention* self, std::int64_t keep_window_size,
             std::optional<const BlockMask*> among, const std::optional<Lengths>& q_len,
             const std::optional<Lengths>& kv_len, std::optional<std::int64_t> batch,
             std::int64_t heads_q, std::optional<std::int64_t> heads_kv, std::int64_t head_dim,
             std::optional<std::int64_t> head_dim_v, const std::string& dtype,
             const std::optional<std::string>& out_dtype, const std::string& bias,
             bool drop_zero_scores, const std::string& backend, const std::string& reading,
             bool gradients, std::optional<int> device, nb::handle stream) {
            new (self) HeldAttention(
                make_attention(keep_window_size, among.value_or(nullptr), q_len, kv_len, batch,
                               heads_q, heads_kv, head_dim, head_dim_v, dtype, out_dtype, bias,
                               drop_zero_scores, backend, reading, gradients, device, stream));
          },
          nb::arg("keep_window_size"), nb::kw_only(), nb::arg("among") = nb::none(),
          nb::arg("q_len") = nb::none(), nb::arg("kv_len") = nb::none(),
          nb::arg("batch") = nb::none(), nb::arg("heads_q"), nb::arg("heads_kv") = nb::none(),
          nb::arg("head_dim"), nb::arg("head_dim_v") = nb::none(), nb::arg("dtype") = "float32",
          nb::arg("out_dtype") = nb::none(), nb::arg("bias") = "exp",
          nb::arg("drop_zero_scores") = false, nb::arg("backend") = "auto",
          nb::arg("reading") = "automatic", nb::arg("gradients") = false,
          nb::arg("device").none() = nb::none(), nb::arg("stream").none() = nb::none(),
          nb::sig(
              "def __init__(self, keep_window_size: int, *, among: BlockMask | None = None, q_len: "
              "int | Sequence[int] | None = None, kv_len: int | Sequence[int] | None = None, "
              "batch: int | None = None, heads_q: int, heads_kv: int | None = None, head_dim: int, "
              "head_dim_v: int | None = None, dtype: _DType = 'float32', out_dtype: _DType | None "
              "= None, bias: Literal['exp', 'log', 'none'] = 'exp', drop_zero_scores: bool = "
              "False, backend: Literal['auto', 'cpu', 'sm90'] = 'auto', reading: "
              "Literal['automatic', 'gather', 'scan', 'all'] = 'automatic', gradients: bool = "
              "False, device: int | None = None, stream: _Stream | None = None) -> None"),
          "Prepares calls in which each query keeps at most keep_window_size keys.\n\n"
          "The mask `among`, of 1 or heads_kv heads, says which keys a query may keep;\n"
          "with q_len and kv_len in its place the mask is causal. bias says what is\n"
          "added to the logits of kept keys: exp(A softplus(dt)), A softplus(dt) with\n"
          "'log', or nothing. drop_zero_scores drops keys whose score is 0. reading\n"
          "says how a GPU reads the selection. gradients=True prepares backward().\n"
          "device is the index of the GPU; None means the current one.")
      .def("run", &run, nb::arg("q"), nb::arg("k"), nb::arg("v"), nb::arg("dt_proj") = nb::none(),
           nb::arg("a_coef") = nb::none(), nb::kw_only(), nb::arg("scores") = nb::none(),
           nb::arg("softmax_scale") = nb::none(), nb::arg("stream").none() = nb::none(),
           nb::arg("num_threads") = 0, nb::arg("out") = nb::none(), nb::arg("lse") = nb::none(),
           nb::arg("return_lse") = true, nb::arg("return_scores") = false,
           nb::arg("return_kept") = false, nb::arg("stages") = std::pair("scores", "attention"),
           nb::arg("scores_out") = nb::none(), nb::arg("kept_out") = nb::none(),
           nb::arg("out_low").none() = nb::none(),
           nb::sig(
               "def run(self, q: Array, k: Array, v: Array, dt_proj: Array | None = None, a_coef: "
               "Array | None = None, *, scores: Array | None = None, softmax_scale: float | None = "
               "None, stream: _Stream | None = None, num_threads: int = 0, out: Array | None = "
               "None, lse: Array | None = None, return_lse: bool = True, return_scores: bool = "
               "False, return_kept: bool = False, stages: tuple[_Stage, _Stage] = ('scores', "
               "'attention'), scores_out: Array | None = None, kept_out: Array | None = None, "
               "out_low: Array | None = None) -> tuple[Any, Any, Any, Any]"),
           "Returns (out, lse, scores, kept), with None in place of what is not wanted.\n\n"
           "q, k, v, out and lse have the shapes of attention(). Scores are computed\n"
           "from v, dt_proj and a_coef as by zoh_scores, or they are given as float32\n"
           "[batch, heads_kv, kv_len]. kept is int32 [batch, heads_kv, kv_len, 2], the\n"
           "half-open interval of the queries that keep each key. scores_out and\n"
           "kept_out are memory for both. out_low has the shape and type of out, of 16\n"
           "bits; it receives the low half of O for backward(). On a GPU stages names\n"
           "the first and the last stage that run, so that they can be timed.")
      .def("backward", &backward, nb::arg("q"), nb::arg("k"), nb::arg("v"),
           nb::arg("dt_proj").none(), nb::arg("a_coef").none(), nb::arg("scores"),
           nb::arg("kept").none(), nb::arg("out"), nb::arg("lse"), nb::arg("dout"),
           nb::arg("dlse").none(), nb::arg("dq"), nb::arg("dk"), nb::arg("dv"),
           nb::arg("dscores").none() = nb::none(), nb::arg("ddt_proj").none() = nb::none(),
           nb::arg("da_coef").none() = nb::none(), nb::kw_only(),
           nb::arg("softmax_scale") = nb::none(), nb::arg("deterministic") = false,
           nb::arg("workspace").none() = nb::none(), nb::arg("stream").none() = nb::none(),
           nb::arg("num_threads") = 0, nb::arg("out_low").none() = nb::none(),
           nb::sig("def backward(self, q: Array, k: Array, v: Array, dt_proj: Array | None, "
                   "a_coef: Array | None, scores: Array, kept: Array | None, out: Array, lse: "
                   "Array, dout: Array, dlse: Array | None, dq: Array, dk: Array, dv: Array, "
                   "dscores: Array | None = None, ddt_proj: Array | None = None, da_coef: Array | "
                   "None = None, *, softmax_scale: float | None = None, deterministic: bool = "
                   "False, workspace: Array | None = None, stream: _Stream | None = None, "
                   "num_threads: int = 0, out_low: Array | None = None) -> None"),
           "Computes the gradients of a call of run() into dq, dk, dv, dscores, ddt_proj\n"
           "and da_coef.\n\n"
           "The last three may be None, which means that they are not wanted. Each\n"
           "gradient has the shape of its input. dt_proj and a_coef are None if scores\n"
           "were given. On a GPU kept is what run() wrote, unless reading is 'all'.\n"
           "out_low is that of the call, if it had one. On a GPU workspace has\n"
           "backward_workspace_nbytes bytes, or deterministic_workspace_nbytes with\n"
           "deterministic=True, at an address that is a multiple of 256; nothing else\n"
           "uses it until the work of the call is done.")
      .def("to_mask", &to_mask, nb::arg("kept"), nb::kw_only(),
           nb::arg("block") = std::pair(128, 128), nb::arg("stream").none() = nb::none(),
           nb::sig("def to_mask(self, kept: Array, *, block: tuple[int, int] = (128, 128), stream: "
                   "_Stream | None = None) -> BlockMask"),
           "Returns kept, a result of run(), as a mask of heads_q heads. On a GPU the\n"
           "call waits and copies.")
      .def("saw_nan", &saw_nan, nb::kw_only(), nb::arg("stream").none() = nb::none(),
           nb::sig("def saw_nan(self, *, stream: _Stream | None = None) -> bool"),
           "True if a score was NaN since the last call of this method, on a GPU. A NaN\n"
           "ranks lowest.")
      .def_prop_ro(
          "backend",
          [](const HeldAttention& held) {
            return std::string(to_string(held.attention().spec().backend));
          },
          "The name of the backend.")
      .def_prop_ro(
          "reading",
          [](const HeldAttention& held) {
            return std::string(to_string(held.attention().reading()));
          },
          "How attention reads the selection on a GPU: 'gather', 'scan' or 'all'.")
      .def_prop_ro(
          "heads_per_tile",
          [](const HeldAttention& held) { return held.attention().heads_per_tile(); },
          "The number of query heads that share a tile.")
      .def_prop_ro(
          "device", [](const HeldAttention& held) { return held.attention().device(); },
          "The index of the GPU.")
      .def_prop_ro(
          "nbytes", [](const HeldAttention& held) { return held.attention().size_bytes(); },
          "Bytes that the prepared call holds, without the workspaces.")
      .def_prop_ro(
          "workspace_nbytes",
          [](const HeldAttention& held) { return held.attention().workspace_bytes(); },
          "Bytes of workspace that one call of run() needs; 0 on the host.")
      .def_prop_ro(
          "is_captured", [](const HeldAttention& held) { return held.user().is_captured(); },
          "True if a CUDA graph holds a call. This object must live as long as the graph.")
      .def_prop_ro(
          "backward_workspace_nbytes",
          [](const HeldAttention& held) { return held.attention().backward_workspace_bytes(); },
          "Bytes of workspace that backward() needs; 0 on the host.")
      .def_prop_ro(
          "deterministic_workspace_nbytes",
          [](const HeldAttention& held) {
            BackwardOptions options;
            options.deterministic = true;
            return held.attention().backward_workspace_bytes(options);
          },
          "Bytes of workspace that backward() needs with deterministic=True; 0 on the\n"
          "host.");
}

}  // namespace fdma::python
