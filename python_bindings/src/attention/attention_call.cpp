// attention_call and attention_backward_call: one call of attention, or of its gradients, by a plan
// that fits, as the Python package makes it for every layer and step.
//
// The package has looked the plan up by the shapes of the tensors and has made the outputs. This
// file makes views of the tensors, checks their strides and launches. Tensors with DLPack's
// exchange interface (PyTorch's) are described in tens of nanoseconds.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "arrays/array_view.hpp"
#include "arrays/call_stream.hpp"
#include "arrays/python_error.hpp"
#include "arrays/unwritten_rows.hpp"
#include "attention/attention_launch.hpp"
#include "attention/held_plan.hpp"
#include "bindings.hpp"
#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/attention_backward.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

/// kAnyRank: the library checks it.
constexpr int kAnyRank = -1;

InputArray taken(const char* name, nb::handle object, int rank, const Place& place) {
  InputArray array = input_array(name, object, Gradients::elsewhere);
  if (!(array.place == place)) {
    refuse(ErrorCode::invalid_argument,
           fmt::format("{}: expected a tensor on {}, where the plan is, got one on {}", name,
                       to_string(place), to_string(array.place)));
  }
  if (rank != kAnyRank && array.view.rank != rank) {
    refuse(ErrorCode::shape_mismatch,
           fmt::format("{}: expected {} dimensions, got {}", name, rank, array.view.rank));
  }
  return array;
}

MutableTensorView written(const char* name, nb::handle object, int rank, const Place& place) {
  const TensorView view = taken(name, object, rank, place).view;
  // The array says nothing of who may write; the caller hands it over as an output.
  return view.with_data(const_cast<void*>(view.data));
}

// The lengths and documents that a call of a closed-form plan brings, of any rank; the library
// checks it. None means those of the plan.
struct CallLengths {
  InputArray q_lens, kv_lens, cu_seqlens;

  CallLengths(nb::handle q, nb::handle kv, nb::handle documents, const Place& place)
      : q_lens(given("q_lens", q, place)),
        kv_lens(given("kv_lens", kv, place)),
        cu_seqlens(given("cu_seqlens", documents, place)) {}

  template <class Tensors>
  void set(Tensors& tensors) const {
    tensors.q_lens = q_lens.view;
    tensors.kv_lens = kv_lens.view;
    tensors.cu_seqlens = cu_seqlens.view;
  }

 private:
  static InputArray given(const char* name, nb::handle object, const Place& place) {
    if (object.is_none()) return {};
    InputArray array = input_array(name, object);
    check_on(name, array.place, place);
    return array;
  }
};

// Describes tensors of a call and keeps what they need.
class Owners {
 public:
  explicit Owners(const Place& place) : place_(place) {}

  TensorView read(const char* name, nb::handle object, int rank) {
    if (object.is_none()) return {};
    owners_.push_back(taken(name, object, rank, place_));
    return owners_.back().view;
  }
  CallScore score(nb::handle given) {
    return GivenScore(given).score(
        [this](const char* name, nb::handle object) { return read(name, object, kAnyRank); });
  }

 private:
  Place place_;
  std::vector<InputArray> owners_;
};

int attention_call(const HeldPlan& plan, nb::handle q, nb::handle k, nb::handle v,
                   nb::handle given_score, nb::handle out, nb::handle lse, float softmax_scale,
                   bool heads_first, nb::handle out_low, int num_threads, nb::handle stream,
                   nb::handle q_lens, nb::handle kv_lens, nb::handle cu_seqlens) {
  const Place place = plan.place();
  const InputArray inputs[] = {taken("q", q, 4, place), taken("k", k, 4, place),
                               taken("v", v, 4, place)};
  AttentionTensors tensors;
  tensors.q = inputs[0].view;
  tensors.kv = {KvLayout::contiguous, inputs[1].view, inputs[2].view};
  tensors.out = written("out", out, 4, place);
  Owners owners(place);
  const CallScore score = owners.score(given_score);
  if (const int unreadable = unreadable_of(tensors, score); unreadable != 0) return unreadable;
  if (!lse.is_none()) tensors.lse = written("lse", lse, 3, place);
  if (!out_low.is_none()) {
    tensors.out_low = written("out_low", out_low, 4, place);
  }
  const CallLengths lengths(q_lens, kv_lens, cu_seqlens, place);
  lengths.set(tensors);
  AttentionOptions options;
  options.softmax_scale = softmax_scale;
  options.num_threads = num_threads;
  score.set(tensors, options);
  launch_forward(plan, tensors, heads_first, options, stream, q);
  return 0;
}

// Sets the rows past the lengths of elements to zero, which the kernel does not write.
void fill_gradients(const AttentionShape& shape, const BackwardTensors& tensors, Stream stream) {
  const auto has_shorter = [](const std::vector<std::int64_t>& lengths, const TensorView& given,
                              std::int64_t extent) {
    return given.data != nullptr ||
           std::any_of(lengths.begin(), lengths.end(),
                       [&](std::int64_t length) { return length < extent; });
  };
  const bool q_shorter = has_shorter(shape.q_lens, tensors.q_lens, tensors.q.extents[1]);
  const bool kv_shorter = has_shorter(shape.kv_lens, tensors.kv_lens, tensors.kv.k.extents[1]);
  const auto fill = [&](const MutableTensorView& view, bool is_wanted) {
    if (is_wanted && view.data != nullptr) fill_unwritten(&view, nullptr, stream);
  };
  fill(tensors.dq, q_shorter);
  fill(tensors.dk, kv_shorter);
  fill(tensors.dv, kv_shorter);
  fill(tensors.dkey_bias, kv_shorter);
}

// The gradients of the score: a tuple (dkey_bias, dbias, drelative, dsinks), whose elements are None
// where a gradient is not wanted, or None.
void set_score_gradients(BackwardTensors& tensors, nb::handle given, const Place& place) {
  if (given.is_none()) return;
  if (!PyTuple_Check(given.ptr()) || PyTuple_Size(given.ptr()) != 4) {
    throw nb::type_error("dscore: expected None or (dkey_bias, dbias, drelative, dsinks)");
  }
  const auto set = [&](Py_ssize_t i, const char* name, MutableTensorView& view) {
    const nb::handle object = PyTuple_GetItem(given.ptr(), i);
    if (!object.is_none()) view = written(name, object, kAnyRank, place);
  };
  set(0, "dkey_bias", tensors.dkey_bias);
  set(1, "dbias", tensors.dbias);
  set(2, "drelative", tensors.drelative);
  set(3, "dsinks", tensors.dsinks);
}

int attention_backward_call(const HeldPlan& plan, nb::handle q, nb::handle k, nb::handle v,
                            nb::handle given_score, nb::handle out, nb::handle lse, nb::handle dout,
                            nb::handle dlse, nb::handle dq, nb::handle dk, nb::handle dv,
                            nb::handle dscore, float softmax_scale, bool heads_first,
                            bool deterministic, nb::handle workspace, nb::handle out_low,
                            int num_threads, nb::handle stream, nb::handle q_lens,
                            nb::handle kv_lens, nb::handle cu_seqlens) {
  const Place place = plan.place();
  Owners owners(place);
  BackwardTensors tensors;
  tensors.q = owners.read("q", q, 4);
  tensors.kv = {KvLayout::contiguous, owners.read("k", k, 4), owners.read("v", v, 4)};
  const CallScore score = owners.score(given_score);
  tensors.out = owners.read("out", out, 4);
  tensors.lse = owners.read("lse", lse, 3);
  tensors.out_low = owners.read("out_low", out_low, 4);
  tensors.dout = owners.read("dout", dout, 4);
  tensors.dlse = owners.read("dlse", dlse, 3);
  const int unreadable = unreadable_of(tensors, score, {&tensors.dout, &tensors.dlse});
  if (unreadable != 0) return unreadable;
  tensors.dq = written("dq", dq, 4, place);
  tensors.dk = written("dk", dk, 4, place);
  tensors.dv = written("dv", dv, 4, place);
  set_score_gradients(tensors, dscore, place);
  const CallLengths lengths(q_lens, kv_lens, cu_seqlens, place);
  lengths.set(tensors);
  if (heads_first) {
    for (TensorView* view : {&tensors.q, &tensors.kv.k, &tensors.kv.v, &tensors.out, &tensors.dout,
                             &tensors.out_low}) {
      put_lengths_first(*view);
    }
    for (MutableTensorView* view : {&tensors.dq, &tensors.dk, &tensors.dv}) {
      put_lengths_first(*view);
    }
  }
  BackwardOptions options;
  options.softmax_scale = softmax_scale;
  score.set(tensors, options);
  options.deterministic = deterministic;
  options.num_threads = num_threads;
  MutableTensorView memory;
  if (!workspace.is_none()) {
    memory = written("workspace", workspace, 1, place);
    const std::int64_t bytes = memory.extents[0] * size_bytes(memory.dtype);
    const std::int64_t needed = plan.plan().workspace_bytes();
    if (bytes < needed) {
      refuse(ErrorCode::invalid_argument,
             fmt::format("workspace: expected {} bytes, got {}", needed, bytes));
    }
  }
  const CallStream call(place, stream, q);
  const nb::gil_scoped_release released;
  fill_gradients(plan.plan().shape(), tensors, call.stream());
  plan.backward(tensors, memory.data, call.stream(), options);
  return 0;
}

}  // namespace

void bind_attention_call(nb::module_& module) {
  module.def("attention_call", &attention_call, nb::arg("plan"), nb::arg("q"), nb::arg("k"),
             nb::arg("v"), nb::arg("score").none(), nb::arg("out"), nb::arg("lse").none(),
             nb::arg("softmax_scale") = 0.0F, nb::arg("heads_first") = false,
             nb::arg("out_low").none() = nb::none(), nb::arg("num_threads") = 0,
             nb::arg("stream").none() = nb::none(), nb::arg("q_lens").none() = nb::none(),
             nb::arg("kv_lens").none() = nb::none(), nb::arg("cu_seqlens").none() = nb::none(),
             nb::sig("def attention_call(plan: PreparedPlan, q: Array, k: Array, v: Array, "
                     "score: _Score | None, out: Array, lse: Array | None, softmax_scale: float "
                     "= 0.0, heads_first: bool = False, out_low: Array | None = None, num_threads: "
                     "int = 0, stream: _Stream | None = None, q_lens: Array | None = None, "
                     "kv_lens: Array | None = None, cu_seqlens: Array | None = None) -> int"),
             "Computes attention by a plan into out and lse, and returns 0.\n\n"
             "q, k, v and out are [batch, len, heads, head_dim], or [batch, heads, len,\n"
             "head_dim] with heads_first. score has the parts that the plan's score has.\n"
             "lse is float32 [batch, heads_q, q_len]. out and lse are contiguous and\n"
             "overlap no other tensor. Rows past the lengths become 0 in out and -inf in\n"
             "lse. softmax_scale 0 means 1 / sqrt(head_dim). out_low has the shape and\n"
             "type of out, of 16 bits; it receives the low half of O for\n"
             "attention_backward_call. num_threads counts threads of the CPU; 0 means all.\n"
             "q_lens, kv_lens and cu_seqlens are those of attention.\n\n"
             "If kernels cannot read some of the tensors with their strides, nothing is\n"
             "written and the result has bit i set for the i-th of q, k, v, key_bias, bias,\n"
             "alibi_slopes, relative, sinks that must be made contiguous. The caller\n"
             "computes gradients.");
  module.def(
      "attention_backward_call", &attention_backward_call, nb::arg("plan"), nb::arg("q"),
      nb::arg("k"), nb::arg("v"), nb::arg("score").none(), nb::arg("out"), nb::arg("lse"),
      nb::arg("dout"), nb::arg("dlse").none(), nb::arg("dq"), nb::arg("dk"), nb::arg("dv"),
      nb::arg("dscore").none(), nb::arg("softmax_scale") = 0.0F, nb::arg("heads_first") = false,
      nb::arg("deterministic") = false, nb::arg("workspace").none() = nb::none(),
      nb::arg("out_low").none() = nb::none(), nb::arg("num_threads") = 0,
      nb::arg("stream").none() = nb::none(), nb::arg("q_lens").none() = nb::none(),
      nb::arg("kv_lens").none() = nb::none(), nb::arg("cu_seqlens").none() = nb::none(),
      nb::sig("def attention_backward_call(plan: PreparedPlan, q: Array, k: Array, v: Array, "
              "score: _Score | None, out: Array, lse: Array, dout: Array, dlse: Array | None, "
              "dq: Array, dk: Array, dv: Array, dscore: tuple[Array | None, Array | None, "
              "Array | None, Array | None] | None, softmax_scale: float = "
              "0.0, heads_first: bool = False, deterministic: bool = False, workspace: Array | "
              "None = None, out_low: Array | None = None, num_threads: int = 0, stream: _Stream | "
              "None = None, q_lens: Array | None = None, kv_lens: Array | None = None, "
              "cu_seqlens: Array | None = None) -> int"),
      "Computes the gradients of attention_call into dq, dk, dv and dscore, and\n"
      "returns 0.\n\n"
      "plan has direction 'backward'. dq, dk, dv and dout have the shapes of q, k,\n"
      "v and out, dlse that of lse. dscore is (dkey_bias, dbias, drelative, dsinks),\n"
      "of the shapes and types of these tensors; None means that a gradient is not\n"
      "wanted, for dlse that it is 0. out_low is that of attention_call; without it\n"
      "a gradient of a bias, and gradients of few queries, take one more pass over\n"
      "all keys. On a GPU workspace has plan.workspace_nbytes bytes that nothing\n"
      "else uses on the stream during the call; None means that which the stream's\n"
      "calls share. num_threads counts threads of the CPU; 0 means all. score,\n"
      "q_lens, kv_lens and cu_seqlens are those of the forward call. Gradients of\n"
      "rows past the lengths are 0.\n\n"
      "If kernels cannot read some of the tensors with their strides, nothing is\n"
      "written and the result has bit i set for the i-th of q, k, v, key_bias, bias,\n"
      "alibi_slopes, relative, sinks, dout, dlse that must be made contiguous.");
}

}  // namespace fdma::python
