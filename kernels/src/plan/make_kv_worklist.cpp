// Decides on kv worklists for backward plans. They pay where tiles of the mask in kv permutation
// have few cells: a key of learned top-k or of random eviction is live in every tile between its
// begin and its end, but few of its neighbours are. Both ways visit tiles of 128 x 128 at the same
// speed, so their tile counts are compared. A work tile of a worklist costs one additional tile,
// because its keys are loaded and its gradients stored one by one.
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
#include <variant>
#include <vector>

#include "fdma/formats/convert.hpp"
#include "plan/groups.hpp"
#include "plan/kv_worklist.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kWorkTileTiles = 1;
constexpr double kLeastGain = 0.1;

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

// Number of tiles of the mask in kv permutation that have a cell.
std::int64_t tiles_of(const ColumnIntervals& columns) {
  const BlockShape tile{kWorklistTile, kWorklistTile};
  const TileCounts counts = count_tiles(segment_from_columns(columns, tile));
  return counts.full + counts.partial;
}

class ListsPlanner {
 public:
  ListsPlanner(const BlockMask& mask, const AttentionShape& shape, const PlanOptions& options)
      : mask_(mask),
        shape_(shape),
        is_asked_for_(options.columns == ColumnMode::reorder),
        groups_(static_cast<std::size_t>(mask.num_groups())) {}

  Result<std::optional<KvWorklist>> run() {
    if (!is_asked_for_ && !are_columns(mask_)) return {std::nullopt};
    const auto group_of_head = groups_of_kv_heads(mask_, shape_);
    if (!group_of_head) return {std::nullopt};
    std::int64_t w = 0;
    for (const std::int32_t g : *group_of_head) {
      Group& group = groups_[static_cast<std::size_t>(g)];
      if (!group.columns) {
        group.columns = columns_of_group(mask_, g);
        group.w = most_seen(group.columns->intervals, group.columns->q_len);
        w = std::max(w, group.w);
      }
    }
    segment_ = segment_tiles(shape_, w);
    std::int64_t visited = 0, listed = 0, num_work_tiles = 0, num_accum_rows = 0, num_keys = 0;
    for (const std::int32_t g : *group_of_head) {
      Group& group = groups_[static_cast<std::size_t>(g)];
      if (!group.has_worklist) {
        list(group);
        num_keys += static_cast<std::int64_t>(group.lists.keys.size());
      }
      visited += group.visited;
      listed += group.listed;
      num_work_tiles += static_cast<std::int64_t>(group.lists.work_tiles.size());
      num_accum_rows += static_cast<std::int64_t>(group.lists.accum_keys.size());
    }
    const double most = (1 - kLeastGain) * static_cast<double>(visited);
    if (num_work_tiles == 0 || (!is_asked_for_ && static_cast<double>(listed) > most)) {
      return {std::nullopt};
    }
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
  struct Group {
    std::optional<ColumnIntervals> columns;
    std::int64_t w = 0;  // keys that one query sees, at most
    bool has_worklist = false;
    HeadWorklist lists;
    std::int64_t visited = 0, listed = 0;  // tiles
    std::int32_t first_tile = -1;
  };

  void list(Group& group) const {
    const ColumnIntervals& columns = *group.columns;
    group.lists =
        make_head_worklist(columns.offsets, columns.intervals, columns.q_len, segment_, group.w);
    group.has_worklist = true;
    if (is_asked_for_) return;
    group.visited = tiles_of(columns);
    for (const KvWorkTile& work_tile : group.lists.work_tiles)
      group.listed += tiles_of(work_tile) + kWorkTileTiles;
  }

  KvWorklist placed(const std::vector<std::int32_t>& group_of_head) {
    KvWorklist lists;
    const std::int32_t heads_kv = shape_.heads_kv;
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
  const AttentionShape& shape_;
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
                                                   const AttentionShape& shape,
                                                   const PlanOptions& options) {
  return ListsPlanner(mask, shape, options).run();
}

}  // namespace fdma
