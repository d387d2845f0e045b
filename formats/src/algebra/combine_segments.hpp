// Set operations on single segment masks.
#pragma once

#include <cstdint>

#include "fdma/formats/band_algebra.hpp"
#include "fdma/formats/segment_mask.hpp"
#include "fdma/formats/set_algebra.hpp"

namespace fdma {

inline constexpr TruthTable kNotA = 0b0011;
inline constexpr TruthTable kA = 0b1100;

constexpr TruthTable truth_table(SetOperation operation) {
  switch (operation) {
    case SetOperation::intersection:
      return 0b1000;
    case SetOperation::union_of:
      return 0b1110;
    case SetOperation::difference:
      return 0b0100;
    case SetOperation::symmetric_difference:
      return 0b0110;
  }
  return 0;
}

/// The cells where `operation` holds for the cells of a and b, canonical unless the result has
/// patterns. Lengths and blocks of the
/// two are equal. Cost: that of combine_layers (tile_layers.hpp). With a column table: O(keys +
/// query intervals of both), or O(tiles that are partial in either) where the other mask has many
/// times more of these intervals.
SegmentMask combine_segments(const SegmentMask& a, const SegmentMask& b, SetOperation operation);

/// The canonical form of a mask without a column table, in its own blocks and without patterns.
/// Cost: that of combine_layers, which visits tile rows that move in step once; patterns are written
/// out.
SegmentMask canonical_segment(const SegmentMask& mask);

/// The cells that exist and are not in `mask`.
SegmentMask complement_segment(const SegmentMask& mask);

/// Cell (q, k) of the result is cell (q - dq, k - dk) of `mask`, or false where that does not
/// exist.
SegmentMask shift_segment(const SegmentMask& mask, std::int64_t dq, std::int64_t dk);

/// The same for a mask without a column table, and a result of other lengths.
SegmentMask move_segment(const SegmentMask& mask, std::int64_t dq, std::int64_t dk,
                         std::int64_t q_len, std::int64_t kv_len);

/// Cell (k, q) of the result, in blocks of block_kv x block_q, is cell (q, k) of `mask`. Cost:
/// O(segments of tile rows that move), and one period of each pattern.
SegmentMask transpose_segment(const SegmentMask& mask);

}  // namespace fdma
