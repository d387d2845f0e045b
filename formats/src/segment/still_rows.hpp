// Visits tile rows with equal segments together.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "fdma/formats/segment_mask.hpp"
#include "segment/written_out.hpp"

namespace fdma {

/// Calls visit(row, num_rows, segments) for ranges of tile rows in ascending order. Tile rows row
/// .. row + num_rows - 1 all have these segments (steps applied, as in for_each_tile_row). A last
/// tile row with fewer query rows than the others is a range of its own; so is every tile row of a
/// run that moves or has patterns. visit returns false to end the walk.
///
/// Example     128 rows that see keys above 2^31 rows that see none: a handful of ranges
/// Cost        O(runs * row_period + tile rows of runs that move), not O(tile rows)
template <class Visit>
void for_each_still_rows(const SegmentMask& mask, Visit&& visit) {
  const std::int64_t period = row_period(mask.block);
  const std::int64_t num_rows = mask.num_tile_rows();
  const std::int64_t num_whole = mask.q_len / mask.block.block_q;
  std::vector<const TileRun*> current(static_cast<std::size_t>(period), nullptr);
  std::size_t next = 0;
  // The first row of the residue after the run.
  const auto end_of = [](const TileRun& run) {
    return run.first_row + std::int64_t{run.num_rows} * run.row_stride;
  };
  // A row may be asked for again; first calls come in ascending order, as runs do.
  const auto run_of = [&](std::int64_t row) -> const TileRun& {
    const TileRun*& run = current[static_cast<std::size_t>(row % period)];
    if (run == nullptr || row >= end_of(*run)) run = &mask.runs[next++];
    return *run;
  };
  const auto segments_of = [&](const TileRun& run) {
    return std::span<const TileSegment>(mask.segments.data() + run.first_segment,
                                        static_cast<std::size_t>(run.num_segments));
  };
  std::vector<TileSegment> segments;
  for (std::int64_t row = 0; row < num_rows;) {
    const TileRun& run = run_of(row);
    const auto given = segments_of(run);
    std::int64_t end = row + 1;
    if (std::all_of(given.begin(), given.end(), [](const auto& s) {
          return s.step_first == 0 && s.step_end == 0 && s.kind != SegmentKind::pattern;
        })) {
      std::int64_t limit = num_whole;
      for (std::int64_t other = row; other < std::min(limit, row + period); ++other) {
        const TileRun& beside = run_of(other);
        const auto same = segments_of(beside);
        const bool is_same = std::equal(given.begin(), given.end(), same.begin(), same.end());
        limit = is_same ? std::min(limit, end_of(beside)) : other;
      }
      end = std::max(end, limit);
    }
    segments.clear();
    const auto moved = static_cast<std::int32_t>((row - run.first_row) / run.row_stride);
    for (TileSegment segment : given) {
      segment.first_tile += moved * segment.step_first;
      segment.end_tile += moved * segment.step_end;
      segment.step_first = segment.step_end = 0;
      append_written_out(mask, static_cast<std::int32_t>(row), segment, segments);
    }
    if (!visit(static_cast<std::int32_t>(row), static_cast<std::int32_t>(end - row),
               std::span<const TileSegment>(segments))) {
      return;
    }
    row = end;
  }
}

}  // namespace fdma
