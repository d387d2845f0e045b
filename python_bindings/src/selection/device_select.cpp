// DeviceTopk and DeviceIncrementalTopk: selection on a GPU. Scores and intervals stay on the GPU;
// to_mask copies the intervals to the host as a mask.
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
#include "attention/workspaces.hpp"
#include "bindings.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/served_pairs.hpp"
#include "fdma/kernels/device_incremental_topk.hpp"
#include "fdma/kernels/device_topk.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

using Extents = std::array<std::int64_t, kMaxRank>;

/// A DeviceTopk as Python holds it. It comes with the lengths of its rows and a status word.
class TopkOnDevice {
 public:
  TopkOnDevice(DeviceTopk topk, BlockMask among, DeviceMemory status)
      : topk_(std::move(topk)), among_(std::move(among)), status_(std::move(status)) {}

  const DeviceTopk& topk() const { return topk_; }
  /// The shape of the mask that it selects among, with is_per_batch and is_per_head. It has no
  /// cells.
  const BlockMask& among() const { return among_; }
  Place place() const { return {Device::cuda, topk_.device()}; }
  std::uint32_t* status() const { return static_cast<std::uint32_t*>(status_.data()); }
  const WorkspaceUser& user() const { return user_; }

 private:
  DeviceTopk topk_;
  BlockMask among_;
  DeviceMemory status_;
  WorkspaceUser user_;
};

Place place_of(std::optional<int> device) {
  return {Device::cuda, device ? *device : value_or_throw(current_device())};
}

TopkOnDevice make_topk(const BlockMask& among, std::int64_t w, std::optional<std::int64_t> batch,
                       std::optional<std::int64_t> heads_kv, std::optional<int> device,
                       nb::handle stream) {
  MaskShape shape = among.shape;
  shape.num_batches = batch.value_or(shape.num_batches);
  shape.num_heads = heads_kv.value_or(shape.num_heads);
  if ((among.shape.num_batches != 1 && among.shape.num_batches != shape.num_batches) ||
      (among.shape.num_heads != 1 && among.shape.num_heads != shape.num_heads) ||
      shape.num_batches < 1 || shape.num_heads < 1) {
    refuse(ErrorCode::shape_mismatch,
           fmt::format("among: a mask of {} x {} (batch x heads) serves no {} x {} rows (batch x "
                       "heads_kv)",
                       among.shape.num_batches, among.shape.num_heads, shape.num_batches,
                       shape.num_heads));
  }
  value_or_throw(check_serves(among, shape.num_batches, shape.num_heads, "among: it", "k has"));
  const CallStream call(place_of(device), stream);
  const Stream chosen = call.stream();
  const nb::gil_scoped_release released;
  TopkRows rows{shape.num_batches, shape.num_heads, shape.max_kv_len(), {}, {}};
  for (std::int64_t g = 0; g < among.num_groups(); ++g) {
    rows.masks.push_back(columns_from_segment(segment_of_group(among, g, among.block)));
  }
  for (std::int64_t b = 0; b < shape.num_batches; ++b) {
    for (std::int64_t h = 0; h < shape.num_heads; ++h) {
      rows.mask_of.push_back(
          among.group(among.shape.num_batches == 1 ? 0 : b, among.shape.num_heads == 1 ? 0 : h));
    }
  }
  DeviceTopk topk = value_or_throw(DeviceTopk::make(rows, w, chosen));
  DeviceMemory status = value_or_throw(DeviceMemory::allocate(sizeof(std::uint32_t)));
  value_or_throw(fill_with_zeros(status.data(), sizeof(std::uint32_t), chosen));
  value_or_throw(wait_for(chosen));
  BlockMask held;
  held.shape = std::move(shape);
  held.is_per_batch = among.is_per_batch;
  held.is_per_head = among.is_per_head;
  return {std::move(topk), std::move(held), std::move(status)};
}

// Throws unless `view` is int32 [batch, heads_kv, kv_len, 2], row-major.
void check_kept(std::string_view name, const TensorView& view, const DeviceTopk& topk) {
  const Extents expected{topk.num_batches(), topk.num_heads_kv(), topk.kv_len(), 2};
  if (view.dtype == DType::int32 && view.rank == 4 && view.extents == expected &&
      view.is_contiguous()) {
    return;
  }
  refuse(ErrorCode::shape_mismatch,
         fmt::format("{}: expected contiguous int32 of shape ({}), got {} of shape ({})", name,
                     fmt::join(expected, ", "), to_string(view.dtype),
                     fmt::join(view.extents.begin(), view.extents.begin() + view.rank, ", ")));
}

nb::object select(const TopkOnDevice& held, nb::handle scores, const std::optional<nb::object>& out,
                  nb::handle stream) {
  const DeviceTopk& topk = held.topk();
  const InputArray input = input_array("scores", scores);
  check_on("scores", input.place, held.place());
  const CallStream call(held.place(), stream, scores);
  const Extents extents{topk.num_batches(), topk.num_heads_kv(), topk.kv_len(), 2};
  const OutputArray kept =
      out ? output_array("out", *out) : new_array("kept", DType::int32, 4, extents, held.place());
  check_on("out", kept.place, held.place());
  check_kept("out", kept.view.view(), topk);
  check_apart("out", kept.view.view(), "scores", input.view);
  {
    const nb::gil_scoped_release released;
    const Workspace workspace =
        held.user().workspace(topk.device(), topk.workspace_bytes(), call.stream());
    value_or_throw(topk.select(input.view, static_cast<Interval*>(kept.view.data), workspace.data(),
                               held.status(), call.stream()));
  }
  return kept.object;
}

bool saw_nan(const TopkOnDevice& held, nb::handle stream) {
  const CallStream call(held.place(), stream);
  const nb::gil_scoped_release released;
  std::uint32_t status = 0;
  value_or_throw(copy_to_host(&status, held.status(), sizeof status, call.stream()));
  value_or_throw(fill_with_zeros(held.status(), sizeof status, call.stream()));
  return (status & kTopkSawNan) != 0;
}

BlockMask to_mask(const TopkOnDevice& held, nb::handle kept, std::optional<std::int64_t> heads_q,
                  std::pair<std::int32_t, std::int32_t> block, nb::handle stream) {
  const InputArray input = input_array("kept", kept);
  check_on("kept", input.place, held.place());
  check_kept("kept", input.view, held.topk());
  MaskShape shape = held.among().shape;
  const std::int64_t heads_kv = shape.num_heads;
  shape.num_heads = heads_q.value_or(heads_kv);
  if (shape.num_heads < 1 || shape.num_heads % heads_kv != 0) {
    refuse(ErrorCode::shape_mismatch,
           fmt::format("heads_q: expected a multiple of {}, got {}", heads_kv, shape.num_heads));
  }
  const BlockShape sides{block.first, block.second};
  value_or_throw(validate(sides));
  const CallStream call(held.place(), stream, kept);
  const nb::gil_scoped_release released;
  const auto* const intervals = static_cast<const Interval*>(input.view.data);
  const std::vector<ColumnIntervals> rows =
      value_or_throw(held.topk().to_host(intervals, call.stream()));
  std::vector<SegmentMask> masks;
  for (const ColumnIntervals& row : rows) masks.push_back(segment_from_columns(row, sides));
  std::vector<std::int32_t> mask_of;
  for (std::int64_t b = 0; b < shape.num_batches; ++b) {
    for (std::int64_t h = 0; h < shape.num_heads; ++h) {
      mask_of.push_back(static_cast<std::int32_t>(b * heads_kv + h / (shape.num_heads / heads_kv)));
    }
  }
  BlockMask mask = make_block_mask(std::move(shape), sides, std::move(masks), mask_of);
  mark_as(held.among(), mask);
  return mask;
}

Place place_of(const DeviceIncrementalTopk& topk) { return {Device::cuda, topk.device()}; }

DeviceIncrementalTopk make_incremental(std::int64_t w, std::int64_t capacity, std::int64_t batch,
                                       std::int64_t heads_kv, bool keys_may_wait,
                                       std::optional<int> device, nb::handle stream) {
  const CallStream call(place_of(device), stream);
  const Stream chosen = call.stream();
  const nb::gil_scoped_release released;
  DeviceIncrementalTopk topk = value_or_throw(
      DeviceIncrementalTopk::make({batch, heads_kv, capacity, w, keys_may_wait}, chosen));
  value_or_throw(wait_for(chosen));
  return topk;
}

void append(DeviceIncrementalTopk& topk, nb::handle scores, const std::optional<nb::object>& among,
            std::optional<std::int64_t> num_queries, nb::handle stream) {
  const InputArray input = input_array("scores", scores);
  check_on("scores", input.place, place_of(topk));
  const std::int64_t count = input.view.rank == 3 ? input.view.extents[2] : 0;
  std::vector<Interval> queries;
  if (among) {
    const InputArray bounds = input_array("among", *among);
    check_on_host("among", bounds.place);
    const TensorView& view = bounds.view;
    if (view.dtype != DType::int32 || view.rank != 2 || view.extents[1] != 2) {
      refuse(ErrorCode::shape_mismatch, fmt::format("among: expected int32 [keys, 2], got {} of {} "
                                                    "dimensions",
                                                    to_string(view.dtype), view.rank));
    }
    const auto* data = static_cast<const std::int32_t*>(view.data);
    for (std::int64_t i = 0; i < view.extents[0]; ++i) {
      queries.push_back({data[i * view.strides[0]], data[i * view.strides[0] + view.strides[1]]});
    }
  } else if (num_queries && *num_queries != count) {
    refuse(ErrorCode::invalid_argument,
           fmt::format("num_queries: expected one query per key, {}, where among is not given, got "
                       "{}; say by among which queries see each key",
                       count, *num_queries));
  }
  const CallStream call(place_of(topk), stream, scores);
  const nb::gil_scoped_release released;
  value_or_throw(among
                     ? topk.append(input.view, queries, num_queries.value_or(count), call.stream())
                     : topk.append_causal(input.view, call.stream()));
}

nb::tuple live_keys(const DeviceIncrementalTopk& topk, nb::handle stream) {
  const Place place = place_of(topk);
  const CallStream call(place, stream);
  const std::int64_t row_size = std::min(topk.w(), topk.capacity());
  const OutputArray keys = new_array("keys", DType::int32, 3,
                                     {topk.num_batches(), topk.num_heads_kv(), row_size, 1}, place);
  const OutputArray counts =
      new_array("counts", DType::int32, 2, {topk.num_batches(), topk.num_heads_kv(), 1, 1}, place);
  value_or_throw(topk.live_keys(static_cast<std::int32_t*>(keys.view.data), row_size,
                                static_cast<std::int32_t*>(counts.view.data), call.stream()));
  return nb::make_tuple(keys.object, counts.object);
}

// The queries of every key as int32 [batch, heads_kv, kv_len, 2] on the host.
nb::object intervals_of(DeviceIncrementalTopk& topk, nb::handle stream) {
  const CallStream call(place_of(topk), stream);
  const std::vector<ColumnIntervals> rows = value_or_throw(topk.intervals(call.stream()));
  const OutputArray array = new_array("intervals", DType::int32, 4,
                                      {topk.num_batches(), topk.num_heads_kv(), topk.kv_len(), 2});
  auto* out = static_cast<std::int32_t*>(array.view.data);
  for (const ColumnIntervals& row : rows) {
    for (std::size_t key = 0; key + 1 < row.offsets.size(); ++key, out += 2) {
      const bool is_kept = row.offsets[key] < row.offsets[key + 1];
      const Interval queries =
          is_kept ? row.intervals[static_cast<std::size_t>(row.offsets[key])] : Interval{0, 0};
      out[0] = queries.begin;
      out[1] = queries.end;
    }
  }
  return array.object;
}

template <class Function>
auto on_stream(Function function) {
  return [function](DeviceIncrementalTopk& topk, nb::handle stream) {
    const CallStream call(place_of(topk), stream);
    const nb::gil_scoped_release released;
    value_or_throw((topk.*function)(call.stream()));
  };
}

}  // namespace

void bind_device_select(nb::module_& module) {
  nb::class_<TopkOnDevice>(
      module, "DeviceTopk",
      "Top-k selection on a GPU among the keys of a mask. It is prepared once for\n"
      "many calls.")
      .def(
          "__init__",
          [](TopkOnDevice* self, const BlockMask& among, std::int64_t w,
             std::optional<std::int64_t> batch, std::optional<std::int64_t> heads_kv,
             std::optional<int> device, nb::handle stream) {
            new (self) TopkOnDevice(make_topk(among, w, batch, heads_kv, device, stream));
          },
          nb::arg("among"), nb::arg("w"), nb::kw_only(), nb::arg("batch").none() = nb::none(),
          nb::arg("heads_kv").none() = nb::none(), nb::arg("device").none() = nb::none(),
          nb::arg("stream").none() = nb::none(),
          nb::sig("def __init__(self, among: BlockMask, w: int, *, batch: int | None = None, "
                  "heads_kv: int | None = None, device: int | None = None, stream: _Stream | None "
                  "= None) -> None"),
          "Prepares the selection of w keys for each query, batch element and KV head.\n\n"
          "The mask `among` says which keys a query may keep. It belongs to the\n"
          "one-interval class, as causal, documents, prefixes and padding do; another\n"
          "mask is a NotImplementedError, and compile() selects among its keys on the\n"
          "host. batch and heads_kv default to those of the mask. device is the index\n"
          "of the GPU; None means the current one.")
      .def("select", &select, nb::arg("scores"), nb::kw_only(), nb::arg("out") = nb::none(),
           nb::arg("stream").none() = nb::none(),
           nb::sig("def select(self, scores: Array, *, out: Array | None = None, stream: _Stream | "
                   "None = None) -> NewArray"),
           "Returns the half-open interval of the queries that keep each key.\n\n"
           "It is int32 [batch, heads_kv, kv_len, 2] on the GPU, and (0, 0) for a key\n"
           "that no query keeps. scores is float32 [batch, heads_kv, kv_len] on the same\n"
           "GPU.")
      .def("saw_nan", &saw_nan, nb::kw_only(), nb::arg("stream").none() = nb::none(),
           nb::sig("def saw_nan(self, *, stream: _Stream | None = None) -> bool"),
           "True if a score was NaN since the last call of this method. A NaN ranks\n"
           "lowest.")
      .def("to_mask", &to_mask, nb::arg("kept"), nb::kw_only(),
           nb::arg("heads_q").none() = nb::none(), nb::arg("block") = std::pair(128, 128),
           nb::arg("stream").none() = nb::none(),
           nb::sig("def to_mask(self, kept: Array, *, heads_q: int | None = None, block: "
                   "tuple[int, int] = (128, 128), stream: _Stream | None = None) -> BlockMask"),
           "Returns the result of select() as a mask. The call waits for it and copies\n"
           "it to the host.\n\n"
           "heads_q is a multiple of heads_kv, by default heads_kv itself.")
      .def_prop_ro(
          "w", [](const TopkOnDevice& held) { return held.topk().w(); },
          "The number of keys that each query keeps at most.")
      .def_prop_ro(
          "device", [](const TopkOnDevice& held) { return held.topk().device(); },
          "The index of the GPU.")
      .def_prop_ro(
          "nbytes", [](const TopkOnDevice& held) { return held.topk().size_bytes(); },
          "Bytes of device memory without the workspaces.")
      .def_prop_ro(
          "workspace_nbytes",
          [](const TopkOnDevice& held) { return held.topk().workspace_bytes(); },
          "Bytes of workspace that one call needs.")
      .def_prop_ro(
          "is_captured", [](const TopkOnDevice& held) { return held.user().is_captured(); },
          "True if a CUDA graph holds a call. This object must live as long as the graph.");
  nb::class_<DeviceIncrementalTopk>(
      module, "DeviceIncrementalTopk",
      "The top-k selection on a GPU of sequences that grow. All rows have the same\n"
      "mask.")
      .def(
          "__init__",
          [](DeviceIncrementalTopk* self, std::int64_t w, std::int64_t capacity, std::int64_t batch,
             std::int64_t heads_kv, bool keys_may_wait, std::optional<int> device,
             nb::handle stream) {
            new (self) DeviceIncrementalTopk(
                make_incremental(w, capacity, batch, heads_kv, keys_may_wait, device, stream));
          },
          nb::arg("w"), nb::arg("capacity"), nb::kw_only(), nb::arg("batch") = 1,
          nb::arg("heads_kv") = 1, nb::arg("keys_may_wait") = false,
          nb::arg("device").none() = nb::none(), nb::arg("stream").none() = nb::none(),
          nb::sig("def __init__(self, w: int, capacity: int, *, batch: int = 1, heads_kv: int = 1, "
                  "keys_may_wait: bool = False, device: int | None = None, stream: _Stream | None "
                  "= None) -> None"),
          "Prepares the selection of w keys for each query in rows of up to `capacity` keys.\n\n"
          "keys_may_wait allows keys whose first query comes in a later call of append().\n"
          "device is the index of the GPU; None means the current one.")
      .def("append", &append, nb::arg("scores"), nb::arg("among") = nb::none(),
           nb::arg("num_queries") = nb::none(), nb::kw_only(),
           nb::arg("stream").none() = nb::none(),
           nb::sig("def append(self, scores: Array, among: Array | None = None, num_queries: int | "
                   "None = None, *, stream: _Stream | None = None) -> None"),
           "Appends keys with their scores, float32 [batch, heads_kv, keys] on the GPU,\n"
           "and queries.\n\n"
           "among and num_queries are those of IncrementalTopk.append. A NaN ranks\n"
           "lowest. ValueError is raised for more keys than capacity.")
      .def("end_group", on_stream(&DeviceIncrementalTopk::end_group), nb::kw_only(),
           nb::arg("stream").none() = nb::none(),
           nb::sig("def end_group(self, *, stream: _Stream | None = None) -> None"),
           "Ends a document: no later query sees the keys so far.")
      .def("refresh", on_stream(&DeviceIncrementalTopk::refresh), nb::kw_only(),
           nb::arg("stream").none() = nb::none(),
           nb::sig("def refresh(self, *, stream: _Stream | None = None) -> None"),
           "Reads q_len and kv_len from the device after graphs were replayed. The call\n"
           "waits.")
      .def(
          "live_keys", &live_keys, nb::kw_only(), nb::arg("stream").none() = nb::none(),
          nb::sig(
              "def live_keys(self, *, stream: _Stream | None = None) -> tuple[NewArray, NewArray]"),
          "Returns the keys that later queries may keep, ascending, and their number,\n"
          "on the GPU.\n\n"
          "The keys are int32 [batch, heads_kv, min(w, capacity)], their number is\n"
          "int32 [batch, heads_kv].")
      .def("intervals", &intervals_of, nb::kw_only(), nb::arg("stream").none() = nb::none(),
           nb::sig("def intervals(self, *, stream: _Stream | None = None) -> NewArray"),
           "Returns the half-open interval of the queries so far that keep each key.\n\n"
           "It is int32 [batch, heads_kv, kv_len, 2] on the host; the call waits and\n"
           "copies.")
      .def_prop_ro("w", &DeviceIncrementalTopk::w,
                   "The number of keys that each query keeps at most.")
      .def_prop_ro("capacity", &DeviceIncrementalTopk::capacity,
                   "The largest number of keys of a row.")
      .def_prop_ro("q_len", &DeviceIncrementalTopk::q_len, "The number of queries so far.")
      .def_prop_ro("kv_len", &DeviceIncrementalTopk::kv_len, "The number of keys so far.")
      .def_prop_ro("nbytes", &DeviceIncrementalTopk::size_bytes, "Bytes of device memory.");
}

}  // namespace fdma::python
