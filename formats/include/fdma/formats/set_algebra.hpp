// Set algebra of compiled masks: a mask is the set of (b, h, q, k) that attend.
//
// No operation expands cells. Masks whose rows see a few key intervals that move linearly
// (documents, windows, prefixes and their combinations) are combined as row bands, whatever their
// blocks. In any other mask, runs of tile rows that move in step are combined in step, so that
// closed forms stay closed; word operations happen once for each distinct pair of partial tiles;
// column tables are combined key by key. Results are canonical: equal cells are equal arrays,
// whatever operations made them. Crops and equality are in convert.hpp.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "fdma/base/result.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma {

enum class SetOperation : std::uint8_t {
  intersection,          ///< a and b
  union_of,              ///< a or b
  difference,            ///< a and not b
  symmetric_difference,  ///< a xor b
};

/// How the result is stored.
struct SetAlgebraOptions {
  /// Empty: segment. `parametric` keeps a closed form where the result has one, and is an error
  /// where it has none.
  std::optional<MaskFormat> format;
  /// Empty: the block of the first operand; transpose swaps its sides.
  std::optional<BlockShape> block;
  /// Called after each distinct pair of groups (with one operand: after each group). Calls come
  /// from any thread, one at a time.
  std::function<void(std::int64_t done, std::int64_t total)> progress = {};
  /// Asked before each of them, by any thread; true stops with ErrorCode::io "interrupted".
  std::function<bool()> is_cancelled = {};
};

/// Combines two masks of any formats and block shapes. The meaning is cell by cell, the cost tile
/// by tile or better.
///
/// Example     combine(causal, window, SetOperation::intersection) at 1048576 tokens: two runs,
///             < 1 ms
/// Shapes      lengths are equal in every batch element (one length for all, or one per element)
///             num_batches and num_heads are equal, or 1 in one operand, which is then used for all
///             elements (heads) of the other unless it was written with b (h)
/// Result      origin and block of `a` unless options say otherwise; spec empty
/// Errors      shape_mismatch names both shapes, or the count to compile with; out_of_memory where
///             the segments of the result do not fit, here and below
///             those of convert for the format asked for
/// Cost        computes each distinct pair of groups once
///             for row bands: the number of bands and of the runs of the result
///             otherwise: runs + segments + distinct pairs of partial tiles * tile cells / 64 while
///             runs move in step; a mask in other blocks is re-blocked first
///             patterns: one period of each combination of them, which becomes a pattern; it is
///             written out only where that takes fewer tiles
Result<BlockMask> combine(const BlockMask& a, const BlockMask& b, SetOperation operation,
                          const SetAlgebraOptions& options = {});

inline Result<BlockMask> intersect(const BlockMask& a, const BlockMask& b,
                                   const SetAlgebraOptions& options = {}) {
  return combine(a, b, SetOperation::intersection, options);
}
inline Result<BlockMask> unite(const BlockMask& a, const BlockMask& b,
                               const SetAlgebraOptions& options = {}) {
  return combine(a, b, SetOperation::union_of, options);
}
inline Result<BlockMask> difference(const BlockMask& a, const BlockMask& b,
                                    const SetAlgebraOptions& options = {}) {
  return combine(a, b, SetOperation::difference, options);
}
inline Result<BlockMask> symmetric_difference(const BlockMask& a, const BlockMask& b,
                                              const SetAlgebraOptions& options = {}) {
  return combine(a, b, SetOperation::symmetric_difference, options);
}

/// The cells that exist and are not in `mask`. Result, errors and cost as for combine.
Result<BlockMask> complement(const BlockMask& mask, const SetAlgebraOptions& options = {});

/// Moves the cells of a mask by dq query rows and dk keys, either of any sign: cell (q, k) of the
/// result is cell (q - dq, k - dk), and false where that does not exist. Lengths stay.
///
/// Example     shift(causal, 0, 1) is k <= q + 1, but for key 0, which nothing moved to
/// Result      origin (q_offset - dq, kv_offset - dk), not below 0: the place of cell (0, 0) in the
///             mask that this one was cut from
/// Errors      invalid_argument for a distance beyond kMaxLength; those of convert for the format
/// Cost        as for combine; moved runs stay runs
Result<BlockMask> shift(const BlockMask& mask, std::int64_t dq, std::int64_t dk,
                        const SetAlgebraOptions& options = {});

/// Swaps query rows and keys, with their lengths and the offsets of the origin.
///
/// Result      block sides swapped unless options say otherwise
/// Errors      those of convert for the format asked for
/// Cost        as for combine for row bands that move by 0 or 1 key a row
///             otherwise: segments of all tile rows of mask and result + distinct partial tiles *
///             tile cells / 64; a mask with a column table costs its intervals and the tiles that
///             they touch
Result<BlockMask> transpose(const BlockMask& mask, const SetAlgebraOptions& options = {});

}  // namespace fdma
