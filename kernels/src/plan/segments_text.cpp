// The text form of plans of segments.
#include <fmt/format.h>

#include <algorithm>
#include <string>

#include "fdma/kernels/segment_iterator.hpp"
#include "plan/forms.hpp"
#include "plan/header_text.hpp"
#include "plan/splits.hpp"

namespace fdma {
namespace {

// For example "batch 0 head 4 q_tile 2, 3 tiles", and the part of a split row.
std::string work_tile_text(const PlanHeader& header, const WorkTile& work_tile) {
  const std::string heads =
      header.heads_per_tile == 1
          ? fmt::format("head {}", work_tile.head)
          : fmt::format("heads [{}, {})", work_tile.head,
                        std::min(work_tile.head + header.heads_per_tile,
                                 (work_tile.head / header.shape.group_size() + 1) *
                                     header.shape.group_size()));
  std::string text = fmt::format("batch {} {} {} {}, {} tiles", work_tile.batch, heads,
                                 header.is_backward() ? "kv_tile" : "q_tile", work_tile.q_tile,
                                 work_tile.num_tiles);
  if (work_tile.partial != kWholeRow) {
    text += fmt::format(" from {} on, partial {}", work_tile.first_tile, work_tile.partial);
  }
  return text;
}

std::string segment_text(const SegmentPlan& plan, const WorkTile& work_tile, std::int64_t index) {
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
    case PlanSegmentKind::pattern: {
      // Tiles of the pattern are counted; the text names the first and the last one.
      if (first == end) return fmt::format("pattern {} (no tiles)", segment.data_index);
      TileStep begin{segment.kind, segment.data_index, first, 0};
      TileStep last{segment.kind, segment.data_index, end - 1, 0};
      resolve_pattern(plan.pattern_arrays(), begin);
      resolve_pattern(plan.pattern_arrays(), last);
      return fmt::format("pattern {} [{}, {}) ({} tiles)", segment.data_index, begin.tile,
                         last.tile + 1, end - first);
    }
    case PlanSegmentKind::permutation:
      return fmt::format("order {}", segment.data_index);
    case PlanSegmentKind::closed_form:
      break;
  }
  return {};
}

}  // namespace

std::string to_text(const PlanHeader& header, const SegmentPlan& plan, std::int64_t max_shown) {
  const std::int64_t num_work_tiles = count_work_tiles(header, plan);
  std::string text = header_text(header, num_work_tiles, size_bytes(plan));
  if (!plan.kv_permutations.empty()) {
    text +=
        fmt::format("kv permutations {} ({} keys), keys moved {}\n", plan.kv_permutations.size(),
                    plan.permuted_keys.size(), header.counts.moved_keys);
  }
  if (!plan.split_rows.empty()) {
    text += fmt::format("split rows {}, partial results {}\n", plan.split_rows.size(),
                        num_partials(plan));
  }
  text += to_text(header.report);
  const std::int64_t shown = std::min(max_shown, num_work_tiles);
  for (std::int64_t i = 0; i < shown; ++i) {
    const WorkTile& work_tile = plan.work_tiles[static_cast<std::size_t>(i)];
    text += fmt::format("work tile {}: {}:", i, work_tile_text(header, work_tile));
    for (std::int64_t s = work_tile.first_segment;
         s < work_tile.first_segment + work_tile.num_segments; ++s) {
      text += fmt::format("{} {}", s == work_tile.first_segment ? "" : ",",
                          segment_text(plan, work_tile, s));
    }
    text += '\n';
  }
  return text + rest_text(num_work_tiles - shown);
}

}  // namespace fdma
