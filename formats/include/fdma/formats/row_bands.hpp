// RowBands: a mask as a few bands of query rows in which each row's key intervals move linearly.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/formats/segment_mask.hpp"

namespace fdma {

/// The keys [lo_base + lo_slope * q, hi_base + hi_slope * q) of query row q.
struct AffineInterval {
  std::int64_t lo_base;
  std::int64_t hi_base;
  std::int32_t lo_slope;
  std::int32_t hi_slope;
  friend bool operator==(const AffineInterval&, const AffineInterval&) = default;
};

/// Query rows [q_begin, q_end), which see
/// intervals[first_interval .. first_interval + num_intervals).
struct RowBand {
  std::int32_t q_begin;
  std::int32_t q_end;
  std::int64_t first_interval;
  std::int32_t num_intervals;
};

/// A mask as bands of query rows.
///
/// Example     causal of n tokens: one band [0, n) with {lo 0 + 0 q, hi 1 + 1 q}
/// Invariants  bands ascend, are disjoint and not empty; rows in no band see nothing
///             in every row of a band, its intervals are not empty, lie in [0, kv_len) and ascend
///             with at least one key between neighbours
/// Cost        24 B a band, 24 B an interval
struct RowBands {
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  std::vector<RowBand> bands;
  std::vector<AffineInterval> intervals;
};

/// The compiled mask. `block` must be valid.
///
/// Cost        O(bands) for the tile rows inside one band, which move in step; O(block_q) for each
///             tile row that holds a border between bands
SegmentMask segment_from_bands(const RowBands& bands, BlockShape block);

}  // namespace fdma
