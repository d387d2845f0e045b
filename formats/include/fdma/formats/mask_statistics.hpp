// Statistics of a mask, and its size in every format, counted without building the formats.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "fdma/formats/block_mask.hpp"

namespace fdma {

/// Called while bitmaps are drawn, with the number of tiles drawn and the number in all; may be
/// empty.
using DrawProgress = std::function<void(std::int64_t done, std::int64_t total)>;

/// Bytes of the arrays in each format, indexed by MaskFormat. An entry is empty where the format
/// cannot hold the mask, or where the count takes long and was not asked for.
using FormatBytes = std::array<std::optional<std::int64_t>, kMaskFormats.size()>;

/// One group of identical (batch, head) pairs.
struct GroupStatistics {
  std::int64_t first_batch = 0;
  std::int64_t first_head = 0;
  std::int64_t num_pairs = 0;  ///< (batch, head) pairs that share it
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  TileCounts tiles;
  /// Distinct bitmaps of the group's partial tiles, in whatever form these are stored.
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

/// Partial tiles that are stored as intervals must be drawn before equal ones can be found. Above
/// this number of such tiles, distinct bitmaps (and with them the bytes of bitset and bcsr) are
/// counted only if asked.
inline constexpr std::int64_t kMaxTilesDrawn = 65536;

/// Segments of tiles with equal cells that are visited to count query intervals. Where tile rows
/// that do not move in step have more than this number, the bytes of columns are counted only if
/// asked.
inline constexpr std::int64_t kMaxPartsCounted = std::int64_t{1} << 26;

/// Statistics of all groups and their sum. `count_all` lifts kMaxTilesDrawn and kMaxPartsCounted.
/// Cost: O(segment masks); a 1M-token causal mask takes milliseconds.
MaskStatistics measure(const BlockMask& mask, bool count_all, const DrawProgress& progress = {});

/// The cheap part of measure: over all (batch, head) pairs, tiles of shape `block`, true cells and
/// query-key pairs that exist.
MaskStatistics count(const BlockMask& mask, BlockShape block);

/// The number of query intervals over all keys, which is the number that ColumnIntervals stores.
///
/// Method: an interval of key k begins at row q iff (q, k) is true and (q - 1, k) is not. Inside a
/// tile the count is one popcount per distinct bitmap or panel, times the tiles that use it. Across
/// the border of two tile rows the count is the difference of two rows, which changes linearly
/// while rows move in step.
std::int64_t count_query_intervals(const SegmentMask& mask);
/// As above; empty if more than `max_parts` segments of tile rows would have to be visited.
std::optional<std::int64_t> count_query_intervals(const SegmentMask& mask, std::int64_t max_parts);

/// Distinct bitmaps of the partial tiles; empty if more than `max_tiles` would have to be drawn.
std::optional<std::int64_t> count_distinct_bitmaps(const SegmentMask& mask, std::int64_t max_tiles,
                                                   const DrawProgress& progress = {});

}  // namespace fdma
