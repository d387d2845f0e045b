// What a mask holds and what it would cost in every format, counted without building the formats.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "fdma/formats/block_mask.hpp"

namespace fdma {

/// Called while bitmaps are drawn, with the tiles drawn so far and those to draw; may be empty.
using DrawProgress = std::function<void(std::int64_t done, std::int64_t total)>;

/// Bytes of the arrays in each format, by MaskFormat; empty where the format cannot hold the mask,
/// or where the count was too long to be taken unasked.
using FormatBytes = std::array<std::optional<std::int64_t>, 6>;

/// One group of identical (batch, head) pairs.
struct GroupStatistics {
  std::int64_t first_batch = 0;
  std::int64_t first_head = 0;
  std::int64_t num_pairs = 0;  ///< (batch, head) pairs that share it
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  TileCounts tiles;
  /// Distinct bitmaps of its partial tiles, whatever form they are stored in.
  std::optional<std::int64_t> distinct_bitmaps;
  FormatBytes bytes;
};

struct MaskStatistics {
  std::vector<GroupStatistics> groups;
  TileCounts tiles;              ///< over all (batch, head) pairs
  std::int64_t total_pairs = 0;  ///< query-key pairs that exist, over all (batch, head) pairs
  std::optional<std::int64_t> distinct_bitmaps;  ///< summed over groups
  FormatBytes bytes;                             ///< summed over groups
};

/// Tiles whose cells are stored as intervals and have to be drawn to be told apart; above this
/// number distinct bitmaps (and with them the bytes of bitset and bcsr) are counted only if asked.
inline constexpr std::int64_t kMaxTilesDrawn = 65536;

/// Parts of tile rows (stretches of tiles with equal cells) that are looked at to count query
/// intervals; where tile rows that do not move in step have more, the bytes of columns are counted
/// only if asked.
inline constexpr std::int64_t kMaxPartsCounted = std::int64_t{1} << 26;

/// Cost: O(segment masks); a 1M-token causal mask takes milliseconds. `count_all` lifts
/// kMaxTilesDrawn and kMaxPartsCounted.
MaskStatistics measure(const BlockMask& mask, bool count_all, const DrawProgress& progress = {});

/// Tiles of shape `block` and true cells over all (batch, head) pairs, and the pairs that exist:
/// the cheap part.
MaskStatistics count(const BlockMask& mask, BlockShape block);

/// The number of query intervals over all keys: what ColumnIntervals would store.
///
/// Method: an interval of key k begins at row q iff (q, k) is true and (q - 1, k) is not. Inside a
/// tile that is a popcount per distinct bitmap or panel, times the tiles that use it; across the
/// border of two tile rows it is the difference of two rows, which changes linearly while rows move
/// in step.
std::int64_t count_query_intervals(const SegmentMask& mask);
/// Likewise; empty if more than `max_parts` parts of tile rows would have to be looked at.
std::optional<std::int64_t> count_query_intervals(const SegmentMask& mask, std::int64_t max_parts);

/// Distinct bitmaps of the partial tiles; empty if more than `max_tiles` would have to be drawn.
std::optional<std::int64_t> count_distinct_bitmaps(const SegmentMask& mask, std::int64_t max_tiles,
                                                   const DrawProgress& progress = {});

}  // namespace fdma
