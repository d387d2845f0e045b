// SegmentMask: the canonical compiled form of one mask and the hub of every conversion.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "fdma/base/interval.hpp"
#include "fdma/base/result.hpp"

namespace fdma {

/// How the cells of a segment are given. Every cell outside the segments of a tile row is false.
enum class SegmentKind : std::int32_t {
  full = 0,    ///< every existing cell of these tiles is true
  bitmap = 1,  ///< each of these tiles has the cells of bitmap `payload`
  rows =
      2,  ///< row panel `payload`: key intervals per query row, relative to the segment's first key
  columns = 3,  ///< the mask's column table: query intervals per key, in absolute coordinates
};

/// A stretch of tiles of one kind, and how it moves from one tile row of its run to the next.
///
/// In tile row i of the run it covers tiles [first_tile + i * step_first, end_tile + i * step_end),
/// never empty. `payload` indexes bitmaps (bitmap) or row panels (rows); otherwise it is 0.
struct TileSegment {
  std::int32_t first_tile;
  std::int32_t end_tile;
  std::int32_t step_first;
  std::int32_t step_end;
  SegmentKind kind;
  std::int32_t payload;
  friend bool operator==(const TileSegment&, const TileSegment&) = default;
};

/// Tile rows first_row, first_row + row_stride, .. (num_rows of them) whose segments move in step.
///
/// Segments are segments[first_segment .. first_segment + num_segments) of the mask, by ascending
/// tiles, disjoint. num_segments = 0: these tile rows are empty.
struct TileRun {
  std::int32_t first_row;
  std::int32_t row_stride;
  std::int32_t num_rows;
  std::int32_t num_segments;
  std::int64_t first_segment;
  friend bool operator==(const TileRun&, const TileRun&) = default;
};

/// One mask, compiled: runs of tile rows that move in step.
///
/// Example     causal, 8192 x 8192, blocks 128 x 128: run {row 0} with bitmap 0 on tile 0; run
/// {rows 1..63} with full
///             [0, 1) stepping (0, +1) and bitmap 0 on tile [1, 2) stepping (+1, +1); one bitmap; 2
///             KiB in all
/// Shapes      bitmaps [num_bitmaps, block_q * block_kv / 64], bit r * block_kv + c, least
/// significant first;
///             row_offsets [num_row_panels * block_q + 1] into row_intervals; column_offsets
///             [kv_len + 1] into column_intervals, or empty if no segment is of kind columns
/// Invariants  canonical (see segment_builder.hpp): equal cells and blocks give equal arrays. Each
/// tile row is in exactly
///             one run; runs ascend by first_row; row_stride is row_period(block); adjacent
///             segments differ in kind or payload; bits of cells that do not exist are 0; intervals
///             of a row or column ascend with gaps between
/// Owner       owns its arrays (host)
/// Cost        32 B a run, 24 B a segment, block_q * block_kv / 8 B a distinct bitmap, 8 B a row of
/// a panel and 8 B an
///             interval, 8 B a key and 8 B an interval for the column table
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
  std::int64_t size_bytes() const;
  friend bool operator==(const SegmentMask&, const SegmentMask&) = default;
};

/// Number of tile rows after which a mask that moves one key per query row is shifted by whole
/// tiles: block_kv / gcd(block_q, block_kv); 1 when the sides are equal. The row_stride of every
/// run.
std::int32_t row_period(BlockShape block);

/// Calls visit(row, segments) for every tile row in ascending order; steps are already applied, so
/// that each segment's [first_tile, end_tile) holds for that row (its step fields are 0). The span
/// is valid during the call.
void for_each_tile_row(
    const SegmentMask& mask,
    const std::function<void(std::int32_t row, std::span<const TileSegment>)>& visit);

/// The segments of one tile row, steps applied. Cost: O(log runs + segments).
std::vector<TileSegment> segments_of_row(const SegmentMask& mask, std::int32_t row);

/// Writes the cells of tile (row, col), which `segment` covers in that tile row (steps applied), to
/// `words` [block_q * block_kv / 64] in bitmap order. Cells that do not exist are 0.
void tile_cells(const SegmentMask& mask, const TileSegment& segment, std::int32_t row,
                std::int32_t col, std::uint64_t* words);

/// The key intervals of query row q: ascending, disjoint, with gaps between. Replaces the contents
/// of `out`. Cost: O(log runs + segments of the tile row + intervals), plus a scan of its bitmaps;
/// a column segment costs its keys.
void row_intervals_of(const SegmentMask& mask, std::int64_t q, std::vector<Interval>& out);

/// Counts of a mask, exact; cost O(runs + stored partial cells), never O(q_len * kv_len / block)
/// for masks that move in step.
struct TileCounts {
  std::int64_t empty = 0;
  std::int64_t full = 0;
  std::int64_t partial = 0;
  std::int64_t allowed_pairs = 0;  ///< true cells
};
TileCounts count_tiles(const SegmentMask& mask);

}  // namespace fdma
