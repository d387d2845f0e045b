// Appends a group's tile rows to a plan. Tile rows whose tiles all stay keep the closed form of
// their run: segments that several rows share, and a work tile's steps into them. In a run with
// patterns every pattern_period-th row shares segments. A row with a kv
// index list has segments of its own: what is left of the run's segments between the gathered
// tiles, then the list. Rows over permuted keys are rows of another mask, each after a segment that
// says so.
#include "plan/group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

#include "plan/bitmap_order.hpp"
#include "plan/kv_index_lists.hpp"
#include "plan/pattern_rows.hpp"

namespace fdma {
namespace {

// Appends rows of one mask of a group.
class RowAppender {
 public:
  // `order` is the kv permutation of the mask's keys, or -1.
  RowAppender(const SegmentMask& mask, const Regions& regions, std::int32_t order,
              const PlanHeader& header, SegmentPlan& plan)
      : mask_(mask),
        regions_(regions),
        order_(order),
        header_(header),
        plan_(plan),
        bitmaps_(static_cast<std::size_t>(mask.num_bitmaps()), -1),
        panels_(static_cast<std::size_t>(mask.num_row_panels()), -1),
        pattern_rows_(mask.pattern_offsets.size() - 1, -1) {}

  // Fills out[row] for the tile rows that are among `rows`.
  void run(const std::vector<bool>& rows, std::span<const std::int32_t> keys,
           std::vector<PlannedRow>& out) {
    const std::vector<std::int32_t> lists =
        append_kv_index_lists(mask_, regions_, rows, keys, plan_);
    std::vector<SharedSegments> shared;
    for (const TileRun& run : mask_.runs) {
      const std::int32_t period = pattern_period(mask_, run);
      shared.assign(static_cast<std::size_t>(period), {});
      for (std::int32_t i = 0; i < run.num_rows; ++i) {
        const std::int32_t row = run.first_row + i * run.row_stride;
        const auto r = static_cast<std::size_t>(row);
        if (!rows[r]) continue;
        if (lists[r] >= 0) {
          append_row(run, i, lists[r], out[r]);
        } else {
          SharedSegments& segments = shared[static_cast<std::size_t>(i % period)];
          if (segments.first < 0) segments = append_shared(run, i % period, period);
          out[r].first_segment = segments.first;
          out[r].num_segments = segments.num;
          out[r].step = i / period;
        }
        count(out[r], regions_.rows[r]);
      }
    }
  }

 private:
  void append_permutation() {
    if (order_ >= 0) plan_.segments.push_back({0, 0, 0, 0, PlanSegmentKind::permutation, order_});
  }

  struct SharedSegments {
    std::int32_t first = -1, num = 0;
  };

  // Appends the segments of rows first, first + period, .. of a run.
  SharedSegments append_shared(const TileRun& run, std::int32_t first, std::int32_t period) {
    const auto at = static_cast<std::int32_t>(plan_.segments.size());
    append_permutation();
    // A row by itself moves nowhere.
    const std::int32_t steps = first + period < run.num_rows ? period : 0;
    for (std::int64_t s = run.first_segment; s < run.first_segment + run.num_segments; ++s) {
      TileSegment segment = mask_.segments[static_cast<std::size_t>(s)];
      segment.first_tile += first * segment.step_first;
      segment.end_tile += first * segment.step_end;
      segment.step_first *= steps;
      segment.step_end *= steps;
      if (segment.kind == SegmentKind::pattern) {
        append_pattern(segment, run.first_row + first * run.row_stride);
      } else {
        plan_.segments.push_back({segment.first_tile, segment.end_tile, segment.step_first,
                                  segment.step_end, plan_kind(segment.kind),
                                  data_index_of(segment)});
      }
    }
    return {at, static_cast<std::int32_t>(plan_.segments.size()) - at};
  }

  // Appends a pattern segment of tile row `row`, whose ends move by whole turns, unless it has no
  // tiles.
  void append_pattern(const TileSegment& segment, std::int32_t row) {
    const PatternRow tiles = mask_.pattern_row(segment.data_index, row);
    if (tiles.tiles.empty()) return;
    const auto first = static_cast<std::int32_t>(pattern_tiles_before(tiles, segment.first_tile));
    const auto end = static_cast<std::int32_t>(pattern_tiles_before(tiles, segment.end_tile));
    const auto moved = [&](std::int32_t columns) {
      return columns / tiles.num_cols * static_cast<std::int32_t>(tiles.tiles.size());
    };
    const std::int32_t step_first = moved(segment.step_first), step_end = moved(segment.step_end);
    if (first == end && step_first == step_end) return;
    plan_.segments.push_back({first, end, step_first, step_end, PlanSegmentKind::pattern,
                              pattern_of(segment.data_index, row, tiles)});
  }

  // The plan's pattern with the tiles of the mask's pattern in tile row `row`.
  std::int32_t pattern_of(std::int32_t index, std::int32_t row, const PatternRow& tiles) {
    const TilePattern& pattern = mask_.patterns[static_cast<std::size_t>(index)];
    const std::int32_t pattern_row = pattern.first_row + row % pattern.num_rows;
    const auto [place, is_new] = patterns_.try_emplace(
        std::pair(pattern_row, tiles.shift), static_cast<std::int32_t>(plan_.patterns.size()));
    if (!is_new) return place->second;
    std::int32_t& first_entry = pattern_rows_[static_cast<std::size_t>(pattern_row)];
    if (first_entry < 0) {
      first_entry = static_cast<std::int32_t>(plan_.pattern_entries.size());
      for (const PatternTile& tile : tiles.tiles) {
        plan_.pattern_entries.push_back(
            {tile.column, tile.bitmap == kFullTile ? kFullEntry : bitmap_of(tile.bitmap)});
      }
    }
    plan_.patterns.push_back({first_entry, static_cast<std::int32_t>(tiles.tiles.size()),
                              tiles.num_cols, plan_shift(tiles)});
    return place->second;
  }

  // Appends row `step` of a run: the tiles that are not gathered, then its list.
  void append_row(const TileRun& run, std::int32_t step, std::int32_t list, PlannedRow& out) {
    const std::int32_t row = run.first_row + step * run.row_stride;
    out.first_segment = static_cast<std::int32_t>(plan_.segments.size());
    append_permutation();
    for (std::int64_t s = run.first_segment; s < run.first_segment + run.num_segments; ++s) {
      const TileSegment& segment = mask_.segments[static_cast<std::size_t>(s)];
      const std::int32_t first = segment.first_tile + step * segment.step_first;
      const std::int32_t end = segment.end_tile + step * segment.step_end;
      for (std::int32_t begin = first; begin < end;) {
        if (regions_.is_gathered(row, begin)) {
          ++begin;
          continue;
        }
        std::int32_t stop = begin + 1;
        while (stop < end && !regions_.is_gathered(row, stop)) ++stop;
        const bool is_cut = begin != first || stop != end;
        const std::int32_t data_index =
            segment.kind == SegmentKind::rows && is_cut
                ? append_panel(segment.data_index, begin - first, stop - first)
                : data_index_of(segment);
        plan_.segments.push_back({begin, stop, 0, 0, plan_kind(segment.kind), data_index});
        begin = stop;
      }
    }
    const std::int32_t num_entries =
        plan_.kv_index_lists[static_cast<std::size_t>(list)].num_entries;
    plan_.segments.push_back(
        {0, static_cast<std::int32_t>(ceil_div(num_entries, mask_.block.block_kv)), 0, 0,
         PlanSegmentKind::gather, list});
    out.num_segments = static_cast<std::int32_t>(plan_.segments.size()) - out.first_segment;
  }

  // Bitmaps, panels and tables are appended when they are first used.
  std::int32_t data_index_of(const TileSegment& segment) {
    const auto index = static_cast<std::size_t>(segment.data_index);
    switch (segment.kind) {
      case SegmentKind::full:
      case SegmentKind::pattern:  // append_pattern
        break;
      case SegmentKind::bitmap:
        return bitmap_of(segment.data_index);
      case SegmentKind::rows:
        if (panels_[index] < 0) {
          panels_[index] = append_panel(segment.data_index, 0, mask_.num_tile_cols());
        }
        return panels_[index];
      case SegmentKind::columns:
        if (table_ < 0) table_ = append_table();
        return table_;
    }
    return 0;
  }

  std::int32_t bitmap_of(std::int32_t index) {
    std::int32_t& bitmap = bitmaps_[static_cast<std::size_t>(index)];
    if (bitmap < 0) bitmap = append_bitmap(index);
    return bitmap;
  }

  std::int32_t append_bitmap(std::int64_t index) {
    const auto at = static_cast<std::int32_t>(plan_.num_bitmaps(header_.words_per_bitmap()));
    const std::size_t words = plan_.bitmaps.size();
    plan_.bitmaps.resize(words + static_cast<std::size_t>(header_.words_per_bitmap()));
    const std::uint64_t* row_major = mask_.bitmap(index).data();
    std::uint64_t* out = plan_.bitmaps.data() + words;
    if (header_.backend.traits().bitmap_order == BitmapOrder::thread_fragments) {
      packed_thread_fragments_from_row_major(row_major, header_.heads_per_tile, out);
    } else {
      key_major_from_row_major(row_major, mask_.block, out);
    }
    return at;
  }

  // Appends the part of a panel that lies in its tiles [begin, end).
  std::int32_t append_panel(std::int64_t index, std::int64_t begin, std::int64_t end) {
    const auto at = static_cast<std::int32_t>((plan_.row_offsets.size() - 1) /
                                              static_cast<std::size_t>(mask_.block.block_q));
    const std::int64_t first_key = begin * mask_.block.block_kv;
    const std::int64_t num_keys = (end - begin) * mask_.block.block_kv;
    for (std::int64_t r = 0; r < mask_.block.block_q; ++r) {
      const auto row = static_cast<std::size_t>(index * mask_.block.block_q + r);
      for (std::int64_t i = mask_.row_offsets[row]; i < mask_.row_offsets[row + 1]; ++i) {
        const Interval keys = mask_.row_intervals[static_cast<std::size_t>(i)];
        const std::int64_t from = std::max<std::int64_t>(keys.begin - first_key, 0);
        const std::int64_t to = std::min(keys.end - first_key, num_keys);
        if (from < to) {
          plan_.row_intervals.push_back(
              {static_cast<std::int32_t>(from), static_cast<std::int32_t>(to)});
        }
      }
      plan_.row_offsets.push_back(static_cast<std::int64_t>(plan_.row_intervals.size()));
    }
    return at;
  }

  std::int32_t append_table() {
    const auto at = static_cast<std::int32_t>(plan_.column_tables.size());
    plan_.column_tables.push_back(static_cast<std::int64_t>(plan_.column_offsets.size()));
    const auto first_interval = static_cast<std::int64_t>(plan_.column_intervals.size());
    for (const std::int64_t offset : mask_.column_offsets) {
      plan_.column_offsets.push_back(first_interval + offset);
    }
    plan_.column_intervals.insert(plan_.column_intervals.end(), mask_.column_intervals.begin(),
                                  mask_.column_intervals.end());
    return at;
  }

  void count(PlannedRow& row, const RowRegions& regions) {
    add_full_entries(plan_, full_entries_);
    PlanCounts& counts = row.counts;
    for (std::int32_t s = row.first_segment; s < row.first_segment + row.num_segments; ++s) {
      const PlanSegment& segment = plan_.segments[static_cast<std::size_t>(s)];
      const std::int64_t tiles = segment.end_tile - segment.first_tile +
                                 std::int64_t{row.step} * (segment.step_end - segment.step_first);
      row.num_tiles += static_cast<std::int32_t>(tiles);
      switch (segment.kind) {
        case PlanSegmentKind::full:
          counts.full_tiles += tiles;
          break;
        case PlanSegmentKind::bitmap:
          counts.bitmap_tiles += tiles;
          break;
        case PlanSegmentKind::rows:
          counts.row_tiles += tiles;
          break;
        case PlanSegmentKind::columns:
          counts.column_tiles += tiles;
          counts.column_entries = regions.num_scanned;
          break;
        case PlanSegmentKind::gather:
          counts.gather_chunks += tiles;
          counts.gather_entries = regions.num_gathered;
          break;
        case PlanSegmentKind::pattern: {
          const std::int64_t first =
              segment.first_tile + std::int64_t{row.step} * segment.step_first;
          const std::int64_t full = full_entries_.of(
              plan_.patterns[static_cast<std::size_t>(segment.data_index)], first, first + tiles);
          counts.full_tiles += full;
          counts.bitmap_tiles += tiles - full;
          break;
        }
        case PlanSegmentKind::closed_form:
        case PlanSegmentKind::permutation:
          break;
      }
    }
    row.num_entries = static_cast<std::int32_t>(counts.column_entries + counts.gather_entries);
  }

  const SegmentMask& mask_;
  const Regions& regions_;
  std::int32_t order_;
  const PlanHeader& header_;
  SegmentPlan& plan_;
  // Index in the plan of each one of the mask; -1: not yet
  std::vector<std::int32_t> bitmaps_, panels_;
  std::vector<std::int32_t> pattern_rows_;                                  // the first entry
  std::map<std::pair<std::int32_t, std::int32_t>, std::int32_t> patterns_;  // {pattern row, shift}
  PatternSums<std::int64_t> full_entries_;
  std::int32_t table_ = -1;
};

}  // namespace

Result<PlannedGroup> append_group(const GroupChoice& group, const PlanHeader& header,
                                  SegmentPlan& plan) {
  PlannedGroup planned;
  planned.rows.resize(group.regions.rows.size());
  std::vector<bool> rows(planned.rows.size(), true);
  if (group.has_permutation()) {
    planned.order = static_cast<std::int32_t>(plan.kv_permutations.size());
    const std::vector<std::int32_t>& keys = group.ordered.keys;
    plan.kv_permutations.push_back({static_cast<std::int64_t>(plan.permuted_keys.size()),
                                    static_cast<std::int64_t>(keys.size())});
    plan.permuted_keys.insert(plan.permuted_keys.end(), keys.begin(), keys.end());
    RowAppender(group.ordered.mask, group.permuted_regions, planned.order, header, plan)
        .run(group.is_permuted, keys, planned.rows);
    for (std::size_t row = 0; row < rows.size(); ++row) rows[row] = !group.is_permuted[row];
  }
  RowAppender(group.mask, group.regions, -1, header, plan).run(rows, {}, planned.rows);
  if (plan.segments.size() > std::numeric_limits<std::int32_t>::max()) {
    return Error{ErrorCode::unsupported,
                 fmt::format("mask: {} plan segments, but a plan holds at most 2^31 - 1",
                             plan.segments.size())};
  }
  return planned;
}

}  // namespace fdma
