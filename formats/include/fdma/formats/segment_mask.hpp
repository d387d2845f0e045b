// SegmentMask: the canonical form of one mask, which every conversion goes through.
#pragma once

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
};

/// Consecutive tiles of one kind, and how they move from one tile row of the run to the next.
///
/// In tile row i of the run, the segment covers tiles [first_tile + i * step_first,
/// end_tile + i * step_end), never empty. `data_index` is the bitmap index (kind bitmap), the panel
/// index (kind rows), or 0.
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
/// Invariants  canonical (see segment_builder.hpp): equal cells and blocks give equal arrays
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

/// The row_stride of every run: the number of tile rows after which a mask that moves one key per
/// query row is shifted by whole tiles, block_kv / gcd(block_q, block_kv). It is 1 when the sides
/// are equal.
std::int32_t row_period(BlockShape block);

/// Calls visit(row, segments) for every tile row in ascending order. Steps are already applied:
/// each segment's [first_tile, end_tile) holds for that row and its step fields are 0. The span is
/// valid during the call.
void for_each_tile_row(
    const SegmentMask& mask,
    const std::function<void(std::int32_t row, std::span<const TileSegment>)>& visit);

/// The segments of one tile row with steps applied. Cost: O(log runs + segments).
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

/// Exact counts of a mask. Cost: O(runs + stored partial cells), never
/// O(q_len * kv_len / block) for masks that move in step.
struct TileCounts {
  std::int64_t empty = 0;
  std::int64_t full = 0;
  std::int64_t partial = 0;
  std::int64_t allowed_pairs = 0;  ///< true cells
};
TileCounts count_tiles(const SegmentMask& mask);

}  // namespace fdma
