// Rows of scores, cut into key segments that thread blocks sort.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/column_intervals.hpp"
#include "selection/topk/ranking.hpp"

namespace fdma::zoh {

enum class KeySegmentKind : std::int32_t {
  /// KPieceKeys keys of a group of rows that is longer than a key segment, or the rest of the group
  part,
  packed,  ///< whole groups, at least one with more than w keys
  /// Keys of groups with at most w keys, which are kept as long as they are seen
  all_kept,
};

/// Keys [first_key, first_key + num_keys) of a row. The parts of one group are consecutive, and all
/// but the last have kKeySegmentSize keys.
struct KeySegment {
  std::int32_t row;
  std::int32_t mask;
  std::int32_t first_key;
  std::int32_t num_keys;
  KeySegmentKind kind;
  std::int32_t num_before;  ///< parts of its group before it
  std::int32_t num_after;   ///< and after it
  /// Number of keys of its group (packed: of the key segment) up to its end that some query sees
  std::int32_t num_seen;
  std::int32_t num_groups = 1;     ///< groups of which it has keys
  std::int32_t is_seen_whole = 0;  ///< 1: each of its keys is seen by some query
};

/// One M, cut into key segments that serve any row.
struct CutMask {
  std::vector<Interval> queries;  ///< [kv_len]; {0, 0}: no query sees the key
  /// [kv_len] in a packed key segment: the number of its group, from 1
  std::vector<std::uint16_t> ordinals;
  std::vector<KeySegment> key_segments;  ///< of row 0; `mask` is 0
};

/// Maximum number of parts of a group. A window into each lies in the shared memory of a block
/// (searched_thresholds.cuh).
inline constexpr std::int64_t kMostParts = 32 * 1024;

/// Cuts M for selection of w keys.
///
/// Errors  unsupported: M is beyond the one-interval class; the message names the CPU's select_topk
Result<CutMask> cut_mask(const ColumnIntervals& among, std::int64_t w);

}  // namespace fdma::zoh
