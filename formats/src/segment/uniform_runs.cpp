#include "segment/uniform_runs.hpp"

#include <algorithm>

#include "fdma/formats/segment_builder.hpp"
#include "segment/written_out.hpp"

namespace fdma {
namespace {

constexpr std::ptrdiff_t kManyIntervals = 8;  // in one row; from here on a binary search pays

const TileRun& run_of(const SegmentMask& mask, std::int32_t row) {
  auto it = std::upper_bound(mask.runs.begin(), mask.runs.end(), row,
                             [](std::int32_t r, const TileRun& run) { return r < run.first_row; });
  while (it != mask.runs.begin()) {
    --it;
    const std::int32_t distance = row - it->first_row;
    if (distance % it->row_stride == 0 && distance / it->row_stride < it->num_rows) break;
  }
  return *it;
}

}  // namespace

UniformRuns::UniformRuns(const SegmentMask& mask, Patterns patterns)
    : mask_(mask),
      patterns_(patterns),
      first_panel_source_(kFirstPartial + static_cast<TileSource>(mask.num_bitmaps())),
      panels_(static_cast<std::size_t>(mask.num_row_panels())) {}

std::int64_t UniformRuns::parts_of(std::int32_t row, std::vector<UniformRun>& parts) {
  parts.clear();
  const TileRun& run = run_of(mask_, row);
  const std::int64_t i = (row - run.first_row) / run.row_stride;
  bool has_written_out = false;
  for (std::int64_t s = run.first_segment; s < run.first_segment + run.num_segments; ++s) {
    const TileSegment& segment = mask_.segments[static_cast<std::size_t>(s)];
    const std::int64_t first = segment.first_tile + i * segment.step_first;
    const std::int64_t end = segment.end_tile + i * segment.step_end;
    if (segment.kind == SegmentKind::pattern) {
      if (patterns_ == Patterns::kept) {
        parts.push_back({first, end, segment.step_first, segment.step_end,
                         kFirstPattern + static_cast<TileSource>(segment.data_index)});
        continue;
      }
      has_written_out = true;
      written_out_.clear();
      append_written_out(mask_, row,
                         {static_cast<std::int32_t>(first), static_cast<std::int32_t>(end), 0, 0,
                          SegmentKind::pattern, segment.data_index},
                         written_out_);
      for (const TileSegment& tiles : written_out_) {
        const TileSource source = tiles.kind == SegmentKind::full
                                      ? kFullTiles
                                      : kFirstPartial + static_cast<TileSource>(tiles.data_index);
        parts.push_back({tiles.first_tile, tiles.end_tile, 0, 0, source});
      }
      continue;
    }
    if (segment.kind != SegmentKind::rows) {
      const TileSource source = segment.kind == SegmentKind::full
                                    ? kFullTiles
                                    : kFirstPartial + static_cast<TileSource>(segment.data_index);
      parts.push_back({first, end, segment.step_first, segment.step_end, source});
      continue;
    }
    const PanelTiles tiles = tiles_of_panel(segment.data_index, end - first);
    const std::int64_t step = segment.step_first;
    for (std::int64_t t = 0; t < tiles.count; ++t) {
      const TileSource source = tile_sources_[static_cast<std::size_t>(tiles.first + t)];
      if (t > 0 && parts.back().source == source) {
        ++parts.back().end;
      } else {
        parts.push_back({first + t, first + t + 1, step, step, source});
      }
    }
  }
  return has_written_out ? 1 : run.num_rows - i;
}

TileSource UniformRuns::tile_of_pattern(TileSource pattern, std::int64_t row,
                                        std::int64_t col) const {
  const TilePattern& p = mask_.patterns[pattern - kFirstPattern];
  const auto positive = [](std::int64_t x, std::int64_t m) { return x % m + (x % m < 0 ? m : 0); };
  const std::int64_t column = positive(col - p.skew * row, p.num_cols);
  const std::span<const PatternTile> tiles =
      mask_.pattern_row_tiles(p, static_cast<std::int32_t>(positive(row, p.num_rows)));
  const auto tile =
      std::lower_bound(tiles.begin(), tiles.end(), column,
                       [](const PatternTile& t, std::int64_t c) { return t.column < c; });
  if (tile == tiles.end() || tile->column != column) return kEmptyTiles;
  return tile->bitmap == kFullTile ? kFullTiles
                                   : kFirstPartial + static_cast<TileSource>(tile->bitmap);
}

// A tile holds the cells of the one before it unless an interval begins or ends inside the two.
const UniformRuns::PanelTiles& UniformRuns::tiles_of_panel(std::int32_t panel,
                                                           std::int64_t num_tiles) {
  PanelTiles& known = panels_[static_cast<std::size_t>(panel)];
  if (known.count == num_tiles) return known;
  const std::int64_t block_q = mask_.block.block_q, block_kv = mask_.block.block_kv;
  differs_.assign(static_cast<std::size_t>(num_tiles) + 1, 0);
  const auto mark = [&](std::int64_t bound) {
    // A bound inside tile t makes tile t differ from the one before and from the one after it; a
    // bound at the begin of tile t makes it differ from the one before only.
    const std::int64_t t = bound / block_kv;
    if (t <= num_tiles) differs_[static_cast<std::size_t>(t)] = 1;
    if (bound % block_kv != 0 && t < num_tiles) differs_[static_cast<std::size_t>(t) + 1] = 1;
  };
  const std::int64_t begin = mask_.row_offsets[static_cast<std::size_t>(panel * block_q)];
  const std::int64_t end = mask_.row_offsets[static_cast<std::size_t>((panel + 1) * block_q)];
  for (std::int64_t i = begin; i < end; ++i) {
    mark(mask_.row_intervals[static_cast<std::size_t>(i)].begin);
    mark(mask_.row_intervals[static_cast<std::size_t>(i)].end);
  }
  known = {static_cast<std::int64_t>(tile_sources_.size()), num_tiles};
  for (std::int64_t t = 0; t < num_tiles; ++t) {
    if (t == 0 || differs_[static_cast<std::size_t>(t)] != 0) {
      panel_tiles_.push_back({panel, static_cast<std::int32_t>(t)});
    }
    tile_sources_.push_back(first_panel_source_ + static_cast<TileSource>(panel_tiles_.size()) - 1);
  }
  return known;
}

const std::uint64_t* UniformRuns::bitmap_of(TileSource source, std::uint64_t* scratch) const {
  if (source < first_panel_source_) {
    return mask_.bitmap(static_cast<std::int64_t>(source - kFirstPartial)).data();
  }
  const PanelTile& tile = panel_tiles_[source - first_panel_source_];
  const std::int64_t block_q = mask_.block.block_q, block_kv = mask_.block.block_kv;
  const std::int64_t skip = tile.tile * block_kv;
  std::fill_n(scratch, mask_.words_per_bitmap(), 0);
  for (std::int64_t r = 0; r < block_q; ++r) {
    const auto row = static_cast<std::size_t>(tile.panel * block_q + r);
    const auto last = mask_.row_intervals.begin() + mask_.row_offsets[row + 1];
    auto keys = mask_.row_intervals.begin() + mask_.row_offsets[row];
    if (last - keys > kManyIntervals) {
      keys = std::upper_bound(keys, last, skip, [](std::int64_t k, const Interval& interval) {
        return k < interval.end;
      });
    }
    while (keys != last && keys->end <= skip) ++keys;
    for (; keys != last && keys->begin < skip + block_kv; ++keys) {
      set_bits(scratch, r * block_kv + std::max<std::int64_t>(keys->begin - skip, 0),
               r * block_kv + std::min<std::int64_t>(keys->end - skip, block_kv));
    }
  }
  return scratch;
}

}  // namespace fdma
