// Swapping query rows and keys.
//
// Going down the tile rows, a tile column changes where the parts of one row (uniform_runs.hpp)
// differ from those of the row above. Between changes its tiles hold the same cells. The changes,
// sorted by column, are the tile rows of the transposed mask; every distinct partial tile is
// transposed once. Rows of a run whose parts do not move have no changes and are skipped. The mask
// that results has one run for each tile row; as the only layer of tile_layers.hpp it becomes
// canonical. Example: causal over 1M tokens has two changes in each of 8192 tile rows.
//
// A pattern is one source. Translations (rows, cols) of its lattice become (cols, rows). Some
// lattices need a longer period from the other side: a row of 4 tiles with a skew of 2 becomes
// 4 x 2 tiles. A mask is written out if one of its patterns would need more tiles than the mask
// has, or all together more than kMaxPatternTiles.
//
// A column table lists query intervals by key. These are the key intervals of the result's rows.
#include <algorithm>
#include <array>
#include <vector>

#include "algebra/combine_segments.hpp"
#include "algebra/tile_layers.hpp"
#include "fdma/formats/row_bands.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "fdma/formats/tile_lattice.hpp"
#include "segment/bit_copy.hpp"
#include "segment/bit_transpose.hpp"

namespace fdma {
namespace {

// From tile row `row` on, the tiles of column `col` come from `source`.
struct SourceChange {
  std::int32_t col;
  std::int32_t row;
  TileSource source;
};

// Appends the differences between the parts of two adjacent tile rows.
void append_changes(std::span<const UniformRun> above, std::span<const UniformRun> below,
                    std::int32_t row, std::int64_t num_cols, std::vector<SourceChange>& changes) {
  std::size_t a = 0, b = 0;
  const auto source_at = [](std::span<const UniformRun> parts, std::size_t i, std::int64_t tile) {
    return i < parts.size() && parts[i].first <= tile ? parts[i].source : kEmptyTiles;
  };
  const auto border_after = [&](std::span<const UniformRun> parts, std::size_t i,
                                std::int64_t tile) {
    if (i == parts.size()) return num_cols;
    return parts[i].first > tile ? parts[i].first : parts[i].end;
  };
  for (std::int64_t tile = 0; tile < num_cols;) {
    while (a < above.size() && above[a].end <= tile) ++a;
    while (b < below.size() && below[b].end <= tile) ++b;
    const std::int64_t end = std::min(border_after(above, a, tile), border_after(below, b, tile));
    const TileSource source = source_at(below, b, tile);
    if (source != source_at(above, a, tile)) {
      for (std::int64_t col = tile; col < end; ++col) {
        changes.push_back({static_cast<std::int32_t>(col), row, source});
      }
    }
    tile = end;
  }
}

// All changes, by column and then by row.
std::vector<SourceChange> changes_by_column(const SegmentMask& mask, UniformRuns& parts) {
  std::vector<SourceChange> changes;
  std::vector<UniformRun> above, below;
  const std::int64_t num_cols = mask.num_tile_cols();
  const std::int32_t num_rows = mask.num_tile_rows(), period = row_period(mask.block);
  for (std::int32_t row = 0; row < num_rows;) {
    const std::int64_t rows = parts.parts_of(row, below);
    append_changes(above, below, row, num_cols, changes);
    const bool stands_still =
        period == 1 && std::all_of(below.begin(), below.end(), [](const UniformRun& part) {
          return part.step_first == 0 && part.step_end == 0;
        });
    row += stands_still ? static_cast<std::int32_t>(rows) : 1;
    above.swap(below);
  }
  std::stable_sort(changes.begin(), changes.end(),
                   [](const SourceChange& a, const SourceChange& b) { return a.col < b.col; });
  return changes;
}

// Appends the transposed bitmap to `out`.
void append_transposed(const std::uint64_t* words, BlockShape block,
                       std::vector<std::uint64_t>& out) {
  const std::int64_t block_q = block.block_q, block_kv = block.block_kv;
  const std::size_t base = out.size();
  out.resize(base + static_cast<std::size_t>(block_q * block_kv / 64));
  std::array<std::uint64_t, 64> square{};
  for (std::int64_t r = 0; r < block_q; r += 64) {
    const int height = static_cast<int>(std::min<std::int64_t>(64, block_q - r));
    for (std::int64_t c = 0; c < block_kv; c += 64) {
      const int width = static_cast<int>(std::min<std::int64_t>(64, block_kv - c));
      square.fill(0);
      for (int i = 0; i < height; ++i) {
        square[static_cast<std::size_t>(i)] = read_bits(words, (r + i) * block_kv + c, width);
      }
      transpose_64x64(square.data());
      for (int i = 0; i < width; ++i) {
        write_bits(out.data() + base, (c + i) * block_q + r, square[static_cast<std::size_t>(i)],
                   height);
      }
    }
  }
}

SegmentMask transpose_table(const SegmentMask& mask) {
  RowBands bands;
  bands.q_len = mask.kv_len;
  bands.kv_len = mask.q_len;
  bands.intervals.reserve(mask.column_intervals.size());
  for (std::int64_t k = 0; k < mask.kv_len; ++k) {
    const auto key = static_cast<std::size_t>(k);
    const std::int64_t begin = mask.column_offsets[key], end = mask.column_offsets[key + 1];
    if (begin == end) continue;
    const auto row = static_cast<std::int32_t>(k);
    bands.bands.push_back({row, row + 1, begin, static_cast<std::int32_t>(end - begin)});
  }
  for (const Interval& queries : mask.column_intervals) {
    bands.intervals.push_back({queries.begin, queries.end, 0, 0});
  }
  return segment_from_bands(bands, {mask.block.block_kv, mask.block.block_q});
}

// How the tiles of a pattern repeat when rows and columns are swapped, in at most `most_tiles`.
std::optional<PatternPeriod> transposed_period(const TilePattern& p, std::int64_t most_tiles) {
  const std::int64_t rows = p.num_rows, cols = p.num_cols, shift = p.skew * rows % cols;
  TileLattice lattice;  // (r, c) for which (c, r) is a translation of the pattern
  if (!lattice.restrict_to(0, 1, rows) || !lattice.restrict_to(rows, -shift, rows * cols)) {
    return std::nullopt;
  }
  return period_of(lattice, most_tiles / lattice.num_cols);
}

// Appends a pattern of `parts`, transposed, to the mask that results. bitmap_of(source) is the
// index of a transposed bitmap there.
template <class BitmapOf>
void append_pattern(const UniformRuns& parts, TileSource pattern, const PatternPeriod& period,
                    BitmapOf&& bitmap_of, SegmentMask& result) {
  result.patterns.push_back({static_cast<std::int32_t>(period.num_rows),
                             static_cast<std::int32_t>(period.num_cols),
                             static_cast<std::int32_t>(period.skew),
                             static_cast<std::int32_t>(result.pattern_offsets.size()) - 1});
  for (std::int64_t row = 0; row < period.num_rows; ++row) {
    for (std::int64_t column = 0; column < period.num_cols; ++column) {
      const TileSource source = parts.tile_of_pattern(pattern, column + period.skew * row, row);
      if (source == kEmptyTiles) continue;
      result.pattern_tiles.push_back({static_cast<std::int32_t>(column),
                                      source == kFullTiles ? kFullTile : bitmap_of(source)});
    }
    result.pattern_offsets.push_back(std::ssize(result.pattern_tiles));
  }
}

class OnlyLayer final : public TileFunction {
 public:
  explicit OnlyLayer(const UniformRuns& parts) : parts_(parts) {}
  TileClass classify(std::span<const LayerTile> tiles) const override {
    return tiles[0].source == kEmptyTiles  ? TileClass::empty
           : tiles[0].source == kFullTiles ? TileClass::full
                                           : TileClass::partial;
  }
  void evaluate(std::span<const LayerTile> tiles, std::uint64_t* words) override {
    std::copy_n(parts_.bitmap_of(tiles[0].source, nullptr), parts_.mask().words_per_bitmap(),
                words);
  }

 private:
  const UniformRuns& parts_;  // of a mask without row panels
};

}  // namespace

SegmentMask transpose_segment(const SegmentMask& mask) {
  if (!mask.column_offsets.empty()) return transpose_table(mask);
  std::vector<PatternPeriod> periods;  // of the transposed patterns
  std::int64_t num_pattern_tiles = 0;
  for (const TilePattern& pattern : mask.patterns) {
    const std::optional<PatternPeriod> period = transposed_period(
        pattern, std::max<std::int64_t>(std::int64_t{mask.num_tile_rows()} * mask.num_tile_cols(),
                                        std::int64_t{pattern.num_rows} * pattern.num_cols));
    if (period) num_pattern_tiles += period->size();
    if (!period || num_pattern_tiles > kMaxPatternTiles) {
      return transpose_segment(expand_patterns(mask));
    }
    periods.push_back(*period);
  }
  UniformRuns parts(mask, UniformRuns::Patterns::kept);
  const std::vector<SourceChange> changes = changes_by_column(mask, parts);
  SegmentMask result;
  result.q_len = mask.kv_len;
  result.kv_len = mask.q_len;
  result.block = {mask.block.block_kv, mask.block.block_q};
  std::vector<std::int32_t> bitmap_of_source;  // by source, -1 if not met yet
  std::vector<std::uint64_t> scratch(static_cast<std::size_t>(mask.words_per_bitmap()));
  const auto bitmap_of = [&](TileSource source) {
    if (source >= bitmap_of_source.size()) bitmap_of_source.resize(source + std::size_t{1}, -1);
    std::int32_t& bitmap = bitmap_of_source[source];
    if (bitmap < 0) {
      bitmap = static_cast<std::int32_t>(result.num_bitmaps());
      append_transposed(parts.bitmap_of(source, scratch.data()), mask.block, result.bitmaps);
    }
    return bitmap;
  };
  for (std::size_t i = 0; i < periods.size(); ++i) {
    append_pattern(parts, kFirstPattern + static_cast<TileSource>(i), periods[i], bitmap_of,
                   result);
  }
  const std::int32_t period = row_period(result.block);
  auto change = changes.begin();
  for (std::int32_t row = 0; row < result.num_tile_rows(); ++row) {
    const auto first_segment = static_cast<std::int64_t>(result.segments.size());
    for (; change != changes.end() && change->col == row; ++change) {
      const TileSource source = change->source;
      if (source == kEmptyTiles) continue;
      const auto next = change + 1;
      const std::int32_t end =
          next != changes.end() && next->col == row ? next->row : result.num_tile_cols();
      TileSegment segment{change->row, end, 0, 0, SegmentKind::full, 0};
      if (source >= kFirstPattern) {
        segment.kind = SegmentKind::pattern;
        segment.data_index = static_cast<std::int32_t>(source - kFirstPattern);
      } else if (source != kFullTiles) {
        segment.kind = SegmentKind::bitmap;
        segment.data_index = bitmap_of(source);
      }
      result.segments.push_back(segment);
    }
    const std::int64_t num_segments = std::ssize(result.segments) - first_segment;
    result.runs.push_back({row, period, 1, static_cast<std::int32_t>(num_segments), first_segment});
  }
  UniformRuns transposed(result, UniformRuns::Patterns::kept);
  const TileLayer layers[] = {{&transposed}};
  OnlyLayer function(transposed);
  return combine_layers(result.q_len, result.kv_len, result.block, layers, function);
}

}  // namespace fdma
