// Counts of a mask: tiles, cells, query intervals, distinct bitmaps, bytes of formats. The file is
// longer than most: all of these share the walk of tile rows that move in step.
#include "fdma/formats/mask_statistics.hpp"

#include <algorithm>
#include <bit>
#include <limits>
#include <map>
#include <numeric>
#include <unordered_map>
#include <utility>

#include "fdma/formats/convert.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "segment/pattern_bounds.hpp"
#include "segment/uniform_runs.hpp"

namespace fdma {
namespace {

std::optional<std::int64_t>& bytes_in(FormatBytes& bytes, MaskFormat format) {
  return bytes[static_cast<std::size_t>(format)];
}

// Block sides are multiples of 16, so that every bitmap row is a whole number of 16-bit units.
std::uint16_t unit(std::span<const std::uint64_t> words, std::int64_t index) {
  return static_cast<std::uint16_t>(words[static_cast<std::size_t>(index / 4)] >>
                                    (16 * (index % 4)));
}

// Cells of rows 1.. that are true where the row above is false.
std::int64_t starts_in_bitmap(std::span<const std::uint64_t> words, BlockShape block) {
  const std::int64_t units_per_row = block.block_kv / 16;
  std::int64_t starts = 0;
  for (std::int64_t i = units_per_row; i < units_per_row * block.block_q; ++i) {
    starts +=
        std::popcount(static_cast<std::uint16_t>(unit(words, i) & ~unit(words, i - units_per_row)));
  }
  return starts;
}

// Keys of `row` that are not in `above`; both ascend.
std::int64_t keys_not_above(std::span<const Interval> row, std::span<const Interval> above) {
  std::int64_t count = 0;
  std::size_t next = 0;
  for (const Interval& interval : row) {
    std::int64_t shared = 0;
    while (next < above.size() && above[next].end <= interval.begin) ++next;
    for (std::size_t i = next; i < above.size() && above[i].begin < interval.end; ++i) {
      shared += std::min(above[i].end, interval.end) - std::max(above[i].begin, interval.begin);
    }
    count += interval.end - interval.begin - shared;
  }
  return count;
}

std::int64_t starts_in_panel(const SegmentMask& mask, std::int64_t panel) {
  const auto row = [&](std::int64_t r) {
    const std::int64_t at = panel * mask.block.block_q + r;
    const std::int64_t begin = mask.row_offsets[static_cast<std::size_t>(at)];
    const std::int64_t end = mask.row_offsets[static_cast<std::size_t>(at + 1)];
    return std::span(mask.row_intervals)
        .subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
  };
  std::int64_t starts = 0;
  for (std::int64_t r = 1; r < mask.block.block_q; ++r)
    starts += keys_not_above(row(r), row(r - 1));
  return starts;
}

// Counts keys that are true in the first query row of a tile row and false in the row above it.
// Tiles come as parts of equal cells (uniform_runs.hpp); each part costs one visit. Where a pattern
// lies over or under another part, the counts repeat, and one period of them is added up.
class BorderStarts {
 public:
  explicit BorderStarts(const SegmentMask& mask)
      : mask_(mask),
        num_cols_(mask.num_tile_cols()),
        is_in_step_(row_period(mask.block) == 1),
        words_per_row_(ceil_div(std::int64_t{mask.block.block_kv}, std::int64_t{64})),
        parts_(mask, UniformRuns::Patterns::kept),
        scratch_(static_cast<std::size_t>(mask.words_per_bitmap())) {
    edges_[kEmptyTiles].is_known = edges_[kFullTiles].is_known = true;
    edges_[kEmptyTiles].rows.assign(static_cast<std::size_t>(2 * words_per_row_), 0);
    std::vector<std::uint64_t>& full = edges_[kFullTiles].rows;
    full.assign(static_cast<std::size_t>(2 * words_per_row_), 0);
    set_bits(full.data(), 0, mask.block.block_kv);
    std::copy_n(full.begin(), words_per_row_, full.begin() + words_per_row_);
  }

  // Empty if that takes more than max_parts parts.
  std::optional<std::int64_t> count(std::int64_t max_parts) {
    std::vector<UniformRun> above, row, below;
    const std::int64_t num_rows = mask_.num_tile_rows();
    std::int64_t starts = 0, left_above = 0;  // rows left in the run of the row above
    for (std::int64_t r = 0; r < num_rows; ++r) {
      max_parts -= 1 + std::ssize(above) + kPartsPerPatternTile * std::exchange(tiles_visited_, 0);
      if (max_parts < 0) return {};
      const std::int64_t left = parts_.parts_of(static_cast<std::int32_t>(r), row) - 1;
      const std::int64_t here = starts_between(above, row, r);
      starts += here;
      // Rows of one run move in step: while no borders meet, the starts change linearly.
      const std::int64_t more =
          is_in_step_ && left_above == left + 1 && !has_pattern(above) && !has_pattern(row)
              ? rows_in_step(above, row, left)
              : 0;
      if (more > 1) {
        parts_.parts_of(static_cast<std::int32_t>(r + 1), below);
        const std::int64_t change = starts_between(row, below, r + 1) - here;
        starts += more * here + change * (more * (more + 1) / 2);
        r += more;
        parts_.parts_of(static_cast<std::int32_t>(r), row);
      }
      left_above = left - more;
      above.swap(row);
    }
    return starts;
  }

 private:
  struct Edges {
    std::vector<std::uint64_t> rows;  // the first query row of the tile, then the last
    bool is_known = false;
  };

  static constexpr std::int64_t kPartsPerPatternTile = 16;  // by time

  static bool has_pattern(std::span<const UniformRun> parts) {
    return std::any_of(parts.begin(), parts.end(),
                       [](const UniformRun& part) { return part.source >= kFirstPattern; });
  }

  // `row` are the parts of tile row r, `above` those of the one before.
  std::int64_t starts_between(std::span<const UniformRun> above, std::span<const UniformRun> row,
                              std::int64_t r) {
    std::int64_t starts = 0;
    std::size_t next = 0;
    for (const UniformRun& part : row) {
      for (std::int64_t tile = part.first; tile < part.end;) {
        while (next < above.size() && above[next].end <= tile) ++next;
        const bool is_under = next < above.size() && above[next].first <= tile;
        const std::int64_t border = next == above.size() ? part.end
                                    : is_under           ? above[next].end
                                                         : above[next].first;
        const std::int64_t end = std::min(part.end, border);
        const TileSource over = is_under ? above[next].source : kEmptyTiles;
        if (over >= kFirstPattern || part.source >= kFirstPattern) {
          starts += starts_of_pattern(over, part.source, r, tile, end);
        } else {
          starts += (end - tile) * starts_under(over, part.source);
        }
        if (end == num_cols_ && tile_at(part.source, r, end - 1) == kFullTiles &&
            tile_at(over, r - 1, end - 1) != kFullTiles) {
          starts -= num_cols_ * mask_.block.block_kv - mask_.kv_len;  // keys that do not exist
        }
        tile = end;
      }
    }
    return starts;
  }

  TileSource tile_at(TileSource source, std::int64_t r, std::int64_t col) const {
    return source < kFirstPattern ? source : parts_.tile_of_pattern(source, r, col);
  }

  // Columns [first, end) of tile row r, where it or the row above has a pattern.
  std::int64_t starts_of_pattern(TileSource over, TileSource source, std::int64_t r,
                                 std::int64_t first, std::int64_t end) {
    const auto place_of = [&](TileSource pattern, std::int64_t row, std::int64_t col) {
      PatternPlace place;
      if (pattern < kFirstPattern) return place;
      const TilePattern& p = mask_.patterns[pattern - kFirstPattern];
      place.num_cols = p.num_cols;
      place.row = row % p.num_rows;
      place.col = col - p.skew * row;
      place.col -= floor_quotient(place.col, p.num_cols) * p.num_cols;
      return place;
    };
    const auto starts_at = [&](std::int64_t col) {
      return starts_under(tile_at(over, r - 1, col), tile_at(source, r, col));
    };
    PatternPlace below = place_of(source, r, first), above = place_of(over, r - 1, first);
    const std::int64_t period = std::lcm(below.num_cols, above.num_cols);
    // Sums are kept from where the pattern below (or, if there is none, the one above) begins.
    const std::int64_t behind = source < kFirstPattern ? above.col : below.col;
    below = place_of(source, r, first - behind);
    above = place_of(over, r - 1, first - behind);
    if (num_period_starts_ > kMostPeriodStarts) {
      period_starts_.clear();
      num_period_starts_ = 0;
    }
    auto& known = period_starts_[{over, source, above.row, below.row, above.col}];
    std::int64_t& visited = known.visited;
    std::vector<std::int64_t>& sums = known.sums;
    std::int64_t starts = 0;
    if (sums.empty()) {
      // Short stretches are visited until they add up to a period.
      if (end - first + visited < period) {
        for (std::int64_t col = first; col < end; ++col) starts += starts_at(col);
        visited += end - first;
        tiles_visited_ += end - first;
        return starts;
      }
      sums.reserve(static_cast<std::size_t>(period) + 1);
      for (std::int64_t i = 0; i < period; ++i) {
        sums.push_back(starts);
        starts += starts_at(first - behind + i);
      }
      sums.push_back(starts);
      num_period_starts_ += period + 1;
      tiles_visited_ += period;
    }
    const auto sum_before = [&](std::int64_t i) {
      return i / period * sums.back() + sums[static_cast<std::size_t>(i % period)];
    };
    return sum_before(end - first + behind) - sum_before(behind);
  }

  // The number of the next rows, at most `most`, in which all borders of a row and of the one above
  // it keep their order.
  std::int64_t rows_in_step(std::span<const UniformRun> above, std::span<const UniformRun> row,
                            std::int64_t most) {
    borders_.clear();
    borders_.push_back({num_cols_, 0});
    for (const auto& parts : {above, row}) {
      for (const UniformRun& part : parts) {
        borders_.push_back({part.first, part.step_first});
        borders_.push_back({part.end, part.step_end});
      }
    }
    std::sort(borders_.begin(), borders_.end());
    for (std::size_t i = 1; i < borders_.size(); ++i) {
      const std::int64_t gap = borders_[i].first - borders_[i - 1].first;
      const std::int64_t step = borders_[i].second - borders_[i - 1].second;
      if (gap == 0 && step != 0) return 0;
      if (step < 0) most = std::min(most, (gap - 1) / -step);
    }
    return most;
  }

  std::int64_t starts_under(TileSource above, TileSource tile) {
    find_edges(above);
    const std::uint64_t* first = find_edges(tile);
    const std::uint64_t* last = edges_[above].rows.data() + words_per_row_;
    std::int64_t starts = 0;
    for (std::int64_t w = 0; w < words_per_row_; ++w) starts += std::popcount(first[w] & ~last[w]);
    return starts;
  }

  const std::uint64_t* find_edges(TileSource source) {
    Edges& edges = edges_[source];
    if (!edges.is_known) {
      const std::uint64_t* words = parts_.bitmap_of(source, scratch_.data());
      edges.rows.assign(static_cast<std::size_t>(2 * words_per_row_), 0);
      const std::int64_t block_kv = mask_.block.block_kv;
      for (std::int64_t c = 0; c < block_kv; c += 64) {
        const int width = static_cast<int>(std::min<std::int64_t>(64, block_kv - c));
        const auto w = static_cast<std::size_t>(c / 64);
        const std::int64_t last_row = (std::int64_t{mask_.block.block_q} - 1) * block_kv;
        edges.rows[w] = read_bits(words, c, width);
        edges.rows[static_cast<std::size_t>(words_per_row_) + w] =
            read_bits(words, last_row + c, width);
      }
      edges.is_known = true;
    }
    return edges.rows.data();
  }

  // Where a tile lies in a pattern; a part that is none has one column.
  struct PatternPlace {
    std::int64_t num_cols = 1;
    std::int64_t row = 0;
    std::int64_t col = 0;
  };

  const SegmentMask& mask_;
  const std::int64_t num_cols_;
  const bool is_in_step_;  // the rows of a run follow one another
  const std::int64_t words_per_row_;
  UniformRuns parts_;
  std::vector<std::uint64_t> scratch_;
  std::unordered_map<TileSource, Edges> edges_;
  // Sums over a period of the parts above and below, by both, their pattern rows and the pattern
  // column of the one above.
  static constexpr std::int64_t kMostPeriodStarts = std::int64_t{1} << 22;
  std::int64_t num_period_starts_ = 0;
  struct PeriodStarts {
    std::int64_t visited = 0;  // tiles, before there were sums
    std::vector<std::int64_t> sums;
  };
  std::map<std::array<std::int64_t, 5>, PeriodStarts> period_starts_;
  std::int64_t tiles_visited_ = 0;  // of patterns, since they were last counted
  std::vector<std::pair<std::int64_t, std::int64_t>> borders_;  // tile, step
};

// Tiles that a segment covers over all rows of its run.
std::int64_t tiles_in_run(const TileRun& run, const TileSegment& segment) {
  const std::int64_t rows = run.num_rows;
  const std::int64_t growth = std::int64_t{segment.step_end} - segment.step_first;
  return rows * (std::int64_t{segment.end_tile} - segment.first_tile) +
         growth * (rows * (rows - 1) / 2);
}

void add(TileCounts& sum, const TileCounts& counts, std::int64_t times) {
  sum.empty += times * counts.empty;
  sum.full += times * counts.full;
  sum.partial += times * counts.partial;
  sum.allowed_pairs += times * counts.allowed_pairs;
}

// For each bitmap 1, or 0 if no tile has it: a pattern may hold tiles that none of its segments
// reaches.
std::vector<char> bitmaps_in_use(const SegmentMask& mask) {
  std::vector<char> is_used(static_cast<std::size_t>(mask.num_bitmaps()), !mask.has_patterns());
  if (!mask.has_patterns()) return is_used;
  // Differences of the number of tile rows that reach an entry of PatternRowSums.
  std::vector<std::int64_t> steps(mask.pattern_tiles.size() + mask.pattern_offsets.size());
  const auto reach = [&](std::size_t first, std::size_t end) {
    ++steps[first];
    --steps[end];
  };
  for (const TileRun& run : mask.runs) {
    for (std::int64_t s = 0; s < run.num_segments; ++s) {
      const TileSegment& segment = mask.segments[static_cast<std::size_t>(run.first_segment + s)];
      const auto data_index = static_cast<std::size_t>(segment.data_index);
      if (segment.kind == SegmentKind::bitmap) is_used[data_index] = 1;
      if (segment.kind != SegmentKind::pattern) continue;
      const TilePattern& pattern = mask.patterns[data_index];
      for (std::int64_t i = 0; i < run.num_rows; ++i) {
        const std::int64_t row = run.first_row + i * run.row_stride;
        const PatternBound from =
            bound_of(mask, pattern, row, segment.first_tile + i * segment.step_first);
        const PatternBound to =
            bound_of(mask, pattern, row, segment.end_tile + i * segment.step_end);
        if (from.turns == to.turns) {
          reach(from.at, to.at);
          continue;
        }
        reach(from.at, from.whole_turn);
        reach(to.first, to.at);
        if (to.turns - from.turns > 1) reach(from.first, from.whole_turn);
      }
    }
  }
  for (std::size_t row = 0; row + 1 < mask.pattern_offsets.size(); ++row) {
    std::int64_t reached = 0;
    for (auto t = static_cast<std::size_t>(mask.pattern_offsets[row]);
         t < static_cast<std::size_t>(mask.pattern_offsets[row + 1]); ++t) {
      reached += steps[t + row];
      const std::int32_t bitmap = mask.pattern_tiles[t].bitmap;
      if (reached > 0 && bitmap != kFullTile) is_used[static_cast<std::size_t>(bitmap)] = 1;
    }
  }
  return is_used;
}

std::vector<GroupStatistics> list_groups(const BlockMask& mask) {
  std::vector<GroupStatistics> groups(static_cast<std::size_t>(mask.num_groups()));
  for (std::int64_t b = mask.shape.num_batches - 1; b >= 0; --b) {
    for (std::int64_t h = mask.shape.num_heads - 1; h >= 0; --h) {
      GroupStatistics& group = groups[static_cast<std::size_t>(mask.group(b, h))];
      group.first_batch = b;
      group.first_head = h;
      group.q_len = mask.shape.q_len(b);
      group.kv_len = mask.shape.kv_len(b);
      ++group.num_pairs;
    }
  }
  return groups;
}

void count_bytes(GroupStatistics& group, const SegmentMask& segments, BlockShape block,
                 bool count_all) {
  const std::int64_t tile_rows = ceil_div(group.q_len, block.block_q);
  const std::int64_t tile_cols = ceil_div(group.kv_len, block.block_kv);
  const std::int64_t bitmap_bytes = std::int64_t{block.block_q} * block.block_kv / 8;
  bytes_in(group.bytes, MaskFormat::segment) = segments.size_bytes();
  const Result<ParametricMask> parametric = parametric_from_segment(segments);
  if (parametric) bytes_in(group.bytes, MaskFormat::parametric) = parametric->size_bytes();
  if (group.distinct_bitmaps) {
    const std::int64_t bitmaps = *group.distinct_bitmaps * bitmap_bytes;
    bytes_in(group.bytes, MaskFormat::bitset) = 16 * tile_rows * ceil_div(tile_cols, 64) +
                                                8 * (tile_rows + 1) + 4 * group.tiles.partial +
                                                bitmaps;
    bytes_in(group.bytes, MaskFormat::bcsr) =
        8 * (tile_rows + 1) + 8 * (group.tiles.full + group.tiles.partial) + bitmaps;
  }
  const auto intervals = count_query_intervals(
      segments, count_all ? std::numeric_limits<std::int64_t>::max() : kMaxPartsCounted);
  if (intervals) bytes_in(group.bytes, MaskFormat::columns) = 8 * (group.kv_len + 1 + *intervals);
  bytes_in(group.bytes, MaskFormat::dense) = 8 * group.q_len * ceil_div(group.kv_len, 64);
}

// True if the segments of the mask say which of its tiles of shape `block` are full and partial: all
// tiles are whole, and each stored bitmap has cells of both kinds.
bool has_classes_of(BlockShape block, const SegmentMask& mask) {
  if (block != mask.block || mask.q_len % block.block_q != 0 || mask.kv_len % block.block_kv != 0) {
    return false;
  }
  for (const TileSegment& segment : mask.segments) {
    if (segment.kind != SegmentKind::full && segment.kind != SegmentKind::bitmap) return false;
  }
  for (std::int64_t i = 0; i < mask.num_bitmaps(); ++i) {
    const auto words = mask.bitmap(i);
    const std::uint64_t first = words[0];
    const bool is_uniform =
        (first == 0 || ~first == 0) &&
        std::all_of(words.begin(), words.end(), [&](std::uint64_t word) { return word == first; });
    if (is_uniform) return false;
  }
  return true;
}

MaskStatistics sum_up(std::vector<GroupStatistics> groups) {
  MaskStatistics sum;
  sum.distinct_bitmaps = 0;
  sum.bytes.fill(0);
  for (const GroupStatistics& group : groups) {
    add(sum.tiles, group.tiles, group.num_pairs);
    sum.total_pairs += group.num_pairs * group.q_len * group.kv_len;
    if (sum.distinct_bitmaps && group.distinct_bitmaps) {
      *sum.distinct_bitmaps += *group.distinct_bitmaps;
    } else {
      sum.distinct_bitmaps.reset();
    }
    for (std::size_t format = 0; format < sum.bytes.size(); ++format) {
      if (sum.bytes[format] && group.bytes[format]) {
        *sum.bytes[format] += *group.bytes[format];
      } else {
        sum.bytes[format].reset();
      }
    }
  }
  sum.groups = std::move(groups);
  return sum;
}

}  // namespace

std::int64_t count_query_intervals(const SegmentMask& mask) {
  return *count_query_intervals(mask, std::numeric_limits<std::int64_t>::max());
}

std::optional<std::int64_t> count_query_intervals(const SegmentMask& mask, std::int64_t max_parts) {
  if (!mask.column_offsets.empty()) return static_cast<std::int64_t>(mask.column_intervals.size());
  if (mask.q_len == 0) return 0;
  std::vector<std::int64_t> in_bitmap(static_cast<std::size_t>(mask.num_bitmaps()));
  for (std::size_t i = 0; i < in_bitmap.size(); ++i) {
    in_bitmap[i] = starts_in_bitmap(mask.bitmap(static_cast<std::int64_t>(i)), mask.block);
  }
  std::vector<std::int64_t> in_panel(static_cast<std::size_t>(mask.num_row_panels()));
  for (std::size_t i = 0; i < in_panel.size(); ++i) {
    in_panel[i] = starts_in_panel(mask, static_cast<std::int64_t>(i));
  }
  const PatternRowSums<std::int64_t> in_pattern_rows(mask, [&](const PatternTile& tile) {
    return tile.bitmap == kFullTile ? 0 : in_bitmap[static_cast<std::size_t>(tile.bitmap)];
  });
  std::int64_t intervals = 0;
  for (const TileRun& run : mask.runs) {
    for (std::int64_t s = 0; s < run.num_segments; ++s) {
      const TileSegment& segment = mask.segments[static_cast<std::size_t>(run.first_segment + s)];
      const auto data_index = static_cast<std::size_t>(segment.data_index);
      if (segment.kind == SegmentKind::bitmap) {
        intervals += tiles_in_run(run, segment) * in_bitmap[data_index];
      } else if (segment.kind == SegmentKind::rows) {
        intervals += run.num_rows * in_panel[data_index];
      } else if (segment.kind == SegmentKind::pattern) {
        intervals += sum_of_pattern_segment(mask, in_pattern_rows, run, segment);
      }
    }
  }
  const std::optional<std::int64_t> starts = BorderStarts(mask).count(max_parts);
  if (!starts) return {};
  return intervals + *starts;
}

std::optional<std::int64_t> count_distinct_bitmaps(const SegmentMask& mask, std::int64_t max_tiles,
                                                   const DrawProgress& progress) {
  // Panels hold their cells relative to their first key: each is drawn once, however often it is
  // used. Columns segments have to be drawn everywhere.
  std::map<std::int32_t, std::int64_t> panel_tiles;
  std::int64_t num_tiles = 0;
  for (const TileRun& run : mask.runs) {
    for (std::int64_t s = 0; s < run.num_segments; ++s) {
      const TileSegment& segment = mask.segments[static_cast<std::size_t>(run.first_segment + s)];
      if (segment.kind == SegmentKind::columns) num_tiles += tiles_in_run(run, segment);
      if (segment.kind != SegmentKind::rows) continue;
      const std::int64_t width = segment.end_tile - segment.first_tile;
      num_tiles += width - std::exchange(panel_tiles[segment.data_index], width);
    }
  }
  const std::vector<char> is_used = bitmaps_in_use(mask);
  if (num_tiles == 0) return std::count(is_used.begin(), is_used.end(), 1);
  if (num_tiles > max_tiles) return {};
  SegmentBuilder distinct(mask.q_len, mask.kv_len, mask.block);
  std::int64_t count = 0;
  const auto see = [&](const std::uint64_t* words) {
    count = std::max<std::int64_t>(count, distinct.intern_bitmap(words) + 1);
  };
  for (std::int64_t i = 0; i < mask.num_bitmaps(); ++i) {
    if (is_used[static_cast<std::size_t>(i)] != 0) see(mask.bitmap(i).data());
  }
  std::vector<std::uint64_t> words(static_cast<std::size_t>(mask.words_per_bitmap()));
  std::int64_t num_drawn = 0;
  const auto draw = [&](const TileSegment& segment, std::int64_t row, std::int64_t first,
                        std::int64_t end) {
    for (std::int64_t tile = first; tile < end; ++tile) {
      tile_cells(mask, segment, static_cast<std::int32_t>(row), static_cast<std::int32_t>(tile),
                 words.data());
      see(words.data());
      ++num_drawn;
      if (progress) progress(num_drawn, num_tiles);
    }
  };
  for (const TileRun& run : mask.runs) {
    for (std::int64_t s = 0; s < run.num_segments; ++s) {
      const TileSegment& segment = mask.segments[static_cast<std::size_t>(run.first_segment + s)];
      if (segment.kind == SegmentKind::rows && panel_tiles.erase(segment.data_index) != 0) {
        draw(segment, run.first_row, segment.first_tile, segment.end_tile);
      }
      if (segment.kind != SegmentKind::columns) continue;
      for (std::int64_t i = 0; i < run.num_rows; ++i) {
        draw(segment, run.first_row + i * run.row_stride,
             segment.first_tile + i * segment.step_first, segment.end_tile + i * segment.step_end);
      }
    }
  }
  return count;
}

MaskStatistics measure(const BlockMask& mask, bool count_all, const DrawProgress& progress) {
  std::vector<GroupStatistics> groups = list_groups(mask);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const SegmentMask segments = segment_of_group(mask, static_cast<std::int64_t>(g), mask.block);
    groups[g].tiles = count_tiles(segments);
    groups[g].distinct_bitmaps = count_distinct_bitmaps(
        segments, count_all ? std::numeric_limits<std::int64_t>::max() : kMaxTilesDrawn, progress);
    count_bytes(groups[g], segments, mask.block, count_all);
  }
  return sum_up(std::move(groups));
}

MaskStatistics count(const BlockMask& mask, BlockShape block) {
  std::vector<GroupStatistics> groups = list_groups(mask);
  const auto* stored = std::get_if<std::vector<SegmentMask>>(&mask.groups);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    groups[g].tiles =
        stored != nullptr && has_classes_of(block, (*stored)[g])
            ? count_tiles((*stored)[g])
            : count_tiles(segment_of_group(mask, static_cast<std::int64_t>(g), block));
  }
  return sum_up(std::move(groups));
}

}  // namespace fdma
