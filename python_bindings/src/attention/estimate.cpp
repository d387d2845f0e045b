// DeviceProfile and estimate.
//
// The report goes to Python as one dict with the keys of `fdma-maskc estimate --json`. The Python
// package turns it into an object of its class.
#include "fdma/kernels/estimate.hpp"

#include <fmt/format.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "arrays/python_error.hpp"
#include "bindings.hpp"

namespace nb = nanobind;

namespace fdma::python {
namespace {

constexpr std::int64_t kMaxHeads = 65536;
constexpr std::int64_t kMaxWorkers = std::int64_t{1} << 20;

[[noreturn]] void refuse(std::string message) {
  throw PythonError({ErrorCode::invalid_argument, std::move(message)});
}

std::int32_t checked(std::string_view name, std::int64_t value, std::int64_t low,
                     std::int64_t high) {
  if (value < low || value > high) {
    refuse(fmt::format("{}: expected {} to {}, got {}", name, low, high, value));
  }
  return static_cast<std::int32_t>(value);
}

// The number of batch elements or heads. The mask fixes it unless the mask has only 1.
std::int32_t extent(std::string_view name, std::int64_t of_mask, std::int64_t value) {
  if (of_mask != 1 && value != of_mask) {
    refuse(fmt::format("{}: the mask has {} of its own, got {}", name, of_mask, value));
  }
  return checked(name, value, 1, kMaxHeads);
}

template <class T>
nb::object or_none(const std::optional<T>& value) {
  return value ? nb::cast(*value) : nb::none();
}

nb::object text_or_none(const std::string& text) {
  return text.empty() ? nb::none() : nb::object(nb::str(text.c_str(), text.size()));
}

nb::str text_of(std::string_view text) { return nb::str(text.data(), text.size()); }

nb::dict tile_dict(BlockShape tile) {
  nb::dict result;
  result["q"] = tile.block_q;
  result["kv"] = tile.block_kv;
  return result;
}

nb::dict time_dict(const PlanEstimate& estimate) {
  nb::dict result;
  result["time_us"] = estimate.time_us;
  result["sustained_time_us"] = estimate.sustained_time_us;
  result["makespan_us"] = estimate.schedule.makespan_us;
  result["memory_us"] = estimate.memory_us;
  result["launch_us"] = estimate.launch_us;
  result["query_us"] = estimate.query_us;
  result["busy_us"] = estimate.schedule.busy_us;
  result["longest_item_us"] = estimate.schedule.longest_item_us;
  result["load_balance"] = estimate.schedule.balance();
  result["num_items"] = estimate.schedule.num_work_tiles;
  result["memory_bytes"] = estimate.memory_bytes;
  result["memory_bound"] = estimate.is_memory_bound();
  result["computed_cells"] = estimate.work.cells();
  return result;
}

nb::dict shape_dict(const AttentionShape& shape) {
  nb::dict result;
  result["batch"] = shape.batch;
  result["heads_q"] = shape.heads_q;
  result["heads_kv"] = shape.heads_kv;
  result["head_dim"] = shape.head_dim;
  result["head_dim_v"] = shape.head_dim_v;
  result["dtype"] = text_of(to_string(shape.k_dtype));
  return result;
}

nb::dict plan_dict(const PlanCounts& counts, std::int64_t bytes) {
  nb::dict result;
  result["full_tiles"] = counts.full_tiles;
  result["bitmap_tiles"] = counts.bitmap_tiles;
  result["row_tiles"] = counts.row_tiles;
  result["column_tiles"] = counts.column_tiles;
  result["column_entries"] = counts.column_entries;
  result["gather_chunks"] = counts.gather_chunks;
  result["gather_entries"] = counts.gather_entries;
  result["moved_keys"] = counts.moved_keys;
  result["empty_items"] = counts.empty_items;
  result["bytes"] = bytes;
  return result;
}

nb::dict choice_dict(const PlanDecision& decision) {
  nb::dict result;
  nb::list alternatives;
  for (const PlanAlternative& each : decision.alternatives) {
    nb::dict entry;
    entry["name"] = each.name;
    entry["cost_us"] = or_none(each.cost_us);
    entry["reason"] = text_or_none(each.reason);
    alternatives.append(entry);
  }
  result["subject"] = decision.subject;
  result["taken"] = decision.alternatives[decision.taken].name;
  result["alternatives"] = alternatives;
  result["rule"] = text_or_none(decision.rule);
  return result;
}

nb::dict report_dict(const SavingsReport& report) {
  nb::dict result;
  nb::dict device;
  device["name"] = text_of(report.device);
  device["provisional"] = report.is_provisional;
  device["assumed"] = report.is_assumed;
  device["num_workers"] = report.num_workers;
  result["device"] = device;
  result["direction"] = text_of(to_string(report.direction));
  result["shape"] = shape_dict(report.shape);
  result["tile"] = tile_dict(report.tile);
  result["columns"] = text_of(to_string(report.columns));
  nb::list score;
  for (const std::string_view part : part_names(report.score)) score.append(text_of(part));
  result["score"] = score;
  result["speedup"] = report.speedup;
  result["masked"] = time_dict(report.masked);
  result["full"] = time_dict(report.dense);
  result["flops"] = report.flops;
  result["full_flops"] = report.dense_flops;
  result["allowed_pairs"] = report.allowed_pairs;
  result["total_pairs"] = report.total_pairs;
  nb::dict tiles;
  tiles["full"] = report.full_tiles;
  tiles["partial"] = report.partial_tiles;
  tiles["empty"] = report.empty_tiles;
  result["tiles"] = tiles;
  result["partial_dead_cells"] = report.partial_dead_cells;
  result["wasted_share"] = report.wasted_share;
  result["plan"] = plan_dict(report.counts, report.plan_bytes);
  nb::list choices;
  for (const PlanDecision& decision : report.choices.decisions)
    choices.append(choice_dict(decision));
  result["choices"] = choices;
  nb::list formats;
  for (const FormatSize& size : report.formats) {
    nb::dict entry;
    entry["format"] = text_of(to_string(size.format));
    entry["bytes"] = or_none(size.bytes);
    entry["reason"] = text_or_none(size.reason);
    formats.append(entry);
  }
  result["formats"] = formats;
  nb::dict dense;
  dense["bit"] = report.dense_bit_bytes;
  dense["bool"] = report.dense_bool_bytes;
  dense["float"] = report.dense_float_bytes;
  result["dense_bytes"] = dense;
  result["best_format"] = text_of(to_string(report.best_format));
  nb::list candidates;
  for (const Candidate& candidate : report.candidates) {
    nb::dict entry;
    entry["tile"] = tile_dict(candidate.tile);
    entry["columns"] = text_of(to_string(candidate.columns));
    entry["time_us"] = or_none(candidate.time_us);
    entry["reason"] = text_or_none(candidate.reason);
    candidates.append(entry);
  }
  result["candidates"] = candidates;
  return result;
}

nb::dict estimate_mask(const BlockMask& mask, const DeviceProfile& profile, std::int64_t batch,
                       std::int64_t heads, std::int64_t heads_kv, std::int64_t head_dim,
                       std::int64_t head_dim_v, std::string_view dtype, std::string_view direction,
                       std::optional<std::pair<std::int32_t, std::int32_t>> tile,
                       std::string_view columns, std::int64_t workers, bool count_all,
                       std::string_view score) {
  AttentionShape shape;
  shape.heads_q = extent("heads", mask.shape.num_heads, heads);
  shape.batch = extent("batch", mask.shape.num_batches, batch);
  shape.heads_kv = checked("heads_kv", heads_kv, 1, heads);
  if (heads % heads_kv != 0) {
    refuse(fmt::format("heads_kv: expected a divisor of heads {}, got {}", heads, heads_kv));
  }
  shape.head_dim = checked("head_dim", head_dim, 1, kMaxHeadDim);
  shape.head_dim_v = checked("head_dim_v", head_dim_v, 1, kMaxHeadDim);
  shape.q_lens = mask.shape.q_lens;
  shape.kv_lens = mask.shape.kv_lens;
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype =
      value_or_throw(parse_attention_dtype(dtype));
  EstimateOptions options;
  options.direction = value_or_throw(parse_direction(direction));
  options.columns = value_or_throw(parse_column_mode(columns));
  if (tile) {
    options.tile = {tile->first, tile->second};
    if (!validate(options.tile)) {
      refuse(fmt::format("tile: expected two multiples of 16 from 16 to {}, got {} and {}",
                         kMaxBlockSide, tile->first, tile->second));
    }
  }
  options.num_workers = checked("workers", workers, 0, kMaxWorkers);
  options.count_all = count_all;
  if (!score.empty()) options.score = value_or_throw(parse_score(score));
  SavingsReport report;
  {
    const nb::gil_scoped_release released;
    report = value_or_throw(estimate(mask, shape, profile, options));
  }
  return report_dict(report);
}

nb::dict predict_plan(const AttentionPlan& plan, const DeviceProfile& profile, bool deterministic,
                      bool corrects_delta) {
  PlanEstimate predicted;
  {
    const nb::gil_scoped_release released;
    predicted = value_or_throw(estimate_plan(plan, profile, {deterministic, corrects_delta}));
  }
  return time_dict(predicted);
}

std::vector<std::string> profile_names() {
  std::vector<std::string> names;
  for (const std::string_view name : shipped_profile_names()) names.emplace_back(name);
  return names;
}

}  // namespace

void bind_estimate(nb::module_& module) {
  nb::class_<DeviceProfile>(module, "DeviceProfile",
                            "What work costs on a device (docs/estimates.md).")
      .def_static(
          "shipped", [](std::string_view name) { return value_or_throw(shipped_profile(name)); },
          nb::arg("name"),
          "Returns the profile of this name that comes with the library. Another name\n"
          "is a ValueError.")
      .def_static("shipped_names", &profile_names,
                  "Returns the names of the profiles that come with the library.")
      .def_static(
          "from_json",
          [](std::string_view text) { return value_or_throw(profile_from_json(text)); },
          nb::arg("text"),
          "Returns the profile of a JSON document. ValueError names a wrong member.")
      .def_static(
          "read", [](const std::string& path) { return value_or_throw(read_profile(path)); },
          nb::arg("path"), "Reads a profile from a file that fdma-maskc calibrate wrote.")
      .def(
          "to_json", [](const DeviceProfile& profile) { return to_json(profile); },
          "Returns the profile as a JSON document.")
      .def_prop_ro(
          "name", [](const DeviceProfile& profile) { return profile.name; },
          "The name of the profile.")
      .def_prop_ro(
          "source", [](const DeviceProfile& profile) { return profile.source; },
          "A sentence that says where the constants come from.")
      .def_prop_ro(
          "provisional", [](const DeviceProfile& profile) { return profile.is_provisional; },
          "True if constants were not measured on the device.")
      .def_prop_ro(
          "num_workers", [](const DeviceProfile& profile) { return profile.num_workers; },
          "The number of threads or multiprocessors.")
      .def("__repr__", [](const DeviceProfile& profile) {
        return fmt::format("<DeviceProfile '{}', {} workers{}>", profile.name, profile.num_workers,
                           profile.is_provisional ? ", provisional" : "");
      });
  module.def(
      "estimate", &estimate_mask, nb::arg("mask"), nb::arg("profile"), nb::kw_only(),
      nb::arg("batch"), nb::arg("heads"), nb::arg("heads_kv"), nb::arg("head_dim"),
      nb::arg("head_dim_v"), nb::arg("dtype") = "bfloat16", nb::arg("direction") = "forward",
      nb::arg("tile") = nb::none(), nb::arg("columns") = "automatic", nb::arg("workers") = 0,
      nb::arg("count_all") = false, nb::arg("score") = "",
      nb::sig("def estimate(mask: BlockMask, profile: DeviceProfile, *, batch: int, heads: "
              "int, heads_kv: int, head_dim: int, head_dim_v: int, dtype: str = 'bfloat16', "
              "direction: str = 'forward', tile: tuple[int, int] | None = None, columns: str "
              "= 'automatic', workers: int = 0, count_all: bool = False, score: str = '') "
              "-> dict[str, object]"),
      "Returns what `fdma-maskc estimate --json` prints for this mask, without its\n"
      "member `mask`.\n\n"
      "tile is (queries, keys); None means the first of the profile. workers 0\n"
      "means those of the profile. score has the names of parts, separated by\n"
      "commas. Times are in microseconds.");
  module.def(
      "estimate_plan", &predict_plan, nb::arg("plan"), nb::arg("profile"), nb::kw_only(),
      nb::arg("deterministic") = false, nb::arg("corrects_delta") = false,
      nb::sig("def estimate_plan(plan: AttentionPlan, profile: DeviceProfile, *, "
              "deterministic: bool = False, corrects_delta: bool = False) -> dict[str, object]"),
      "Returns the predicted time of a plan, as the member `masked` of `estimate`.\n\n"
      "deterministic and corrects_delta add the cost of deterministic gradients and\n"
      "of the correction pass to a backward plan. Times are in microseconds.");
}

}  // namespace fdma::python
