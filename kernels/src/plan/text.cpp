// Names of the options of plans, and the text form of a plan as far as forms share it.
#include <fmt/format.h>

#include <string>
#include <vector>

#include "fdma/kernels/plan.hpp"
#include "plan/forms.hpp"
#include "plan/header_text.hpp"

namespace fdma {

std::string_view to_string(Direction direction) {
  return direction == Direction::forward ? "forward" : "backward";
}

Result<Direction> parse_direction(std::string_view name) {
  for (const Direction direction : {Direction::forward, Direction::backward}) {
    if (name == to_string(direction)) return direction;
  }
  return Error{ErrorCode::invalid_argument,
               fmt::format("direction: expected forward or backward, got '{}'", name)};
}

std::string_view to_string(ColumnMode mode) {
  switch (mode) {
    case ColumnMode::automatic:
      return "automatic";
    case ColumnMode::scan:
      return "scan";
    case ColumnMode::gather:
      return "gather";
    case ColumnMode::reorder:
      return "reorder";
  }
  return "unknown";
}

Result<ColumnMode> parse_column_mode(std::string_view name) {
  for (const ColumnMode mode :
       {ColumnMode::automatic, ColumnMode::scan, ColumnMode::gather, ColumnMode::reorder}) {
    if (name == to_string(mode)) return mode;
  }
  return Error{ErrorCode::invalid_argument,
               fmt::format("columns: expected automatic, scan, gather or reorder, got '{}'", name)};
}

std::string_view to_string(PlanForm form) {
  switch (form) {
    case PlanForm::segments:
      return "segments";
    case PlanForm::parametric:
      return "parametric";
  }
  return "unknown";
}

Result<PlanForm> parse_plan_form(std::string_view name) {
  for (const PlanForm form : {PlanForm::segments, PlanForm::parametric}) {
    if (name == to_string(form)) return form;
  }
  return Error{ErrorCode::invalid_argument,
               fmt::format("form: expected segments or parametric, got '{}'", name)};
}

namespace {

std::string lengths_text(const std::vector<std::int64_t>& lengths) {
  return fmt::format("{}", fmt::join(lengths, ","));
}

}  // namespace

std::string header_text(const PlanHeader& header, std::int64_t num_work_tiles,
                        std::int64_t size_bytes) {
  const AttentionShape& shape = header.shape;
  return fmt::format(
      "plan {}{} tile {}x{}{} score {}\n"
      "shape batch {} heads {}/{} q_len {} kv_len {} head_dim {}/{} dtypes {} {} {} -> {}\n"
      "work tiles {} ({} empty), {} bytes\n"
      "tiles full {} bitmap {} rows {} columns {} ({} entries) gather {} ({} entries)\n",
      to_string(header.backend), header.is_backward() ? " backward" : "", header.tile.block_q,
      header.tile.block_kv,
      header.heads_per_tile == 1 ? "" : fmt::format(" of {} heads", header.heads_per_tile),
      to_string(header.score), shape.batch, shape.heads_q, shape.heads_kv,
      lengths_text(shape.q_lens), lengths_text(shape.kv_lens), shape.head_dim, shape.head_dim_v,
      to_string(shape.q_dtype), to_string(shape.k_dtype), to_string(shape.v_dtype),
      to_string(shape.out_dtype), num_work_tiles, header.counts.empty_items, size_bytes,
      header.counts.full_tiles, header.counts.bitmap_tiles, header.counts.row_tiles,
      header.counts.column_tiles, header.counts.column_entries, header.counts.gather_chunks,
      header.counts.gather_entries);
}

std::string rest_text(std::int64_t num_not_shown) {
  return num_not_shown > 0 ? fmt::format(".. {} more work tiles\n", num_not_shown) : std::string();
}

std::string to_text(const AttentionPlan& plan, std::int64_t max_work_tiles) {
  return std::visit([&](const auto& of_form) { return to_text(plan, of_form, max_work_tiles); },
                    plan.form);
}

}  // namespace fdma
