// Names and the text form of a plan.
#include <fmt/format.h>

#include <algorithm>

#include "fdma/kernels/plan.hpp"
#include "plan/closed_form.hpp"
#include "plan/splits.hpp"

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

// For example "batch 0 head 4 q_tile 2, 3 tiles", and the part of a split row.
std::string work_tile_text(const AttentionPlan& plan, const WorkTile& work_tile) {
  const std::string heads =
      plan.heads_per_tile == 1
          ? fmt::format("head {}", work_tile.head)
          : fmt::format(
                "heads [{}, {})", work_tile.head,
                std::min(work_tile.head + plan.heads_per_tile,
                         (work_tile.head / plan.shape.group_size() + 1) * plan.shape.group_size()));
  std::string text =
      fmt::format("batch {} {} {} {}, {} tiles", work_tile.batch, heads,
                  plan.is_backward() ? "kv_tile" : "q_tile", work_tile.q_tile, work_tile.num_tiles);
  if (work_tile.partial != kWholeRow) {
    text += fmt::format(" from {} on, partial {}", work_tile.first_tile, work_tile.partial);
  }
  return text;
}

std::string worklist_text(std::int64_t index, const KvWorkTile& work_tile) {
  return fmt::format(
      "work tile {}: batch {} kv_head {} key_tile {}: tiles [{}, {}), full [{}, {})\n", index,
      work_tile.batch, work_tile.kv_head, work_tile.key_tile, work_tile.begin_tile,
      work_tile.end_tile, work_tile.full_begin, work_tile.full_end);
}

std::string segment_text(const AttentionPlan& plan, const WorkTile& work_tile, std::int64_t index) {
  const PlanSegment& segment = plan.segments[static_cast<std::size_t>(index)];
  const std::int32_t first = segment.first_tile + work_tile.step * segment.step_first;
  const std::int32_t end = segment.end_tile + work_tile.step * segment.step_end;
  switch (segment.kind) {
    case PlanSegmentKind::full:
      return fmt::format("full [{}, {})", first, end);
    case PlanSegmentKind::bitmap:
      return fmt::format("bitmap {} [{}, {})", segment.data_index, first, end);
    case PlanSegmentKind::rows:
      return fmt::format("rows {} [{}, {})", segment.data_index, first, end);
    case PlanSegmentKind::columns:
      return fmt::format("columns {} [{}, {})", segment.data_index, first, end);
    case PlanSegmentKind::gather: {
      const KvIndexList& list = plan.kv_index_lists[static_cast<std::size_t>(segment.data_index)];
      return fmt::format("gather {} ({} keys, {} full)", segment.data_index, list.num_entries,
                         list.num_full);
    }
    case PlanSegmentKind::permutation:
      return fmt::format("order {}", segment.data_index);
    case PlanSegmentKind::closed_form:
      break;
  }
  return {};
}

}  // namespace

std::string to_text(const AttentionPlan& plan, std::int64_t max_work_tiles) {
  if (plan.is_closed_form()) return closed_form_text_of(plan, max_work_tiles);
  const AttentionShape& shape = plan.shape;
  const KvWorklist& lists = plan.kv_worklist;
  std::string text = fmt::format(
      "plan {}{} tile {}x{}{} score {}\n"
      "shape batch {} heads {}/{} q_len {} kv_len {} head_dim {}/{} dtypes {} {} {} -> {}\n"
      "work tiles {} ({} empty), {} bytes\n"
      "tiles full {} bitmap {} rows {} columns {} ({} entries) gather {} ({} entries)\n",
      to_string(plan.backend), plan.is_backward() ? " backward" : "", plan.tile.block_q,
      plan.tile.block_kv,
      plan.heads_per_tile == 1 ? "" : fmt::format(" of {} heads", plan.heads_per_tile),
      to_string(plan.score.kind), shape.batch, shape.heads_q, shape.heads_kv,
      lengths_text(shape.q_lens), lengths_text(shape.kv_lens), shape.head_dim, shape.head_dim_v,
      to_string(shape.q_dtype), to_string(shape.k_dtype), to_string(shape.v_dtype),
      to_string(shape.out_dtype), plan.num_work_tiles(), plan.counts.empty_items, plan.size_bytes(),
      plan.counts.full_tiles, plan.counts.bitmap_tiles, plan.counts.row_tiles,
      plan.counts.column_tiles, plan.counts.column_entries, plan.counts.gather_chunks,
      plan.counts.gather_entries);
  if (!plan.kv_permutations.empty()) {
    text +=
        fmt::format("kv permutations {} ({} keys), keys moved {}\n", plan.kv_permutations.size(),
                    plan.permuted_keys.size(), plan.counts.moved_keys);
  }
  if (plan.has_worklist()) {
    text += fmt::format("listed keys {} in tiles of {}, accumulator rows {}, keys moved {}\n",
                        lists.keys.size(), kWorklistTile, lists.accum_keys.size(),
                        plan.counts.moved_keys);
  }
  if (!plan.split_rows.empty()) {
    text += fmt::format("split rows {}, partial results {}\n", plan.split_rows.size(),
                        num_partials(plan));
  }
  const std::int64_t shown = std::min(max_work_tiles, plan.num_work_tiles());
  for (std::int64_t i = 0; i < shown; ++i) {
    if (plan.has_worklist()) {
      text += worklist_text(i, lists.work_tiles[static_cast<std::size_t>(i)]);
      continue;
    }
    const WorkTile& work_tile = plan.work_tiles[static_cast<std::size_t>(i)];
    text += fmt::format("work tile {}: {}:", i, work_tile_text(plan, work_tile));
    for (std::int64_t s = work_tile.first_segment;
         s < work_tile.first_segment + work_tile.num_segments; ++s) {
      text += fmt::format("{} {}", s == work_tile.first_segment ? "" : ",",
                          segment_text(plan, work_tile, s));
    }
    text += '\n';
  }
  if (shown < plan.num_work_tiles()) {
    text += fmt::format(".. {} more work tiles\n", plan.num_work_tiles() - shown);
  }
  return text;
}

}  // namespace fdma
