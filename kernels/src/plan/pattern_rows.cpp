#include "plan/pattern_rows.hpp"

#include <algorithm>
#include <numeric>

namespace fdma {
namespace {

// The least number of steps of `step` that is a multiple of `period`.
std::int64_t steps_of_turn(std::int64_t step, std::int64_t period) {
  return period / std::gcd(step, period);
}

}  // namespace

std::int32_t pattern_period(const SegmentMask& mask, const TileRun& run) {
  std::int64_t period = 1;
  for (std::int64_t s = run.first_segment; s < run.first_segment + run.num_segments; ++s) {
    const TileSegment& segment = mask.segments[static_cast<std::size_t>(s)];
    if (segment.kind != SegmentKind::pattern) continue;
    const TilePattern& pattern = mask.patterns[static_cast<std::size_t>(segment.data_index)];
    const std::int64_t shift = std::int64_t{pattern.skew} * run.row_stride;
    for (const std::int64_t steps :
         {steps_of_turn(run.row_stride, pattern.num_rows), steps_of_turn(shift, pattern.num_cols),
          steps_of_turn(segment.step_first, pattern.num_cols),
          steps_of_turn(segment.step_end, pattern.num_cols)}) {
      period = std::lcm(period, steps);
      if (period >= run.num_rows) return run.num_rows;
    }
  }
  return static_cast<std::int32_t>(period);
}

std::int32_t plan_shift(const PatternRow& row) {
  return row.shift == 0 ? 0 : row.shift - row.num_cols;
}

std::int64_t pattern_tiles_before(const PatternRow& row, std::int64_t col) {
  const std::int64_t offset = col - plan_shift(row);
  const auto is_before = [](const PatternTile& tile, std::int64_t column) {
    return tile.column < column;
  };
  return offset / row.num_cols * std::ssize(row.tiles) +
         (std::lower_bound(row.tiles.begin(), row.tiles.end(), offset % row.num_cols, is_before) -
          row.tiles.begin());
}

void add_full_entries(const SegmentPlan& plan, PatternSums<std::int64_t>& sums) {
  add_entries(plan, sums, [](const PatternEntry& entry) {
    return std::int64_t{entry.bitmap == kFullEntry ? 1 : 0};
  });
}

}  // namespace fdma
