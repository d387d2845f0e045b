// SegmentPlan: the form of a plan for any mask. Work tiles in the order in which workers take them,
// and the segments that each of them walks.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/base/interval.hpp"
#include "fdma/kernels/plan_arrays.hpp"

namespace fdma {

/// Work tiles and segments, which keep the closed form of the mask: segments belong to runs of tile
/// rows that move in step, and a work tile says how many steps it is into its run. Memory is
/// therefore that of the mask in tiles, plus 40 bytes for each (batch, head, query tile), plus the
/// kv index lists.
///
/// Example     causal, q_len = kv_len = 256, tile 128 x 128, one head:
///             work tile 0: query tile 1, segments full [0, 1), bitmap 0 [1, 2)
///             work tile 1: query tile 0, segment bitmap 0 [0, 1)
/// Shapes      bitmaps         [num_bitmaps, words_per_bitmap] uint64
///                             cpu: cell (r, c) is bit c * block_q + r, column by column
///                             (mask_tile().block_q rows)
///                             sm90: two 32-bit words for each of the 256 threads that compute the
///                             tile; every mask row occurs once for each of the heads that share
///                             the tile (bitmap_order.hpp)
///             row_offsets     [num_row_panels * block_q + 1] int64, into row_intervals
///             column_tables   [num_tables] int64: where each table begins in column_offsets; a
///                             table has kv_len + 1 entries (with a kv permutation: num_keys + 1)
///             column_offsets  int64, into column_intervals
///             permutation_of  [batch * heads_kv] int32, or empty
///             pattern_entries  in the order of the patterns that refer to them
/// Invariants  every tile of every (batch, head set, query tile) is in exactly one work tile: in
///             the one work tile of the query tile, or in one of those that its SplitRow lists
///             segments of a work tile ascend and do not overlap (kv index lists aside)
///             pattern segments have no tile past the columns; work tiles that share one differ by
///             whole turns of its pattern
///             a plan with kv index lists has no patterns
///             partials are those of the split rows; one work tile writes each
///             backward: there are no split rows, kv index lists and kv permutations; the work
///             tiles of one key tile and the query heads of one KV head are adjacent, in the order
///             of heads, including empty ones; work tiles [i * group_size, (i + 1) * group_size)
///             are one group, whose gradients of k and v add up
///             validate (plan.hpp) checks all of these
/// Owner       owns its arrays (host)
/// Cost        40 B a work tile, 20 B a split row, 24 B a segment
///             8 B a word of a bitmap, 8 B an entry of a kv index list
///             16 B a pattern, 8 B an entry of it
///             4 B a key of a kv permutation
struct SegmentPlan {
  std::vector<WorkTile> work_tiles;
  std::vector<SplitRow> split_rows;
  std::vector<PlanSegment> segments;
  std::vector<PlanPattern> patterns;
  std::vector<PatternEntry> pattern_entries;
  std::vector<std::uint64_t> bitmaps;
  std::vector<std::int64_t> row_offsets{0};
  std::vector<Interval> row_intervals;
  std::vector<std::int64_t> column_tables;
  std::vector<std::int64_t> column_offsets;  ///< into column_intervals
  std::vector<Interval> column_intervals;
  std::vector<KvIndexList> kv_index_lists;
  std::vector<KvIndexEntry> kv_index_entries;
  std::vector<KvPermutation> kv_permutations;
  std::vector<std::int32_t> permuted_keys;
  std::vector<std::int32_t> permutation_of;  ///< the kv permutation of (b, KV head), or -1

  PatternArrays pattern_arrays() const { return {patterns.data(), pattern_entries.data()}; }
  /// `words_per_bitmap` is that of the plan's header.
  std::int64_t num_bitmaps(std::int64_t words_per_bitmap) const {
    return static_cast<std::int64_t>(bitmaps.size()) / words_per_bitmap;
  }
  /// The order in which the tiles of a work tile count keys; null: that of the tensors.
  const KvPermutation* kv_permutation(const WorkTile& work_tile) const {
    if (work_tile.num_segments == 0) return nullptr;
    const PlanSegment& first = segments[static_cast<std::size_t>(work_tile.first_segment)];
    return first.kind == PlanSegmentKind::permutation
               ? &kv_permutations[static_cast<std::size_t>(first.data_index)]
               : nullptr;
  }
  friend bool operator==(const SegmentPlan&, const SegmentPlan&) = default;
};

}  // namespace fdma
