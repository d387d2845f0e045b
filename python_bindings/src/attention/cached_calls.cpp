// CachedCalls keeps the calls of attention that were made before and finds them again by their
// tensor descriptors.
//
// For small tensors the time of a call is the time of the host. PyTorch's tensors describe
// themselves to C in tens of nanoseconds (tensor_exchange), so one function here does everything
// from the call to the launch. It describes q, k, v, looks the plan up by the number of the mask
// and the extents, has PyTorch make the outputs, and launches. It returns None in all other cases:
// a call not seen before, strides that no kernel reads, tensors of a framework without the
// interface. The Python package then handles the call itself. It reports an error, copies, or makes
// a plan and adds the call here.
#include <nanobind/nanobind.h>

#include <array>
#include <chrono>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>

#include "arrays/tensor_exchange.hpp"
#include "attention/attention_launch.hpp"
#include "bindings.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

std::optional<DType> dtype_of(nb::dlpack::dtype given) {
  const auto is = [&](nb::dlpack::dtype_code code, int bits) {
    return given.code == static_cast<std::uint8_t>(code) && given.bits == bits && given.lanes == 1;
  };
  if (is(nb::dlpack::dtype_code::Bfloat, 16)) return DType::bfloat16;
  if (is(nb::dlpack::dtype_code::Float, 16)) return DType::float16;
  if (is(nb::dlpack::dtype_code::Float, 32)) return DType::float32;
  if (is(nb::dlpack::dtype_code::Int, 64)) return DType::int64;
  return std::nullopt;
}

struct TensorDescriptor {
  TensorView view;
  int device = 0;  ///< index of the CUDA device
};

constexpr int kAnyRank = -1;

/// The descriptor of a tensor. It is empty unless the tensor has `rank` dimensions, is on the host
/// or a CUDA device, and has an element type that attention or its seed takes.
std::optional<TensorDescriptor> described(nb::handle object, int rank) {
  const std::optional<ExchangedTensor> tensor = exchanged(object);
  if (!tensor || tensor->num_dimensions > kMaxRank) return std::nullopt;
  if (rank == kAnyRank) rank = tensor->num_dimensions;
  if (tensor->num_dimensions != rank || rank == 0) return std::nullopt;
  const std::optional<DType> dtype = dtype_of(tensor->element);
  if (!dtype) return std::nullopt;
  TensorDescriptor result;
  result.view.data = tensor->data();
  result.view.dtype = *dtype;
  result.view.rank = rank;
  if (tensor->device_kind == nb::device::cuda::value) {
    result.view.device = Device::cuda;
    result.device = tensor->device_index;
  } else if (tensor->device_kind != nb::device::cpu::value) {
    return std::nullopt;
  }
  for (std::size_t i = 0; i < tensor->ndim(); ++i) {
    result.view.extents[i] = tensor->extents[i];
    result.view.strides[i] = tensor->strides[i];
  }
  const auto last = static_cast<std::size_t>(rank - 1);
  if (result.view.extents[last] <= 1) result.view.strides[last] = 1;
  return result;
}

struct CallKey {
  std::int64_t mask = 0;
  std::array<std::int64_t, 12> extents{};  ///< the extents of q, then k, then v
  std::int32_t device = 0;                 ///< -1: the host
  std::uint8_t dtype = 0;
  std::uint8_t score = 0;  ///< a bit for each part that the call has
  bool heads_first = false, is_backward = false, is_deterministic = false;
  friend bool operator==(const CallKey&, const CallKey&) = default;
};

struct CallKeyHash {
  std::size_t operator()(const CallKey& key) const {
    std::uint64_t hash = static_cast<std::uint64_t>(key.mask);
    const auto add = [&](std::uint64_t value) {
      hash = (hash ^ value) * 0x9e3779b97f4a7c15U;
      hash ^= hash >> 32;
    };
    for (const std::int64_t extent : key.extents) add(static_cast<std::uint64_t>(extent));
    add(static_cast<std::uint64_t>(key.device) << 24 | std::uint64_t{key.dtype} << 16 |
        std::uint64_t{key.score} << 8 | std::uint64_t{key.heads_first} << 2 |
        std::uint64_t{key.is_backward} << 1 | std::uint64_t{key.is_deterministic});
    return hash;
  }
};

std::uint8_t part_bits(const ScoreSpec& score) {
  unsigned bits = 0, bit = 1;
#define FDMA_SCORE_PART(name, meaning) \
  if (score.name) bits |= bit;         \
  bit <<= 1;
#include "fdma/formats/score_parts.def"
  return static_cast<std::uint8_t>(bits);
}

/// The key of a call, and views of its tensors as they are in memory.
struct CallDescriptor {
  CallKey key;
  AttentionTensors tensors;
  CallScore score;
};

/// Empty if a tensor has no descriptor, if q, k and v differ in element type, if a tensor is on
/// another device than q, or if q, k or v has no elements.
std::optional<CallDescriptor> call_descriptor(std::int64_t mask, nb::handle q, nb::handle k,
                                              nb::handle v, nb::handle given_score,
                                              bool heads_first) {
  const std::optional<TensorDescriptor> all[] = {described(q, 4), described(k, 4), described(v, 4)};
  CallDescriptor call;
  CallKey& key = call.key;
  for (std::size_t i = 0; i < 3; ++i) {
    if (!all[i] || all[i]->view.dtype != all[0]->view.dtype ||
        all[i]->view.device != all[0]->view.device || all[i]->device != all[0]->device) {
      return std::nullopt;
    }
    for (std::size_t axis = 0; axis < 4; ++axis) {
      key.extents[4 * i + axis] = all[i]->view.extents[axis];
      if (key.extents[4 * i + axis] == 0) return std::nullopt;
    }
  }
  if (all[0]->view.dtype == DType::int64) return std::nullopt;
  const bool is_on_host = all[0]->view.device == Device::cpu;
  key.mask = mask;
  key.device = is_on_host ? -1 : all[0]->device;
  key.dtype = static_cast<std::uint8_t>(all[0]->view.dtype);
  key.heads_first = heads_first;
  call.tensors.q = all[0]->view;
  call.tensors.kv = {KvLayout::contiguous, all[1]->view, all[2]->view};
  bool is_described = true;
  call.score = GivenScore(given_score).score([&](const char*, nb::handle object) -> TensorView {
    const std::optional<TensorDescriptor> tensor = described(object, kAnyRank);
    if (!tensor || tensor->view.device != all[0]->view.device || tensor->device != all[0]->device) {
      is_described = false;
      return {};
    }
    return tensor->view;
  });
  if (!is_described) return std::nullopt;
  key.score = part_bits(call.score.spec());
  return call;
}

bool lies_in_order(const TensorView& view, const std::array<std::size_t, 4>& axes) {
  std::int64_t step = 1;
  for (std::size_t i = axes.size(); i-- > 0;) {
    const std::size_t axis = axes[i];
    if (view.extents[axis] != 1 && view.strides[axis] != step) return false;
    step *= view.extents[axis];
  }
  return true;
}

// Whether a new tensor with the shape and layout of q can hold the output.
bool is_like_result(const AttentionTensors& tensors) {
  return tensors.q.extents[3] == tensors.kv.v.extents[3] &&
         (lies_in_order(tensors.q, {0, 1, 2, 3}) || lies_in_order(tensors.q, {0, 2, 1, 3}));
}

MutableTensorView written(nb::handle object, int rank) {
  const std::optional<TensorDescriptor> made = described(object, rank);
  if (!made) throw nb::type_error("empty_like: expected a tensor that describes itself");
  const TensorView& view = made->view;
  // The array says nothing of who may write; the caller hands it over as an output.
  return view.with_data(const_cast<void*>(view.data));
}

class CachedCalls {
 public:
  CachedCalls(nb::object empty_like, nb::object contiguous, nb::object new_outputs)
      : empty_like_(std::move(empty_like)),
        contiguous_(std::move(contiguous)),
        new_outputs_(std::move(new_outputs)) {}

  bool add(std::int64_t mask, nb::handle q, nb::handle k, nb::handle v, nb::handle score,
           bool heads_first, bool is_backward, bool is_deterministic, nb::object entry,
           nb::object lse_like) {
    std::optional<CallDescriptor> call = call_descriptor(mask, q, k, v, score, heads_first);
    if (!call) return false;
    if (calls_.size() >= kMaxCalls) calls_.clear();
    CachedCall cached{nullptr, entry, entry.attr("plan"), std::move(lse_like)};
    cached.plan = nb::cast<const HeldPlan*>(cached.owner);
    calls_.insert_or_assign(key_of(*call, is_backward, is_deterministic), std::move(cached));
    return true;
  }

  nb::object find(std::int64_t mask, nb::handle q, nb::handle k, nb::handle v, nb::handle score,
                  bool heads_first, bool is_backward, bool is_deterministic) {
    const std::optional<CallDescriptor> call = call_descriptor(mask, q, k, v, score, heads_first);
    if (!call) return nb::none();
    const auto found = calls_.find(key_of(*call, is_backward, is_deterministic));
    if (found == calls_.end()) return nb::none();
    touch(found->second);
    return found->second.owner;
  }

  nb::object run(std::int64_t mask, nb::handle q, nb::handle k, nb::handle v, nb::handle score,
                 float softmax_scale, bool heads_first, bool wants_lse, int num_threads) {
    std::optional<CallDescriptor> call = call_descriptor(mask, q, k, v, score, heads_first);
    if (!call) return nb::none();
    const auto found = calls_.find(call->key);
    if (found == calls_.end()) return nb::none();
    const CachedCall cached = found->second;  // a copy, since another thread may erase it
    AttentionTensors& tensors = call->tensors;
    if (unreadable_of(tensors, call->score) != 0) return nb::none();
    touch(cached);
    nb::object out, lse = nb::none();
    if (is_like_result(tensors)) {
      out = empty_like_(q);
      if (wants_lse) lse = empty_like_(cached.lse_like, nb::arg("memory_format") = contiguous_);
    } else {
      const nb::object made = new_outputs_(q, k, v, heads_first, wants_lse);
      out = made[0];
      lse = made[1];
    }
    tensors.out = written(out, 4);
    if (wants_lse) tensors.lse = written(lse, 3);
    AttentionOptions options;
    options.softmax_scale = softmax_scale;
    options.num_threads = num_threads;
    call->score.set(tensors, options);
    launch_forward(*cached.plan, tensors, heads_first, options, nb::none(), q);
    return wants_lse ? nb::object(nb::make_tuple(out, lse)) : out;
  }

  void clear() { calls_.clear(); }
  std::size_t size() const { return calls_.size(); }

 private:
  static constexpr std::size_t kMaxCalls = 4096;

  struct CachedCall {
    const HeldPlan* plan;
    nb::object entry;
    nb::object owner;  ///< keeps `plan` alive
    nb::object lse_like;
  };

  static CallKey key_of(const CallDescriptor& call, bool is_backward, bool is_deterministic) {
    CallKey key = call.key;
    key.is_backward = is_backward;
    key.is_deterministic = is_deterministic;
    return key;
  }

  // Sets last_use to the value that Python's time.monotonic_ns() would give.
  static void touch(const CachedCall& cached) {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    nb::setattr(cached.entry, "last_use",
                nb::int_(std::chrono::duration_cast<std::chrono::nanoseconds>(now).count()));
  }

  nb::object empty_like_, contiguous_, new_outputs_;
  std::unordered_map<CallKey, CachedCall, CallKeyHash> calls_;
};

}  // namespace

void bind_cached_calls(nb::module_& module) {
  nb::class_<CachedCalls>(
      module, "CachedCalls",
      "A cache of the plans of calls on PyTorch's tensors.\n\n"
      "The key of a call is the number of its mask, the descriptors of q, k and v, and\n"
      "the parts of its score.")
      .def(nb::init<nb::object, nb::object, nb::object>(), nb::arg("empty_like"),
           nb::arg("contiguous"), nb::arg("new_outputs"),
           "Takes the functions that allocate results.\n\n"
           "empty_like is torch.empty_like, and contiguous is torch.contiguous_format.\n"
           "new_outputs(q, k, v, heads_first, with_lse) returns (out, lse or None); it\n"
           "is called where a tensor like q cannot hold the result.")
      .def("add", &CachedCalls::add, nb::arg("mask"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
           nb::arg("score").none(), nb::arg("heads_first"), nb::arg("is_backward"),
           nb::arg("is_deterministic"), nb::arg("entry"), nb::arg("lse_like"),
           nb::sig("def add(self, mask: int, q: object, k: object, v: object, score: _Score | "
                   "None, heads_first: bool, is_backward: bool, is_deterministic: bool, entry: "
                   "object, lse_like: object) -> bool"),
           "Adds a call, which is then made by entry.plan, and returns True.\n\n"
           "Each use sets entry.last_use to the time in nanoseconds. lse_like has the\n"
           "extents, type and device of the log-sum-exp, with any strides. The result is\n"
           "False, and nothing is added, if a tensor has no descriptor in C.")
      .def("find", &CachedCalls::find, nb::arg("mask"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
           nb::arg("score").none(), nb::arg("heads_first"), nb::arg("is_backward"),
           nb::arg("is_deterministic"),
           nb::sig("def find(self, mask: int, q: object, k: object, v: object, score: _Score | "
                   "None, heads_first: bool, is_backward: bool, is_deterministic: bool) -> object"),
           "Returns the plan of a call, or None if the cache does not hold it.")
      .def("run", &CachedCalls::run, nb::arg("mask"), nb::arg("q"), nb::arg("k"), nb::arg("v"),
           nb::arg("score").none(), nb::arg("softmax_scale"), nb::arg("heads_first"),
           nb::arg("wants_lse"), nb::arg("num_threads"),
           nb::sig("def run(self, mask: int, q: object, k: object, v: object, score: _Score | "
                   "None, softmax_scale: float, heads_first: bool, wants_lse: bool, num_threads: "
                   "int) -> object"),
           "Computes attention by the cached forward plan, and returns out, or (out,\n"
           "lse) with wants_lse.\n\n"
           "The plan was added with is_backward=False and is_deterministic=False.\n"
           "num_threads counts threads of the CPU; 0 means all. The result is None, and\n"
           "nothing is computed, if the cache does not hold the call or kernels cannot\n"
           "read its tensors with their strides. The caller computes gradients.")
      .def("clear", &CachedCalls::clear, "Removes all calls.")
      .def("__len__", &CachedCalls::size);
}

}  // namespace fdma::python
