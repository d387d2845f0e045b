// Decides on kv worklists for backward plans. They pay where tiles of the mask in kv permutation
// have few cells: a key of learned top-k or of random eviction is live in every tile between its
// begin and its end, but few of its neighbours are. Both ways visit tiles of 128 x 128, and their
// work tiles are priced by the cost model as estimate_plan prices them.
//
// Example     random eviction, 32,768 tokens: of 32,896 tiles of a head a quarter is full; sorted
//             by live range 26,867 are visited, five of six of them full
// Not worth   causal: every key is live to the end, and only the diagonal is not full
#include "plan/make_kv_worklist.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "fdma/formats/convert.hpp"
#include "plan/groups.hpp"
#include "plan/kv_worklist.hpp"
#include "plan/query_passes.hpp"

namespace fdma {
namespace {

// The mask group of each KV head of each batch element, if its query heads have one in common.
std::optional<std::vector<std::int32_t>> groups_of_kv_heads(const BlockMask& mask,
                                                            const AttentionShape& shape) {
  std::vector<std::int32_t> groups;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t h = 0; h < shape.heads_q; ++h) {
      const std::int32_t group = group_of(mask, b, h);
      if (h % shape.group_size() == 0) {
        groups.push_back(group);
      } else if (group != groups.back()) {
        return std::nullopt;
      }
    }
  }
  return groups;
}

// Whether the cells of all groups are stored as intervals of keys. Other masks have full or empty
// tiles to skip, or too many intervals.
bool are_columns(const BlockMask& mask) {
  if (std::holds_alternative<std::vector<ColumnIntervals>>(mask.groups)) return true;
  const auto* segments = std::get_if<std::vector<SegmentMask>>(&mask.groups);
  return segments != nullptr &&
         std::all_of(segments->begin(), segments->end(),
                     [](const SegmentMask& each) { return !each.column_offsets.empty(); });
}

ColumnIntervals columns_of_group(const BlockMask& mask, std::int32_t group) {
  const auto g = static_cast<std::size_t>(group);
  if (const auto* columns = std::get_if<std::vector<ColumnIntervals>>(&mask.groups)) {
    return (*columns)[g];
  }
  if (const auto* segments = std::get_if<std::vector<SegmentMask>>(&mask.groups)) {
    return columns_from_segment((*segments)[g]);
  }
  return columns_from_segment(segment_of_group(mask, group, {kWorklistTile, kWorklistTile}));
}

std::int64_t tiles_of(const KvWorkTile& work_tile) {
  return work_tile.end_tile - work_tile.begin_tile;
}

// The cost to one worker of a work tile of a KV head, which is a key tile against `full` and
// `partial` query tiles of each query head of the group.
double tiles_us(const CostModel& costs, std::int32_t group_size, std::int64_t full,
                std::int64_t partial) {
  PlanWork work;
  const std::int64_t cells = std::int64_t{kWorklistTile} * kWorklistTile;
  work.of(PlanSegmentKind::full) = {group_size * full, group_size * full * cells};
  work.of(PlanSegmentKind::rows) = {group_size * partial, group_size * partial * cells};
  return costs.work_tile_us(work);
}

// The same for the mask as it is, whose key tiles walk the query tiles that have a cell.
double visited_us(const ColumnIntervals& columns, const CostModel& costs, std::int32_t group_size) {
  const SegmentMask mask = segment_from_columns(columns, {kWorklistTile, kWorklistTile});
  struct Change {
    std::int64_t full = 0, partial = 0;
  };
  // Tiles of each column, as changes from the column before.
  std::vector<Change> changes(static_cast<std::size_t>(mask.num_tile_cols()) + 1);
  for_each_tile_row(mask, [&](std::int32_t, std::span<const TileSegment> segments) {
    for (const TileSegment& segment : segments) {
      const auto member = segment.kind == SegmentKind::full ? &Change::full : &Change::partial;
      ++(changes[static_cast<std::size_t>(segment.first_tile)].*member);
      --(changes[static_cast<std::size_t>(segment.end_tile)].*member);
    }
  });
  double us = 0;
  Change tiles;
  for (std::size_t col = 0; col + 1 < changes.size(); ++col) {
    tiles.full += changes[col].full;
    tiles.partial += changes[col].partial;
    us += tiles_us(costs, group_size, tiles.full, tiles.partial);
  }
  return us;
}

class ListsPlanner {
 public:
  ListsPlanner(const BlockMask& mask, const PlanOptions& options, const CostModel& costs,
               PlanHeader& header)
      : mask_(mask),
        header_(header),
        costs_(costs),
        is_asked_for_(options.columns == ColumnMode::reorder),
        groups_(static_cast<std::size_t>(mask.num_groups())) {}

  Result<std::optional<KvWorklist>> run() {
    const AttentionShape& shape = header_.shape;
    if (!is_asked_for_ && !are_columns(mask_)) {
      return {refuse("keys have no query intervals of their own")};
    }
    const auto group_of_head = groups_of_kv_heads(mask_, shape);
    if (!group_of_head) return {refuse("query heads of a KV head have different masks")};
    std::int64_t w = 0;
    for (const std::int32_t g : *group_of_head) {
      Group& group = groups_[static_cast<std::size_t>(g)];
      if (!group.columns) {
        group.columns = columns_of_group(mask_, g);
        group.w = most_seen(group.columns->intervals, group.columns->q_len);
        w = std::max(w, group.w);
      }
    }
    segment_ = segment_tiles(shape, w);
    double visited_us = 0, listed_us = 0;
    std::int64_t num_work_tiles = 0, num_accum_rows = 0, num_keys = 0;
    for (const std::int32_t g : *group_of_head) {
      Group& group = groups_[static_cast<std::size_t>(g)];
      if (!group.has_worklist) {
        list(group);
        num_keys += static_cast<std::int64_t>(group.lists.keys.size());
      }
      visited_us += group.visited_us;
      listed_us += group.listed_us;
      num_work_tiles += static_cast<std::int64_t>(group.lists.work_tiles.size());
      num_accum_rows += static_cast<std::int64_t>(group.lists.accum_keys.size());
    }
    if (num_work_tiles == 0) return {refuse("no key is seen")};
    const std::int32_t num_workers = header_.report.num_workers;
    const double least_gain = header_.backend.traits().least_gains.worklist;
    visited_us /= num_workers;
    listed_us = listed_us / num_workers + costs_.memory_us(key_pass_bytes(shape, num_accum_rows));
    const bool is_taken = is_asked_for_ || listed_us <= (1 - least_gain) * visited_us;
    PlanDecision decision{"kv worklist",
                          {{"tiles of the mask", visited_us, {}}, {"worklist", listed_us, {}}},
                          is_taken ? std::size_t{1} : 0,
                          fmt::format("a worklist gains at least {:g} %", 100 * least_gain)};
    if (is_asked_for_) {
      decision.alternatives = {{"worklist", listed_us, "asked for"}};
      decision.taken = 0;
    }
    header_.report.decisions.push_back(std::move(decision));
    if (!is_taken) return {std::nullopt};
    if (const std::int64_t count = std::max({num_work_tiles, num_accum_rows, num_keys});
        count > std::numeric_limits<std::int32_t>::max()) {
      return Error{ErrorCode::unsupported,
                   fmt::format("mask: {} worklist entries, work tiles or accumulator rows, but a "
                               "plan holds at most 2^31 - 1; make it with columns = scan",
                               count)};
    }
    return {placed(*group_of_head)};
  }

 private:
  // Leaves the tiles of the mask, for a reason that is no cost.
  std::nullopt_t refuse(std::string reason) {
    header_.report.decisions.push_back(
        {"kv worklist",
         {{"tiles of the mask", {}, {}}, {"worklist", {}, std::move(reason)}},
         0,
         {}});
    return std::nullopt;
  }

  struct Group {
    std::optional<ColumnIntervals> columns;
    std::int64_t w = 0;  // keys that one query sees, at most
    bool has_worklist = false;
    HeadWorklist lists;
    double visited_us = 0, listed_us = 0;
    std::int32_t first_tile = -1;
  };

  void list(Group& group) const {
    const ColumnIntervals& columns = *group.columns;
    group.lists =
        make_head_worklist(columns.offsets, columns.intervals, columns.q_len, segment_, group.w);
    group.has_worklist = true;
    const std::int32_t group_size = header_.shape.group_size();
    for (const KvWorkTile& work_tile : group.lists.work_tiles) {
      const std::int64_t full = work_tile.full_end - work_tile.full_begin;
      group.listed_us += tiles_us(costs_, group_size, full, tiles_of(work_tile) - full);
    }
    if (!is_asked_for_) group.visited_us = visited_us(columns, costs_, group_size);
  }

  KvWorklist placed(const std::vector<std::int32_t>& group_of_head) {
    KvWorklist lists;
    const std::int32_t heads_kv = header_.shape.heads_kv;
    for (std::size_t i = 0; i < group_of_head.size(); ++i) {
      Group& group = groups_[static_cast<std::size_t>(group_of_head[i])];
      if (group.first_tile < 0) group.first_tile = append_keys(group.lists, lists);
      const auto row = static_cast<std::int32_t>(i);
      append_work_tiles(group.lists, group.first_tile, row / heads_kv, row % heads_kv, heads_kv,
                        lists);
    }
    return lists;
  }

  const BlockMask& mask_;
  PlanHeader& header_;
  const CostModel& costs_;
  bool is_asked_for_;
  std::int32_t segment_ = 1;  // tiles
  std::vector<Group> groups_;
};

}  // namespace

PlanCounts count_kv_worklist(const AttentionShape& shape, const KvWorklist& lists) {
  PlanCounts counts;
  const std::int64_t group_size = shape.group_size();
  for (const KvWorkTile& work_tile : lists.work_tiles) {
    const std::int64_t full = work_tile.full_end - work_tile.full_begin;
    counts.full_tiles += group_size * full;
    counts.row_tiles += group_size * (tiles_of(work_tile) - full);
  }
  // A key is counted with its first work tile.
  std::vector<std::pair<std::int32_t, std::int32_t>> tiles;
  for (const KvWorkTile& work_tile : lists.work_tiles) {
    tiles.emplace_back(work_tile.batch * shape.heads_kv + work_tile.kv_head, work_tile.key_tile);
  }
  std::sort(tiles.begin(), tiles.end());
  tiles.erase(std::unique(tiles.begin(), tiles.end()), tiles.end());
  for (const auto& [row, tile] : tiles) {
    const auto first = lists.keys.begin() + std::ptrdiff_t{tile} * kWorklistTile;
    counts.moved_keys += std::count_if(first, first + kWorklistTile,
                                       [](const WorklistEntry& each) { return each.key >= 0; });
  }
  return counts;
}

std::int32_t worklist_segment(const AttentionShape& shape, const KvWorklist& lists) {
  std::set<std::int32_t> known;  // first tiles of lists
  std::int64_t w = 0;
  for (std::size_t i = 0; i < lists.work_tiles.size();) {
    const KvWorkTile& head = lists.work_tiles[i];
    std::size_t end = i;
    std::int32_t first_tile = head.key_tile;
    for (; end < lists.work_tiles.size(); ++end) {
      const KvWorkTile& work_tile = lists.work_tiles[end];
      if (work_tile.batch != head.batch || work_tile.kv_head != head.kv_head) break;
      first_tile = std::min(first_tile, work_tile.key_tile);
    }
    if (!known.insert(first_tile).second) {
      i = end;
      continue;
    }
    std::vector<Interval> intervals;
    for (; i < end; ++i) {
      const auto first =
          lists.keys.begin() + std::ptrdiff_t{lists.work_tiles[i].key_tile} * kWorklistTile;
      std::for_each(first, first + kWorklistTile, [&](const WorklistEntry& each) {
        intervals.push_back({each.q_begin, each.q_end});
      });
    }
    w = std::max(w, most_seen(intervals, shape.max_q_len()));
  }
  return segment_tiles(shape, w);
}

Result<std::optional<KvWorklist>> make_kv_worklist(const BlockMask& mask,
                                                   const PlanOptions& options,
                                                   const CostModel& costs, PlanHeader& header) {
  return ListsPlanner(mask, options, costs, header).run();
}

}  // namespace fdma
