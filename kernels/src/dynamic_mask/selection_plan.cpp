// The planner of a selection knows w and M, but not the scores. For each number of heads that may
// share a tile it compares two costs by the cost model:
//   gather   the maximum number of keys of a tile's kv index list, and making the lists
//   scan     all tiles in which M shows a key
// A list holds w keys and one for each query with which another key appears. Fewer queries in a
// tile therefore mean shorter lists, but more of them.
//
// Example     32 heads, 8 KV heads, 128K tokens, w = 2,048: lists of 32 queries and 4 heads
// Example     1K tokens, w = 512: tiles are scanned
#include "dynamic_mask/selection_plan.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "dynamic_mask/kv_index_list_room.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/kernels/cost_model.hpp"
#include "fdma/kernels/device_profile.hpp"
#include "plan/full_mask.hpp"
#include "plan/sm90_tile.hpp"
#include "plan/splits.hpp"

namespace fdma::dynamic_mask {
namespace {

constexpr double kTie = 1e-9;                // of a prediction: the fewest heads are taken
constexpr std::int64_t kListAlignment = 32;  // entries

// Capacities of the tile rows of every mask.
using RoomsOfMasks = std::vector<std::vector<TileRoom>>;

RoomsOfMasks rooms_of(const TopkRows& rows, std::int64_t w, std::int64_t block_q) {
  RoomsOfMasks rooms;
  for (const ColumnIntervals& mask : rows.masks) rooms.push_back(tile_rooms(mask, w, block_q));
  return rooms;
}

bool shows_at_most(const RoomsOfMasks& rooms, std::int64_t w) {
  return std::all_of(rooms.begin(), rooms.end(), [w](const std::vector<TileRoom>& mask) {
    return std::all_of(mask.begin(), mask.end(),
                       [w](const TileRoom& room) { return room.most_visible <= w; });
  });
}

std::int64_t tiles_of(const TileRoom& room) {
  return room.keys.begin < room.keys.end
             ? ceil_div(std::int64_t{room.keys.end}, std::int64_t{kSm90TileKeys}) -
                   room.keys.begin / kSm90TileKeys
             : 0;
}

// Predicted microseconds of a plan, its lists included.
double predict(const AttentionShape& shape, const TopkRows& rows, const RoomsOfMasks& rooms,
               std::int32_t heads_per_tile, SelectionReading reading, const CostModel& costs) {
  const double num_sets = static_cast<double>(ceil_div(shape.group_size(), heads_per_tile));
  const bool is_gather = reading == SelectionReading::gather;
  double work_us = 0, work_tiles = 0, lists = 0, entries = 0;
  for (const std::int32_t mask : rows.mask_of) {
    for (const TileRoom& room : rooms[static_cast<std::size_t>(mask)]) {
      const auto tiles = static_cast<double>(tiles_of(room));
      work_tiles += num_sets;
      work_us +=
          num_sets * costs.work_tile_us(is_gather ? costs.index_list(room.num_entries)
                                                  : costs.tiles(PlanSegmentKind::columns, tiles,
                                                                tiles * costs.tile_columns));
      lists += 1;
      entries += static_cast<double>(room.num_entries);
    }
  }
  const double workers = std::min<double>(costs.num_workers, std::max(work_tiles, 1.0));
  return work_us / workers + (is_gather ? costs.lists_us(lists, entries) : 0);
}

struct Choice {
  SelectionReading reading = SelectionReading::automatic;
  std::int32_t heads_per_tile = 1;
  double predicted_us = 0;
  RoomsOfMasks rooms;
  PlanDecision decision;
};

bool gathers(const AttentionShape& shape) {
  return std::max(shape.head_dim, shape.head_dim_v) <= Backend::sm90.traits().max_gather_head_dim;
}

Choice choose(const DynamicMaskSpec& spec, const TopkRows& rows, const CostModel& costs) {
  Choice best;
  PlanDecision decision{"reading", {}, 0, {}};
  for (std::int32_t heads = 1; heads <= heads_per_tile_of_group(spec.shape.group_size());
       heads *= 2) {
    const RoomsOfMasks rooms = rooms_of(rows, spec.w, kSm90TileRows / heads);
    for (const SelectionReading reading : {SelectionReading::gather, SelectionReading::scan}) {
      if (spec.reading != SelectionReading::automatic && spec.reading != reading) continue;
      if (spec.reading != reading && reading == SelectionReading::gather && !gathers(spec.shape)) {
        continue;
      }
      const double us = predict(spec.shape, rows, rooms, heads, reading, costs);
      const bool is_better =
          best.reading == SelectionReading::automatic || us < (1 - kTie) * best.predicted_us;
      if (is_better) {
        best = {reading, heads, us, rooms, {}};
        decision.taken = decision.alternatives.size();
      }
      decision.alternatives.push_back(
          {fmt::format("{}, {} head{} a tile",
                       reading == SelectionReading::gather ? "gather" : "scan", heads,
                       heads == 1 ? "" : "s"),
           us,
           {}});
    }
  }
  best.decision = std::move(decision);
  return best;
}

// The segment of one (row, tile), and its cost in keys.
struct RowSegment {
  PlanSegment segment;
  std::int64_t num_keys;
};

RowSegment segment_of(const TileRoom& room, SelectionReading reading, std::int64_t row,
                      std::int64_t list) {
  if (reading == SelectionReading::gather) {
    const auto index_tiles =
        static_cast<std::int32_t>(ceil_div(room.num_entries, std::int64_t{kSm90TileKeys}));
    return {{0, index_tiles, 0, 0, PlanSegmentKind::gather, static_cast<std::int32_t>(list)},
            room.num_entries};
  }
  const auto first = room.keys.begin / kSm90TileKeys;
  const auto end = first + static_cast<std::int32_t>(tiles_of(room));
  return {{first, end, 0, 0, PlanSegmentKind::columns, static_cast<std::int32_t>(row)},
          std::int64_t{room.keys.end} - room.keys.begin};
}

// Number of KV heads whose keys and values fit in L2 together.
std::int64_t heads_in_l2_of(const AttentionShape& shape) {
  const std::int64_t bytes = shape.max_kv_len() * 2 * (shape.head_dim + shape.head_dim_v);
  return std::max<std::int64_t>(PlanOptions{}.l2_bytes / std::max<std::int64_t>(bytes, 1), 1);
}

// Adds the work tiles of all rows, by groups of heads in L2, longest first.
void add_work_tiles(const TopkRows& rows, const Choice& choice, SelectionPlan& made,
                    SegmentPlan& segments) {
  AttentionPlan& plan = made.plan;
  const AttentionShape& shape = plan.shape;
  const std::int64_t l2_group = heads_in_l2_of(shape);
  for (std::int64_t first = 0; first < rows.num_rows(); first += l2_group) {
    std::vector<std::pair<std::int64_t, WorkTile>> ranked;
    for (std::int64_t row = first; row < std::min(first + l2_group, rows.num_rows()); ++row) {
      const std::int32_t mask = rows.mask_of[static_cast<std::size_t>(row)];
      const std::vector<TileRoom>& rooms = choice.rooms[static_cast<std::size_t>(mask)];
      for (std::size_t tile = 0; tile < rooms.size(); ++tile) {
        const std::int64_t list = row * made.num_tiles + static_cast<std::int64_t>(tile);
        const RowSegment planned = segment_of(rooms[tile], choice.reading, row, list);
        const PlanSegment& segment = planned.segment;
        WorkTile work_tile{};
        work_tile.batch = static_cast<std::int32_t>(row / shape.heads_kv);
        work_tile.q_tile = static_cast<std::int32_t>(tile);
        work_tile.num_tiles = segment.end_tile - segment.first_tile;
        work_tile.first_segment = static_cast<std::int32_t>(segments.segments.size());
        work_tile.num_segments = work_tile.num_tiles > 0 ? 1 : 0;
        work_tile.num_entries = static_cast<std::int32_t>(rooms[tile].num_entries);
        if (work_tile.num_segments > 0) segments.segments.push_back(segment);
        for (std::int32_t i = 0; i < shape.group_size(); i += plan.heads_per_tile) {
          work_tile.head = static_cast<std::int32_t>(row % shape.heads_kv) * shape.group_size() + i;
          ranked.emplace_back(planned.num_keys, work_tile);
        }
        std::int64_t& tiles = choice.reading == SelectionReading::gather ? plan.counts.gather_chunks
                                                                         : plan.counts.column_tiles;
        tiles += work_tile.num_tiles * ceil_div(shape.group_size(), plan.heads_per_tile);
      }
    }
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const auto& a, const auto& b) { return a.first > b.first; });
    for (const auto& [keys, work_tile] : ranked) segments.work_tiles.push_back(work_tile);
  }
}

void add_lists(const TopkRows& rows, const Choice& choice, SelectionPlan& made) {
  std::int64_t next = 0;
  for (const std::int32_t mask : rows.mask_of) {
    const std::vector<TileRoom>& rooms = choice.rooms[static_cast<std::size_t>(mask)];
    for (std::size_t tile = 0; tile < static_cast<std::size_t>(made.num_tiles); ++tile) {
      made.first_entries.push_back(next);
      if (tile >= rooms.size()) continue;
      const std::int64_t entries = rooms[tile].num_entries;
      made.most_entries = std::max(made.most_entries, entries);
      next += ceil_div(entries, kListAlignment) * kListAlignment;
    }
  }
  made.first_entries.push_back(next);
}

void add_tables(const TopkRows& rows, SegmentPlan& plan) {
  plan.column_offsets.reserve(static_cast<std::size_t>(rows.num_rows() * rows.kv_len) + 1);
  for (std::int64_t i = 0; i <= rows.num_rows() * rows.kv_len; ++i) {
    plan.column_offsets.push_back(i);
  }
  for (std::int64_t row = 0; row < rows.num_rows(); ++row) {
    plan.column_tables.push_back(row * rows.kv_len);
  }
}

}  // namespace

BlockMask mask_of_rows(const AttentionShape& shape, const std::vector<ColumnIntervals>& masks,
                       const std::vector<std::int32_t>& mask_of, BlockShape block) {
  const MaskShape mask_shape{shape.batch, shape.heads_q, shape.q_lens, shape.kv_lens};
  std::vector<SegmentMask> segments;
  for (const ColumnIntervals& mask : masks) segments.push_back(segment_from_columns(mask, block));
  std::vector<std::int32_t> of_heads;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int32_t h = 0; h < shape.heads_q; ++h) {
      const std::int64_t row = b * shape.heads_kv + h / shape.group_size();
      of_heads.push_back(mask_of[static_cast<std::size_t>(row)]);
    }
  }
  return make_block_mask(mask_shape, block, std::move(segments), of_heads);
}

Result<SelectionPlan> plan_selection(const DynamicMaskSpec& spec, const TopkRows& rows) {
  const BlockShape tile{kSm90TileRows, kSm90TileKeys};
  const ScoreSpec score = score_of(spec.bias);
  PlanOptions options;
  options.backend = Backend::sm90;
  options.profile = spec.profile != nullptr ? spec.profile : default_profile(options.backend);
  const bool is_all =
      !spec.drops_zero_scores && shows_at_most(rooms_of(rows, spec.w, kSm90TileRows), spec.w);
  if (spec.reading == SelectionReading::all && !is_all) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("reading: all is for masks that show no query more than w keys, here "
                             "{}, and keep those whose score is 0",
                             spec.w)};
  }
  SelectionPlan made;
  if (is_all &&
      (spec.reading == SelectionReading::all || spec.reading == SelectionReading::automatic)) {
    FDMA_TRY(made.plan, make_plan(mask_of_rows(spec.shape, rows.masks, rows.mask_of, tile),
                                  spec.shape, score, options));
    return made;
  }
  // The header, and the checks of the backend, are those of any plan for this shape.
  options.split = SplitMode::never;
  options.pack = PackMode::never;
  FDMA_TRY(made.plan, make_plan(full_mask(spec.shape, tile), spec.shape, score, options));
  FDMA_TRY(const CostModel costs,
           cost_model(*options.profile, spec.shape, Direction::forward, tile, score));
  Choice choice = choose(spec, rows, costs);
  AttentionPlan& plan = made.plan;
  SegmentPlan& segments = plan.form.emplace<SegmentPlan>();
  plan.report.decisions = {std::move(choice.decision)};
  plan.counts = {};
  plan.heads_per_tile = choice.heads_per_tile;
  plan.tile.block_q = kSm90TileRows / choice.heads_per_tile;
  made.reading = choice.reading;
  made.predicted_us = choice.predicted_us;
  made.num_tiles =
      static_cast<std::int32_t>(ceil_div(spec.shape.max_q_len(), std::int64_t{plan.tile.block_q}));
  add_work_tiles(rows, choice, made, segments);
  if (choice.reading == SelectionReading::gather) {
    add_lists(rows, choice, made);
  } else {
    add_tables(rows, segments);
  }
  return made;
}

}  // namespace fdma::dynamic_mask
