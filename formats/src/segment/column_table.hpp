// Rule 3 of the canonical form (segment_builder.hpp): the column table where it takes fewer bytes.
#pragma once

#include "fdma/formats/segment_mask.hpp"

namespace fdma {

/// Applies rule 3: returns `mask` itself, or the same cells with every partial segment as a columns
/// segment if the column table takes fewer bytes than bitmaps and row panels. `mask` follows rules
/// 1, 2 and 4 and has no columns segments.
///
/// Cost: O(1) unless bitmaps and panels exceed 8 * (kv_len + 1) bytes; then O((runs + tile rows
/// that move) * kv_len / 64 + bitmaps and panels), plus column_table_of if the table is smaller.
SegmentMask choose_column_table(SegmentMask mask);

/// The query intervals of every key: offsets [kv_len + 1] and intervals. Cost: O(tile rows *
/// kv_len / 64 + partial cells / 64 + intervals); consecutive equal tile rows that neither end nor
/// begin an interval count as two.
struct ColumnTable {
  std::vector<std::int64_t> offsets;
  std::vector<Interval> intervals;
};
/// `num_intervals` is the number of intervals to reserve memory for, if known.
ColumnTable column_table_of(const SegmentMask& mask, std::int64_t num_intervals = 0);

}  // namespace fdma
