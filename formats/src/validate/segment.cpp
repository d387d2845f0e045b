// Validation of segment masks.
//
// A run is valid for all its tile rows iff it is valid for the first and the last, because every
// bound moves linearly in between. The runs must cover each tile row once. This is checked per
// residue modulo the row period: each run begins where the one before ended.
//
// Which tile of a pattern meets the ragged edge of the mask depends on the tile row and column
// (check_pattern_edges): the last tile row is looked at tile by tile, and the last tile column in
// every row of the run that reaches it, until rows repeat. Patterns without a bitmap that is larger
// than the ragged tiles need no look.
#include <algorithm>
#include <limits>
#include <numeric>

#include "fdma/formats/convert.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "validate/validation.hpp"

namespace fdma {
namespace {

Result<void> check_pattern_sizes(const SegmentMask& mask) {
  if (mask.pattern_offsets.empty()) {
    return corrupt("pattern_offsets: 0 entries, expected 1 + the number of pattern rows");
  }
  for (const auto& [name, size] : {std::pair{"patterns", mask.patterns.size()},
                                   std::pair{"pattern_offsets", mask.pattern_offsets.size() - 1},
                                   std::pair{"pattern_tiles", mask.pattern_tiles.size()}}) {
    if (size > static_cast<std::size_t>(kMaxPatternTiles)) {
      return corrupt(
          fmt::format("{}: {} entries, expected at most {}", name, size, kMaxPatternTiles));
    }
  }
  if (mask.has_patterns()) {
    FDMA_TRY_VOID(check_size("column_offsets", mask.column_offsets.size(), 0,
                             "a mask with patterns has no column table"));
  }
  return check_offset_ends("pattern_offsets", mask.pattern_offsets, mask.pattern_tiles.size(),
                           "pattern_tiles");
}

Result<void> check_sizes(const SegmentMask& mask) {
  FDMA_TRY_VOID(check_tiled(mask.q_len, mask.kv_len, mask.block));
  FDMA_TRY_VOID(check_bitmap_words(mask.bitmaps.size(), mask.block));
  if (mask.row_offsets.empty()) {
    return corrupt("row_offsets: 0 entries, expected 1 + block_q times the number of row panels");
  }
  const std::size_t panel_rows = mask.row_offsets.size() - 1;
  const auto block_q = static_cast<std::size_t>(mask.block.block_q);
  if (panel_rows % block_q != 0 ||
      panel_rows / block_q > std::numeric_limits<std::int32_t>::max()) {
    return corrupt(fmt::format("row_offsets: {} entries, expected 1 + a multiple of block_q = {}",
                               mask.row_offsets.size(), block_q));
  }
  FDMA_TRY_VOID(check_offset_ends("row_offsets", mask.row_offsets, mask.row_intervals.size(),
                                  "row_intervals"));
  FDMA_TRY_VOID(check_pattern_sizes(mask));
  if (mask.column_offsets.empty()) {
    return check_size("column_intervals", mask.column_intervals.size(), 0,
                      "column_offsets is empty");
  }
  FDMA_TRY_VOID(
      check_size("column_offsets", mask.column_offsets.size(), mask.kv_len + 1, "kv_len + 1"));
  return check_offset_ends("column_offsets", mask.column_offsets, mask.column_intervals.size(),
                           "column_intervals");
}

class StructureCheck {
 public:
  explicit StructureCheck(const SegmentMask& mask)
      : mask_(mask),
        num_rows_(mask.num_tile_rows()),
        num_cols_(mask.num_tile_cols()),
        period_(row_period(mask.block)) {}

  Result<void> run() {
    FDMA_TRY_VOID(check_data_indices());
    FDMA_TRY_VOID(check_patterns());
    FDMA_TRY_VOID(check_runs());
    for (std::size_t i = 0; i < mask_.runs.size(); ++i) {
      const TileRun& run = mask_.runs[i];
      FDMA_TRY_VOID(check_row(run, 0));
      if (run.num_rows > 1) FDMA_TRY_VOID(check_row(run, run.num_rows - 1));
      if (mask_.has_patterns()) FDMA_TRY_VOID(check_pattern_edges(run));
    }
    return {};
  }

 private:
  Result<void> check_data_indices() {
    FDMA_TRY_VOID(check_ascending("row_offsets", mask_.row_offsets));
    FDMA_TRY_VOID(check_interval_lists("row_intervals", mask_.row_offsets, mask_.row_intervals,
                                       mask_.kv_len));
    extents_ = bitmap_extents(mask_.bitmaps, mask_.block);
    const std::int64_t block_q = mask_.block.block_q;
    panel_extents_.resize(static_cast<std::size_t>(mask_.num_row_panels()));
    for (std::size_t p = 0; p < panel_extents_.size(); ++p) {
      for (std::int64_t r = 0; r < block_q; ++r) {
        const std::size_t row = p * static_cast<std::size_t>(block_q) + static_cast<std::size_t>(r);
        const std::int64_t last = mask_.row_offsets[row + 1];
        if (last == mask_.row_offsets[row]) continue;
        panel_extents_[p].rows = static_cast<std::int32_t>(r) + 1;
        panel_extents_[p].keys = std::max(
            panel_extents_[p].keys, mask_.row_intervals[static_cast<std::size_t>(last) - 1].end);
      }
    }
    if (mask_.column_offsets.empty()) return {};
    FDMA_TRY_VOID(check_ascending("column_offsets", mask_.column_offsets));
    return check_interval_lists("column_intervals", mask_.column_offsets, mask_.column_intervals,
                                mask_.q_len);
  }

  Result<void> check_patterns() {
    FDMA_TRY_VOID(check_ascending("pattern_offsets", mask_.pattern_offsets));
    std::int64_t next_row = 0, num_tiles = 0;
    const std::int64_t num_pattern_rows = std::ssize(mask_.pattern_offsets) - 1;
    pattern_extents_.resize(mask_.patterns.size());
    for (std::size_t i = 0; i < mask_.patterns.size(); ++i) {
      const TilePattern& p = mask_.patterns[i];
      if (p.num_rows < 1 || p.num_cols < 1) {
        return bad_pattern(
            i, fmt::format("{} x {} tiles, expected at least 1 x 1", p.num_rows, p.num_cols));
      }
      const std::int64_t size = std::int64_t{p.num_rows} * p.num_cols;
      if (size == 1) return bad_pattern(i, "1 x 1 tiles, expected more than one tile");
      if (size > kMaxPatternTiles - num_tiles) {
        return bad_pattern(i, fmt::format("{} x {} tiles, expected at most {} of all patterns",
                                          p.num_rows, p.num_cols, kMaxPatternTiles));
      }
      num_tiles += size;
      if (p.skew < 0 || p.skew >= p.num_cols) {
        return bad_pattern(i, fmt::format("skew {}, expected 0 to {}", p.skew, p.num_cols - 1));
      }
      if (p.first_row != next_row) {
        return bad_pattern(i, fmt::format("first_row {}, expected {}, where the pattern before it "
                                          "ends",
                                          p.first_row, next_row));
      }
      next_row += p.num_rows;
      if (next_row > num_pattern_rows) {
        return bad_pattern(i, fmt::format("rows {} + {}, but pattern_offsets has {} rows",
                                          p.first_row, p.num_rows, num_pattern_rows));
      }
      for (std::int32_t row = 0; row < p.num_rows; ++row) {
        FDMA_TRY_VOID(check_pattern_row(i, p, row));
      }
    }
    return check_size("pattern_offsets", mask_.pattern_offsets.size(), next_row + 1,
                      "1 + the rows of all patterns");
  }

  Result<void> check_pattern_row(std::size_t pattern, const TilePattern& p, std::int32_t row) {
    std::int32_t before = -1;
    BitmapExtent& extent = pattern_extents_[pattern];
    for (const PatternTile& tile : mask_.pattern_row_tiles(p, row)) {
      const auto at = &tile - mask_.pattern_tiles.data();
      if (tile.column <= before || tile.column >= p.num_cols) {
        return corrupt(
            fmt::format("pattern_tiles[{}]: column {}, expected {} to {} in row {} of "
                        "pattern {}",
                        at, tile.column, before + 1, p.num_cols - 1, row, pattern));
      }
      before = tile.column;
      if (tile.bitmap < kFullTile || tile.bitmap >= mask_.num_bitmaps()) {
        return corrupt(fmt::format("pattern_tiles[{}]: bitmap {}, expected -1 to {}", at,
                                   tile.bitmap, mask_.num_bitmaps() - 1));
      }
      if (tile.bitmap == kFullTile) continue;
      const BitmapExtent& cells = extents_[static_cast<std::size_t>(tile.bitmap)];
      extent.rows = std::max(extent.rows, cells.rows);
      extent.keys = std::max(extent.keys, cells.keys);
    }
    return {};
  }

  // The bitmaps of pattern segments in the last tile row and column, which may be ragged.
  Result<void> check_pattern_edges(const TileRun& run) {
    const std::int64_t last_row = run.first_row + (run.num_rows - std::int64_t{1}) * period_;
    const BitmapExtent corner =
        existing_cells(mask_.q_len, mask_.kv_len, mask_.block, num_rows_ - 1, num_cols_ - 1);
    for (std::int64_t s = run.first_segment; s < run.first_segment + run.num_segments; ++s) {
      const TileSegment& segment = mask_.segments[static_cast<std::size_t>(s)];
      if (segment.kind != SegmentKind::pattern) continue;
      const auto pattern = static_cast<std::size_t>(segment.data_index);
      const BitmapExtent& extent = pattern_extents_[pattern];
      if (last_row == num_rows_ - 1 && extent.rows > corner.rows) {
        FDMA_TRY_VOID(check_last_row(s, segment, run.num_rows - 1));
      }
      if (extent.keys > corner.keys) FDMA_TRY_VOID(check_last_column(s, segment, run));
    }
    return {};
  }

  // Tile row `i` of the run is the last of the mask. Each tile of the pattern row is looked at
  // once.
  Result<void> check_last_row(std::int64_t s, const TileSegment& segment, std::int64_t i) {
    const std::int64_t row = num_rows_ - 1;
    const std::int64_t first = segment.first_tile + i * segment.step_first;
    const std::int64_t end = segment.end_tile + i * segment.step_end;
    const PatternRow tiles = mask_.pattern_row(segment.data_index, static_cast<std::int32_t>(row));
    Result<void> status;
    tiles.for_each_tile(
        static_cast<std::int32_t>(first),
        static_cast<std::int32_t>(std::min<std::int64_t>(end, first + tiles.num_cols)),
        [&](std::int32_t col, std::int32_t tile) {
          if (status) status = check_pattern_tile(s, tile, row, col);
        });
    return status;
  }

  // The tile in the last column of the mask, for all rows of the run in which the segment reaches
  // it. Rows repeat after the rows of the pattern, times the turns after which its skew does.
  Result<void> check_last_column(std::int64_t s, const TileSegment& segment, const TileRun& run) {
    const std::int64_t last = run.num_rows - 1;
    std::int64_t first_i = 0, end_i = run.num_rows;
    if (segment.step_end != 0) {  // the border meets the edge in the first row or the last
      first_i = segment.step_end > 0 ? last : 0;
      end_i = first_i + 1;
    }
    if (segment.end_tile + first_i * segment.step_end != num_cols_) return {};
    const TilePattern& p = mask_.patterns[static_cast<std::size_t>(segment.data_index)];
    const std::int64_t turns =
        p.num_cols / std::gcd<std::int64_t>(p.num_cols, std::int64_t{p.skew} * p.num_rows);
    end_i = std::min(end_i, first_i + p.num_rows * turns);
    const std::int64_t col = num_cols_ - 1;
    for (std::int64_t i = first_i; i < end_i; ++i) {
      const std::int64_t row = run.first_row + i * period_;
      const std::int32_t tile =
          mask_.pattern_row(segment.data_index, static_cast<std::int32_t>(row))
              .tile_at(static_cast<std::int32_t>(col));
      FDMA_TRY_VOID(check_pattern_tile(s, tile, row, col));
    }
    return {};
  }

  Result<void> check_pattern_tile(std::int64_t s, std::int32_t tile, std::int64_t row,
                                  std::int64_t col) {
    if (tile < 0) return {};
    const BitmapExtent cells = extents_[static_cast<std::size_t>(tile)];
    const BitmapExtent existing = existing_cells(mask_.q_len, mask_.kv_len, mask_.block, row, col);
    return check_padding("segments", static_cast<std::size_t>(s), cells, existing, row, col);
  }

  Result<void> check_runs() {
    std::vector<std::int64_t> next_row(static_cast<std::size_t>(period_));
    for (std::size_t r = 0; r < next_row.size(); ++r) next_row[r] = static_cast<std::int64_t>(r);
    std::int64_t next_segment = 0, row_before = -1;
    for (std::size_t i = 0; i < mask_.runs.size(); ++i) {
      const TileRun& run = mask_.runs[i];
      if (run.row_stride != period_) {
        return bad_run(i, fmt::format("row_stride {}, expected {}", run.row_stride, period_));
      }
      if (run.first_row <= row_before) {
        return bad_run(i, fmt::format("first_row {}, expected more than {}, that of the run before",
                                      run.first_row, row_before));
      }
      row_before = run.first_row;
      std::int64_t& next = next_row[static_cast<std::size_t>(run.first_row % period_)];
      if (run.first_row != next) {
        return bad_run(i, fmt::format("first_row {}, but tile row {} comes next in its stride",
                                      run.first_row, next));
      }
      const std::int64_t last =
          run.first_row + (std::int64_t{run.num_rows} - 1) * std::int64_t{period_};
      if (run.num_rows < 1 || last >= num_rows_) {
        return bad_run(i, fmt::format("num_rows {} from tile row {} on, expected at least 1 and no "
                                      "row beyond {}",
                                      run.num_rows, run.first_row, num_rows_));
      }
      next = last + period_;
      if (run.num_segments < 0 || run.first_segment != next_segment ||
          run.num_segments > static_cast<std::int64_t>(mask_.segments.size()) - next_segment) {
        return bad_run(i, fmt::format("segments {} + {}, expected to begin at {} and end by {}",
                                      run.first_segment, run.num_segments, next_segment,
                                      mask_.segments.size()));
      }
      next_segment += run.num_segments;
    }
    for (const std::int64_t next : next_row) {
      if (next < num_rows_) return corrupt(fmt::format("runs: none holds tile row {}", next));
    }
    return check_size("segments", mask_.segments.size(), next_segment, "the runs hold as many");
  }

  // The segments of tile row `i` of a run.
  Result<void> check_row(const TileRun& run, std::int64_t i) {
    const std::int64_t row = run.first_row + i * run.row_stride;
    std::int64_t end_before = 0;
    for (std::int64_t s = run.first_segment; s < run.first_segment + run.num_segments; ++s) {
      const TileSegment& segment = mask_.segments[static_cast<std::size_t>(s)];
      const std::int64_t first = segment.first_tile + i * segment.step_first;
      const std::int64_t end = segment.end_tile + i * segment.step_end;
      if (first < end_before || first >= end || end > num_cols_) {
        return bad_segment(s, fmt::format("tiles [{}, {}) of tile row {}, expected a range inside "
                                          "[{}, {}) that is not empty",
                                          first, end, row, end_before, num_cols_));
      }
      end_before = end;
      FDMA_TRY_VOID(check_data_index(s, segment, row, first, end));
    }
    return {};
  }

  Result<void> check_data_index(std::int64_t s, const TileSegment& segment, std::int64_t row,
                                std::int64_t first, std::int64_t end) {
    const auto data_index = static_cast<std::size_t>(segment.data_index);
    BitmapExtent existing = existing_cells(mask_.q_len, mask_.kv_len, mask_.block, row, end - 1);
    switch (segment.kind) {
      case SegmentKind::bitmap:
        if (segment.data_index < 0 || segment.data_index >= mask_.num_bitmaps()) {
          return bad_data_index(s, segment.data_index, mask_.num_bitmaps());
        }
        return check_padding("segments", static_cast<std::size_t>(s), extents_[data_index],
                             existing, row, end - 1);
      case SegmentKind::rows:
        if (segment.data_index < 0 || segment.data_index >= mask_.num_row_panels()) {
          return bad_data_index(s, segment.data_index, mask_.num_row_panels());
        }
        existing.keys += static_cast<std::int32_t>((end - 1 - first) * mask_.block.block_kv);
        if (panel_extents_[data_index].rows > existing.rows ||
            panel_extents_[data_index].keys > existing.keys) {
          return bad_segment(
              s,
              fmt::format("row panel {} reaches {} rows x {} keys, but the segment has {} x {} in "
                          "tile row {}",
                          data_index, panel_extents_[data_index].rows,
                          panel_extents_[data_index].keys, existing.rows, existing.keys, row));
        }
        return {};
      case SegmentKind::pattern:
        if (segment.data_index < 0 || segment.data_index >= std::ssize(mask_.patterns)) {
          return bad_data_index(s, segment.data_index, std::ssize(mask_.patterns));
        }
        return {};
      case SegmentKind::columns:
        if (mask_.column_offsets.empty()) {
          return bad_segment(s, "kind columns, but column_offsets is empty");
        }
        [[fallthrough]];
      case SegmentKind::full:
        return segment.data_index == 0 ? Result<void>{} : bad_data_index(s, segment.data_index, 1);
    }
    return bad_segment(
        s, fmt::format("kind {}, expected 0 to 4", static_cast<std::int32_t>(segment.kind)));
  }

  static Result<void> bad_pattern(std::size_t index, const std::string& what) {
    return corrupt(fmt::format("patterns[{}]: {}", index, what));
  }
  static Result<void> bad_run(std::size_t index, const std::string& what) {
    return corrupt(fmt::format("runs[{}]: {}", index, what));
  }
  static Result<void> bad_segment(std::int64_t index, const std::string& what) {
    return corrupt(fmt::format("segments[{}]: {}", index, what));
  }
  static Result<void> bad_data_index(std::int64_t index, std::int32_t data_index,
                                     std::int64_t limit) {
    return bad_segment(index, fmt::format("payload {}, expected less than {}", data_index, limit));
  }

  const SegmentMask& mask_;
  const std::int64_t num_rows_, num_cols_;
  const std::int32_t period_;
  std::vector<BitmapExtent> extents_;
  std::vector<BitmapExtent> panel_extents_;
  std::vector<BitmapExtent> pattern_extents_;  // the largest of the bitmaps of a pattern
};

std::string describe_run(const TileRun& run) {
  return fmt::format("{{row {}, stride {}, rows {}, segments {} + {}}}", run.first_row,
                     run.row_stride, run.num_rows, run.first_segment, run.num_segments);
}

std::string describe_segment(const TileSegment& segment) {
  return fmt::format("{{tiles [{}, {}), steps {}, {}, kind {}, payload {}}}", segment.first_tile,
                     segment.end_tile, segment.step_first, segment.step_end,
                     static_cast<std::int32_t>(segment.kind), segment.data_index);
}

std::string describe_pattern(const TilePattern& pattern) {
  return fmt::format("{{{} x {} tiles, skew {}, first row {}}}", pattern.num_rows, pattern.num_cols,
                     pattern.skew, pattern.first_row);
}

// The tiles of a pattern as SegmentBuilder::add_pattern takes them.
std::vector<std::int32_t> tiles_of(const SegmentMask& mask, const TilePattern& pattern) {
  std::vector<std::int32_t> tiles(
      static_cast<std::size_t>(pattern.num_rows) * static_cast<std::size_t>(pattern.num_cols),
      kEmptyTile);
  std::int64_t base = 0;
  for (std::int32_t row = 0; row < pattern.num_rows; ++row, base += pattern.num_cols) {
    for (const PatternTile& tile : mask.pattern_row_tiles(pattern, row)) {
      tiles[static_cast<std::size_t>(base + tile.column)] = tile.bitmap;
    }
  }
  return tiles;
}

// Bitmaps that are neither empty nor full, and differ.
Result<void> check_distinct_bitmaps(const SegmentMask& mask, SegmentBuilder& builder) {
  for (std::int64_t i = 0; i < mask.num_bitmaps(); ++i) {
    const std::span<const std::uint64_t> words = mask.bitmap(i);
    for (const std::uint64_t word : {std::uint64_t{0}, ~std::uint64_t{0}}) {
      if (std::all_of(words.begin(), words.end(), [&](std::uint64_t w) { return w == word; })) {
        return corrupt(fmt::format("bitmaps[{}]: {} cell is true, expected {} tile", i,
                                   word == 0 ? "no" : "every", word == 0 ? "an empty" : "a full"));
      }
    }
    const std::int32_t same = builder.intern_bitmap(words.data());
    if (same != i) {
      return corrupt(
          fmt::format("bitmaps[{}]: equal to bitmaps[{}], expected to be stored once", i, same));
    }
  }
  return {};
}

// Neighbours that would be one segment.
Result<void> check_maximal_segments(const SegmentMask& mask) {
  for (const TileRun& run : mask.runs) {
    for (std::int64_t s = run.first_segment + 1; s < run.first_segment + run.num_segments; ++s) {
      const TileSegment& before = mask.segments[static_cast<std::size_t>(s) - 1];
      const TileSegment& segment = mask.segments[static_cast<std::size_t>(s)];
      if (segment.kind == before.kind && segment.data_index == before.data_index &&
          segment.kind != SegmentKind::rows && segment.first_tile == before.end_tile &&
          segment.step_first == before.step_end) {
        return corrupt(
            fmt::format("segments[{}]: continues segments[{}], expected one segment", s, s - 1));
      }
    }
  }
  return {};
}

// Masks with patterns have no canonical form: which tiles are taken for a pattern is the choice of
// whoever made the mask. What is stored must be what SegmentBuilder makes of these tiles, patterns
// and rows: each bitmap and pattern once, patterns with their smallest periods, runs as long as
// they can be.
Result<void> check_built_alike(const SegmentMask& mask) {
  SegmentBuilder builder(mask.q_len, mask.kv_len, mask.block);
  FDMA_TRY_VOID(check_distinct_bitmaps(mask, builder));
  for (std::size_t i = 0; i < mask.patterns.size(); ++i) {
    const TilePattern& p = mask.patterns[i];
    const auto content = builder.add_pattern(p.num_rows, p.num_cols, p.skew, tiles_of(mask, p));
    if (content.is_empty || content.kind != SegmentKind::pattern) {
      return corrupt(fmt::format("patterns[{}]: all its tiles are equal, expected {}", i,
                                 content.is_empty ? "no segment" : "a segment of one tile"));
    }
    if (content.data_index != static_cast<std::int32_t>(i)) {
      return corrupt(fmt::format("patterns[{}]: equal to patterns[{}], expected to be stored once",
                                 i, content.data_index));
    }
  }
  FDMA_TRY_VOID(check_maximal_segments(mask));
  for (const TileRun& run : mask.runs) {
    builder.add_rows(run.first_row, run.num_rows,
                     std::span(mask.segments)
                         .subspan(static_cast<std::size_t>(run.first_segment),
                                  static_cast<std::size_t>(run.num_segments)));
  }
  builder.skip_to(mask.num_tile_rows());
  const SegmentMask built = builder.finish();
  constexpr std::string_view kForm = "the form that is built of these tiles and patterns";
  FDMA_TRY_VOID(
      check_canonical("patterns", mask.patterns, built.patterns, describe_pattern, kForm));
  FDMA_TRY_VOID(check_canonical("runs", mask.runs, built.runs, describe_run, kForm));
  return check_canonical("segments", mask.segments, built.segments, describe_segment, kForm);
}

}  // namespace

Result<void> validate(const SegmentMask& mask, ValidationLevel level) {
  FDMA_TRY_VOID(check_sizes(mask));
  if (level == ValidationLevel::sizes) return {};
  FDMA_TRY_VOID(StructureCheck(mask).run());
  if (level == ValidationLevel::structure) return {};
  if (mask.has_patterns()) return check_built_alike(mask);
  const SegmentMask canonical = segment_from_segment(mask, mask.block);
  FDMA_TRY_VOID(check_canonical("runs", mask.runs, canonical.runs, describe_run));
  FDMA_TRY_VOID(check_canonical("segments", mask.segments, canonical.segments, describe_segment));
  FDMA_TRY_VOID(check_canonical("bitmaps", mask.bitmaps, canonical.bitmaps));
  FDMA_TRY_VOID(check_canonical("row_offsets", mask.row_offsets, canonical.row_offsets));
  FDMA_TRY_VOID(check_canonical("row_intervals", mask.row_intervals, canonical.row_intervals));
  FDMA_TRY_VOID(check_canonical("column_offsets", mask.column_offsets, canonical.column_offsets));
  return check_canonical("column_intervals", mask.column_intervals, canonical.column_intervals);
}

}  // namespace fdma
