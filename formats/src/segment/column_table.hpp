// Rule 3 of the canonical form (segment_builder.hpp): when the column table is the smaller store.
#pragma once

#include "fdma/formats/segment_mask.hpp"

namespace fdma {

/// `mask` itself, or the same cells with every partial stretch as a columns segment if the column
/// table takes fewer bytes than bitmaps and row panels. `mask` follows rules 1, 2 and 4 and has no
/// columns segments. Cost: O(1) unless the payloads exceed 8 * (kv_len + 1) bytes; then O((runs +
/// tile rows that move) * kv_len / 64 + payloads), and column_table_of if the table is smaller.
SegmentMask choose_column_table(SegmentMask mask);

/// The query intervals of every key: offsets [kv_len + 1] and intervals. Cost: O(tile rows * kv_len
/// / 64 + partial cells / 64 + intervals), where a stretch of equal tile rows that ends no interval
/// and begins none counts as two.
struct ColumnTable {
  std::vector<std::int64_t> offsets;
  std::vector<Interval> intervals;
};
/// `num_intervals` is how many to make room for, if known.
ColumnTable column_table_of(const SegmentMask& mask, std::int64_t num_intervals = 0);

}  // namespace fdma
