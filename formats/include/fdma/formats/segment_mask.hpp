// SegmentMask: the canonical form of one mask, which every conversion goes through.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "fdma/base/interval.hpp"
#include "fdma/base/result.hpp"

namespace fdma {

/// How the cells of a segment are stored. Every cell outside the segments of a tile row is false.
enum class SegmentKind : std::int32_t {
  full = 0,    ///< every existing cell of these tiles is true
  bitmap = 1,  ///< each of these tiles has the cells of bitmap number `data_index`
  rows =
      /// row panel number `data_index`: key intervals per query row, from the segment's first key
  2,
  columns = 3,  ///< the mask's column table: query intervals per key, in absolute coordinates
  pattern = 4,  ///< tiles of pattern number `data_index`, which repeat; some may be empty
};

/// Consecutive tiles of one kind, and how they move from one tile row of the run to the next.
///
/// In tile row i of the run, the segment covers tiles [first_tile + i * step_first,
/// end_tile + i * step_end), never empty. `data_index` is the bitmap index (kind bitmap), the panel
/// index (kind rows), the pattern index (kind pattern), or 0.
struct TileSegment {
  std::int32_t first_tile;
  std::int32_t end_tile;
  std::int32_t step_first;
  std::int32_t step_end;
  SegmentKind kind;
  std::int32_t data_index;
  friend bool operator==(const TileSegment&, const TileSegment&) = default;
};

/// num_rows tile rows first_row, first_row + row_stride, ... whose segments move in step.
///
/// The segments are segments[first_segment .. first_segment + num_segments) of the mask, disjoint
/// and by ascending tiles. num_segments = 0 means that these tile rows are empty.
struct TileRun {
  std::int32_t first_row;
  std::int32_t row_stride;
  std::int32_t num_rows;
  std::int32_t num_segments;
  std::int64_t first_segment;
  friend bool operator==(const TileRun&, const TileRun&) = default;
};

/// Tiles that repeat in two directions. Tile (row, col) of the mask is the one at pattern row
/// row mod num_rows and pattern column (col - skew * row) mod num_cols, both at least 0.
///
/// Example     `k % 192 < 64`, blocks 128 x 128: num_rows 1, num_cols 3, skew 0; `(q - k) % 3 == 0`:
///             num_rows 1, num_cols 3, skew 1; `q % 192 < 64`: num_rows 3, num_cols 1
/// Invariants  num_rows * num_cols > 1, 0 <= skew < num_cols
///             the pattern rows of a pattern follow those of the pattern before it
///             all patterns of a mask have kMaxPatternTiles at most
struct TilePattern {
  std::int32_t num_rows;
  std::int32_t num_cols;
  std::int32_t skew;
  std::int32_t first_row;  ///< its first pattern row in the mask's pattern_offsets
  friend bool operator==(const TilePattern&, const TilePattern&) = default;
};

/// A tile of a pattern row that is not empty.
struct PatternTile {
  std::int32_t column;  ///< pattern column
  std::int32_t bitmap;  ///< index of its bitmap, or kFullTile
  friend bool operator==(const PatternTile&, const PatternTile&) = default;
};
inline constexpr std::int32_t kFullTile = -1;
/// In lists of tiles that may be empty (SegmentBuilder::add_pattern).
inline constexpr std::int32_t kEmptyTile = -2;
/// The most tiles that all patterns of a mask have together, num_rows * num_cols each, empty tiles
/// included. Whoever writes a pattern out tile by tile therefore needs little memory, whatever a
/// file says.
inline constexpr std::int64_t kMaxPatternTiles = std::int64_t{1} << 26;

/// The tiles of one pattern row as they lie in one tile row of the mask: the tile in column c of
/// the mask is the one in pattern column (c - shift) mod num_cols.
struct PatternRow {
  std::span<const PatternTile> tiles;
  std::int32_t num_cols;
  std::int32_t shift;  ///< in [0, num_cols)

  /// The tile of mask column `col`: the index of its bitmap, kFullTile or kEmptyTile. Cost: O(log
  /// tiles).
  std::int32_t tile_at(std::int32_t col) const {
    const std::int64_t offset = (std::int64_t{col} - shift) % num_cols;
    const std::int64_t column = offset < 0 ? offset + num_cols : offset;
    const auto tile = first_from(column);
    return tile != tiles.end() && tile->column == column ? tile->bitmap : kEmptyTile;
  }

  /// The first tile in pattern column `column` or after it.
  std::span<const PatternTile>::iterator first_from(std::int64_t column) const {
    return std::partition_point(tiles.begin(), tiles.end(),
                                [&](const PatternTile& tile) { return tile.column < column; });
  }

  /// Calls visit(col, bitmap) for every tile of columns [first_tile, end_tile) that is not empty,
  /// in ascending order. Cost: O(log tiles + tiles visited).
  template <class Visit>
  void for_each_tile(std::int32_t first_tile, std::int32_t end_tile, Visit&& visit) const {
    if (tiles.empty() || first_tile >= end_tile) return;
    const std::int64_t offset = std::int64_t{first_tile} - shift;
    std::int64_t turn = offset / num_cols - (offset % num_cols < 0 ? 1 : 0);
    auto at = static_cast<std::size_t>(first_from(offset - turn * num_cols) - tiles.begin());
    while (true) {
      if (at == tiles.size()) {
        at = 0;
        ++turn;
      }
      const std::int64_t col = turn * num_cols + shift + tiles[at].column;
      if (col >= end_tile) return;
      visit(static_cast<std::int32_t>(col), tiles[at].bitmap);
      ++at;
    }
  }
};

/// One mask, compiled: runs of tile rows that move in step.
///
/// Example     causal, 8192 x 8192, blocks 128 x 128, 2 KiB in all:
///             run {row 0}       bitmap 0 on tile 0
///             run {rows 1..63}  full on [0, 1) stepping (0, +1), bitmap 0 on [1, 2) stepping
///                               (+1, +1)
///             one bitmap
/// Shapes      bitmaps           [num_bitmaps, block_q * block_kv / 64] uint64; cell (r, c) is bit
///                               r * block_kv + c, least significant first
///             row_offsets       [num_row_panels * block_q + 1] int64, into row_intervals
///             row_intervals     [num_row_intervals, 2] int32
///             column_offsets    [kv_len + 1] int64, into column_intervals; empty if no segment is
///                               of kind columns
///             column_intervals  [num_column_intervals, 2] int32
///             patterns          [num_patterns]
///             pattern_offsets   [pattern rows of all patterns + 1] int64, into pattern_tiles
///             pattern_tiles     [num_pattern_tiles], ascending by column in a pattern row
/// Invariants  canonical (see segment_builder.hpp): equal cells and blocks give equal arrays, unless
///             a mask has patterns (expand_patterns gives the canonical mask without)
///             a mask with patterns has no column table
///             each tile row is in exactly one run; runs ascend by first_row
///             row_stride is row_period(block)
///             adjacent segments differ in kind or data index
///             bits of cells that do not exist are 0
///             the intervals of a row or column ascend with gaps between
/// Owner       owns its arrays (host)
/// Cost        32 B a run, 24 B a segment
///             block_q * block_kv / 8 B a distinct bitmap
///             8 B a row of a panel, 8 B an interval of it
///             8 B a key, 8 B an interval for the column table
///             16 B a pattern, 8 B a pattern row, 8 B a tile of it that is not empty
struct SegmentMask {
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  BlockShape block;
  std::vector<TileRun> runs;
  std::vector<TileSegment> segments;
  std::vector<std::uint64_t> bitmaps;
  std::vector<std::int64_t> row_offsets{0};
  std::vector<Interval> row_intervals;
  std::vector<std::int64_t> column_offsets;
  std::vector<Interval> column_intervals;
  std::vector<TilePattern> patterns;
  std::vector<std::int64_t> pattern_offsets{0};
  std::vector<PatternTile> pattern_tiles;

  std::int32_t num_tile_rows() const {
    return static_cast<std::int32_t>(ceil_div(q_len, block.block_q));
  }
  std::int32_t num_tile_cols() const {
    return static_cast<std::int32_t>(ceil_div(kv_len, block.block_kv));
  }
  std::int64_t words_per_bitmap() const {
    return std::int64_t{block.block_q} * block.block_kv / 64;
  }
  std::int64_t num_bitmaps() const {
    return static_cast<std::int64_t>(bitmaps.size()) / words_per_bitmap();
  }
  std::int64_t num_row_panels() const {
    return (static_cast<std::int64_t>(row_offsets.size()) - 1) / block.block_q;
  }
  std::span<const std::uint64_t> bitmap(std::int64_t index) const {
    return {bitmaps.data() + index * words_per_bitmap(),
            static_cast<std::size_t>(words_per_bitmap())};
  }
  bool has_patterns() const { return !patterns.empty(); }
  /// The tiles of a pattern in tile row `row` of the mask.
  PatternRow pattern_row(std::int32_t pattern, std::int32_t row) const {
    const TilePattern& p = patterns[static_cast<std::size_t>(pattern)];
    const auto shift = static_cast<std::int32_t>(std::int64_t{p.skew} * row % p.num_cols);
    return {pattern_row_tiles(p, row % p.num_rows), p.num_cols, shift};
  }
  /// The tiles of row `pattern_row` of a pattern that are not empty.
  std::span<const PatternTile> pattern_row_tiles(const TilePattern& pattern,
                                                 std::int32_t pattern_row) const {
    const std::size_t at =
        static_cast<std::size_t>(pattern.first_row) + static_cast<std::size_t>(pattern_row);
    const auto begin = static_cast<std::size_t>(pattern_offsets[at]);
    return {pattern_tiles.data() + begin,
            static_cast<std::size_t>(pattern_offsets[at + 1]) - begin};
  }
  std::int64_t size_bytes() const;
  friend bool operator==(const SegmentMask&, const SegmentMask&) = default;
};

/// The row_stride of every run: the number of tile rows after which a mask that moves one key per
/// query row is shifted by whole tiles, block_kv / gcd(block_q, block_kv). It is 1 when the sides
/// are equal.
std::int32_t row_period(BlockShape block);

/// Calls visit(row, segments) for every tile row in ascending order. Steps are already applied:
/// each segment's [first_tile, end_tile) holds for that row and its step fields are 0. Pattern
/// segments are written out as full and bitmap segments. The span is valid during the call.
void for_each_tile_row(
    const SegmentMask& mask,
    const std::function<void(std::int32_t row, std::span<const TileSegment>)>& visit);

/// The segments of one tile row with steps applied and patterns written out. Cost: O(log runs +
/// segments), and the tiles of pattern segments.
std::vector<TileSegment> segments_of_row(const SegmentMask& mask, std::int32_t row);

/// Writes the cells of tile (row, col) to `words` [block_q * block_kv / 64] in bitmap order.
/// `segment` covers the tile in that tile row (steps applied). Cells that do not exist are 0.
void tile_cells(const SegmentMask& mask, const TileSegment& segment, std::int32_t row,
                std::int32_t col, std::uint64_t* words);

/// Replaces `out` by the key intervals of query row q, which ascend and are disjoint with gaps
/// between.
///
/// Cost        O(log runs + segments of the tile row + intervals), plus a scan of its bitmaps; a
///             column segment costs its keys
void row_intervals_of(const SegmentMask& mask, std::int64_t q, std::vector<Interval>& out);

/// The canonical mask of the same cells without patterns. Cost: O(tiles of pattern segments).
SegmentMask expand_patterns(const SegmentMask& mask);

/// Exact counts of a mask. Cost: O(runs + stored partial cells), never
/// O(q_len * kv_len / block) for masks that move in step; pattern segments take up to O(tile rows)
/// each, whatever their tiles.
struct TileCounts {
  std::int64_t empty = 0;
  std::int64_t full = 0;
  std::int64_t partial = 0;
  std::int64_t allowed_pairs = 0;  ///< true cells
};
TileCounts count_tiles(const SegmentMask& mask);

}  // namespace fdma
