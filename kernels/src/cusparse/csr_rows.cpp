// Converts a SegmentMask to CSR rows, row by row.
#include "cusparse/csr_rows.hpp"

#include <fmt/format.h>

#include "fdma/formats/served_pairs.hpp"

namespace fdma {

CsrRows csr_rows_of(const SegmentMask& mask) {
  CsrRows rows;
  rows.q_len = mask.q_len;
  rows.kv_len = mask.kv_len;
  rows.row_offsets.reserve(static_cast<std::size_t>(mask.q_len) + 1);
  rows.interval_offsets.reserve(static_cast<std::size_t>(mask.q_len) + 1);
  std::vector<Interval> keys;
  for (std::int64_t q = 0; q < mask.q_len; ++q) {
    row_intervals_of(mask, q, keys);
    std::int64_t num_cells = rows.row_offsets.back();
    for (const Interval& interval : keys) num_cells += interval.end - interval.begin;
    rows.row_offsets.push_back(num_cells);
    rows.intervals.insert(rows.intervals.end(), keys.begin(), keys.end());
    rows.interval_offsets.push_back(static_cast<std::int64_t>(rows.intervals.size()));
  }
  return rows;
}

Result<void> check_mask_fits(const BlockMask& mask, const AttentionShape& shape) {
  const MaskShape& has = mask.shape;
  if (has.num_batches != 1 && has.num_batches != shape.batch) {
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("mask: expected 1 or {} (batch) batch elements, got {}", shape.batch,
                             has.num_batches)};
  }
  if (has.num_heads != 1 && has.num_heads != shape.heads_q) {
    return Error{ErrorCode::shape_mismatch,
                 fmt::format("mask: expected 1 or {} (heads_q) heads, got {}", shape.heads_q,
                             has.num_heads)};
  }
  FDMA_TRY_VOID(check_serves(mask, shape.batch, shape.heads_q));
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    const std::int64_t mask_b = has.num_batches == 1 ? 0 : b;
    if (has.q_len(mask_b) != shape.q_len(b) || has.kv_len(mask_b) != shape.kv_len(b)) {
      return Error{
          ErrorCode::shape_mismatch,
          fmt::format("mask: expected lengths {} x {} of batch element {}, got {} x {}",
                      shape.q_len(b), shape.kv_len(b), b, has.q_len(mask_b), has.kv_len(mask_b))};
    }
  }
  return {};
}

}  // namespace fdma
