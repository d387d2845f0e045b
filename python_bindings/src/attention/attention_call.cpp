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

InputArray taken(const char* name, nb::handle object, int rank, const Place& place) {
  InputArray array = input_array(name, object, Gradients::elsewhere);
  if (!(array.place == place)) {
    refuse(ErrorCode::invalid_argument,
           fmt::format("{}: expected a tensor on {}, where the plan is, got one on {}", name,
                       to_string(place), to_string(array.place)));
  }
  if (array.view.rank != rank) {
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

int attention_call(const HeldPlan& plan, nb::handle q, nb::handle k, nb::handle v,
                   nb::handle key_bias, nb::handle out, nb::handle lse, float softmax_scale,
                   bool heads_first, nb::handle out_low, int num_threads, nb::handle stream,
                   nb::handle q_lens, nb::handle kv_lens, nb::handle cu_seqlens, float softcap) {
  const Place place = plan.place();
  const InputArray inputs[] = {taken("q", q, 4, place), taken("k", k, 4, place),
                               taken("v", v, 4, place)};
  AttentionTensors tensors;
  tensors.q = inputs[0].view;
  tensors.kv = {KvLayout::contiguous, inputs[1].view, inputs[2].view};
  tensors.out = written("out", out, 4, place);
  InputArray bias;
  if (!key_bias.is_none()) bias = taken("bias", key_bias, 3, place);
  tensors.key_bias = bias.view;
  const int unreadable =
      unreadable_of<4>({&tensors.q, &tensors.kv.k, &tensors.kv.v, &tensors.key_bias});
  if (unreadable != 0) return unreadable;
  if (!lse.is_none()) tensors.lse = written("lse", lse, 3, place);
  if (!out_low.is_none()) {
    tensors.out_low = written("out_low", out_low, 4, place);
  }
  const CallLengths lengths(q_lens, kv_lens, cu_seqlens, place);
  lengths.set(tensors);
  launch_forward(plan, tensors, heads_first, {softmax_scale, softcap, num_threads}, stream, q);
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

int attention_backward_call(const HeldPlan& plan, nb::handle q, nb::handle k, nb::handle v,
                            nb::handle key_bias, nb::handle out, nb::handle lse, nb::handle dout,
                            nb::handle dlse, nb::handle dq, nb::handle dk, nb::handle dv,
                            nb::handle dkey_bias, float softmax_scale, bool heads_first,
                            bool deterministic, nb::handle workspace, nb::handle out_low,
                            int num_threads, nb::handle stream, nb::handle q_lens,
                            nb::handle kv_lens, nb::handle cu_seqlens, float softcap) {
  const Place place = plan.place();
  std::vector<InputArray> owners;
  const auto read = [&](const char* name, nb::handle object, int rank) -> TensorView {
    if (object.is_none()) return {};
    owners.push_back(taken(name, object, rank, place));
    return owners.back().view;
  };
  BackwardTensors tensors;
  tensors.q = read("q", q, 4);
  tensors.kv = {KvLayout::contiguous, read("k", k, 4), read("v", v, 4)};
  tensors.key_bias = read("bias", key_bias, 3);
  tensors.out = read("out", out, 4);
  tensors.lse = read("lse", lse, 3);
  tensors.out_low = read("out_low", out_low, 4);
  tensors.dout = read("dout", dout, 4);
  tensors.dlse = read("dlse", dlse, 3);
  const int unreadable = unreadable_of<6>(
      {&tensors.q, &tensors.kv.k, &tensors.kv.v, &tensors.key_bias, &tensors.dout, &tensors.dlse});
  if (unreadable != 0) return unreadable;
  tensors.dq = written("dq", dq, 4, place);
  tensors.dk = written("dk", dk, 4, place);
  tensors.dv = written("dv", dv, 4, place);
  if (!dkey_bias.is_none()) tensors.dkey_bias = written("dbias", dkey_bias, 3, place);
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
  options.softcap = softcap;
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
             nb::arg("v"), nb::arg("key_bias").none(), nb::arg("out"), nb::arg("lse").none(),
             nb::arg("softmax_scale") = 0.0F, nb::arg("heads_first") = false,
             nb::arg("out_low").none() = nb::none(), nb::arg("num_threads") = 0,
             nb::arg("stream").none() = nb::none(), nb::arg("q_lens").none() = nb::none(),
             nb::arg("kv_lens").none() = nb::none(), nb::arg("cu_seqlens").none() = nb::none(),
             nb::arg("softcap") = 0.0F,
             nb::sig("def attention_call(plan: PreparedPlan, q: Array, k: Array, v: Array, "
                     "key_bias: Array | None, out: Array, lse: Array | None, softmax_scale: float "
                     "= 0.0, heads_first: bool = False, out_low: Array | None = None, num_threads: "
                     "int = 0, stream: _Stream | None = None, q_lens: Array | None = None, "
                     "kv_lens: Array | None = None, cu_seqlens: Array | None = None, softcap: "
                     "float = 0.0) -> int"),
             "Computes attention by a plan into out and lse, and returns 0.\n\n"
             "q, k, v and out are [batch, len, heads, head_dim], or [batch, heads, len,\n"
             "head_dim] with heads_first. key_bias is float32 [batch, heads_kv, kv_len]\n"
             "and lse float32 [batch, heads_q, q_len]. out and lse are contiguous and\n"
             "overlap no other tensor. Rows past the lengths become 0 in out and -inf in\n"
             "lse. softmax_scale 0 means 1 / sqrt(head_dim). out_low has the shape and\n"
             "type of out, of 16 bits; it receives the low half of O for\n"
             "attention_backward_call. num_threads counts threads of the CPU; 0 means all.\n"
             "q_lens, kv_lens and cu_seqlens are those of attention. softcap is given where\n"
             "the plan has one, and 0 elsewhere: a scaled product x becomes\n"
             "softcap * tanh(x / softcap).\n\n"
             "If kernels cannot read some of the tensors with their strides, nothing is\n"
             "written and the result has bit i set for the i-th of q, k, v, key_bias that\n"
             "must be made contiguous. The caller computes gradients.");
  module.def(
      "attention_backward_call", &attention_backward_call, nb::arg("plan"), nb::arg("q"),
      nb::arg("k"), nb::arg("v"), nb::arg("key_bias").none(), nb::arg("out"), nb::arg("lse"),
      nb::arg("dout"), nb::arg("dlse").none(), nb::arg("dq"), nb::arg("dk"), nb::arg("dv"),
      nb::arg("dkey_bias").none(), nb::arg("softmax_scale") = 0.0F, nb::arg("heads_first") = false,
      nb::arg("deterministic") = false, nb::arg("workspace").none() = nb::none(),
      nb::arg("out_low").none() = nb::none(), nb::arg("num_threads") = 0,
      nb::arg("stream").none() = nb::none(), nb::arg("q_lens").none() = nb::none(),
      nb::arg("kv_lens").none() = nb::none(), nb::arg("cu_seqlens").none() = nb::none(),
      nb::arg("softcap") = 0.0F,
      nb::sig("def attention_backward_call(plan: PreparedPlan, q: Array, k: Array, v: Array, "
              "key_bias: Array | None, out: Array, lse: Array, dout: Array, dlse: Array | None, "
              "dq: Array, dk: Array, dv: Array, dkey_bias: Array | None, softmax_scale: float = "
              "0.0, heads_first: bool = False, deterministic: bool = False, workspace: Array | "
              "None = None, out_low: Array | None = None, num_threads: int = 0, stream: _Stream | "
              "None = None, q_lens: Array | None = None, kv_lens: Array | None = None, "
              "cu_seqlens: Array | None = None, softcap: float = 0.0) -> int"),
      "Computes the gradients of attention_call into dq, dk, dv and dkey_bias, and\n"
      "returns 0.\n\n"
      "plan has direction 'backward'. dq, dk, dv and dout have the shapes of q, k,\n"
      "v and out, dkey_bias and dlse those of key_bias and lse. dkey_bias None\n"
      "means that this gradient is not wanted, dlse None that it is 0. out_low is\n"
      "that of attention_call; without it a gradient of a bias, and gradients of\n"
      "few queries, take one more pass over all keys. On a GPU workspace has\n"
      "plan.workspace_nbytes bytes that nothing else uses on the stream during the\n"
      "call; None means that which the stream's calls share. num_threads counts\n"
      "threads of the CPU; 0 means all. q_lens, kv_lens and cu_seqlens are those of\n"
      "the forward call, as is softcap. Gradients of rows past the lengths are 0.\n\n"
      "If kernels cannot read some of the tensors with their strides, nothing is\n"
      "written and the result has bit i set for the i-th of q, k, v, key_bias,\n"
      "dout, dlse that must be made contiguous.");
}

}  // namespace fdma::python
