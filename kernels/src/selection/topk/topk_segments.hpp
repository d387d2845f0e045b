// Rows of scores cut into pieces that thread blocks sort.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/column_intervals.hpp"
#include "selection/topk/ranking.hpp"

namespace fdma::zoh {

enum class PieceKind : std::int32_t {
  part,      ///< all of a group of rows that is longer than a piece, or kPieceKeys keys of it
  packed,    ///< whole groups, at least one with more than w keys
  all_kept,  ///< keys of groups with at most w: they are kept as long as they are seen
};

/// Keys [first_key, first_key + num_keys) of a row. Parts of one group follow one another, all but
/// the last with kPieceKeys keys.
struct Piece {
  std::int32_t row;
  std::int32_t mask;
  std::int32_t first_key;
  std::int32_t num_keys;
  PieceKind kind;
  std::int32_t num_before;  ///< parts of its group before it
  std::int32_t num_after;   ///< and after it
  std::int32_t num_seen;  ///< keys of its group (packed: of the piece) that anybody sees, up to its
                          ///< end
  std::int32_t num_groups = 1;     ///< that it has keys of
  std::int32_t is_seen_whole = 0;  ///< 1: somebody sees each of its keys
};

/// One M, ready for pieces of any row.
struct CutMask {
  std::vector<Interval> queries;        ///< [kv_len]; {0, 0}: nobody sees the key
  std::vector<std::uint16_t> ordinals;  ///< [kv_len] in a packed piece: which group of it, from 1
  std::vector<Piece> pieces;            ///< of row 0; `mask` is 0
};

/// Parts of a group at most: a window into each lies in the shared memory of a block
/// (searched_thresholds.cuh).
inline constexpr std::int64_t kMostParts = 32 * 1024;

/// Cuts M for selection of w keys.
///
/// Errors  unsupported: M is beyond the one-interval class; the message names the CPU's select_topk
Result<CutMask> cut_mask(const ColumnIntervals& among, std::int64_t w);

}  // namespace fdma::zoh
