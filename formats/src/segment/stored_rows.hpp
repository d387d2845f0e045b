// Visits tile rows with their segments as they are stored: pattern segments stay such.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fdma/formats/segment_mask.hpp"

namespace fdma {

/// Calls visit(row, segments) for every tile row in ascending order, as for_each_tile_row does, but
/// patterns are not written out. Cost: O(tile rows + their segments).
template <class Visit>
void for_each_stored_row(const SegmentMask& mask, Visit&& visit) {
  const std::int32_t period = row_period(mask.block);
  std::vector<const TileRun*> current(static_cast<std::size_t>(period), nullptr);
  std::size_t next = 0;
  std::vector<TileSegment> segments;
  for (std::int32_t row = 0; row < mask.num_tile_rows(); ++row) {
    const TileRun*& run = current[static_cast<std::size_t>(row % period)];
    if (run == nullptr || (row - run->first_row) / run->row_stride >= run->num_rows) {
      run = &mask.runs[next++];
    }
    const std::int32_t step = (row - run->first_row) / run->row_stride;
    const auto first = mask.segments.begin() + run->first_segment;
    segments.assign(first, first + run->num_segments);
    for (TileSegment& segment : segments) {
      segment.first_tile += step * segment.step_first;
      segment.end_tile += step * segment.step_end;
      segment.step_first = segment.step_end = 0;
    }
    visit(row, std::span<const TileSegment>(segments));
  }
}

}  // namespace fdma
