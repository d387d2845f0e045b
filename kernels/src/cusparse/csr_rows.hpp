// A mask as compressed rows (CSR) on the host. The sparsity pattern of the cuSPARSE attention is
// made from it.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/base/interval.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/formats/segment_mask.hpp"

namespace fdma {

/// The rows of one mask, with columns as intervals. The device expands them to one index per cell.
///
/// Example     causal, 3 x 3:  row_offsets {0,1,3,6}, intervals {[0,1), [0,2), [0,3)} with
///             interval_offsets {0,1,2,3}; its columns are 0, 0 1, 0 1 2
/// Shapes      row_offsets [q_len + 1] into columns, interval_offsets [q_len + 1] into intervals
/// Invariants  columns ascend in a row
struct CsrRows {
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  std::vector<std::int64_t> row_offsets{0};
  std::vector<std::int64_t> interval_offsets{0};
  std::vector<Interval> intervals;

  std::int64_t num_cells() const { return row_offsets.back(); }
};

/// The conversion is exact. Cost: row_intervals_of for every row.
CsrRows csr_rows_of(const SegmentMask& mask);

/// shape_mismatch unless the mask has 1 or `batch` elements and 1 or heads_q heads, and its lengths
/// are those of the shape.
Result<void> check_mask_fits(const BlockMask& mask, const AttentionShape& shape);

}  // namespace fdma
