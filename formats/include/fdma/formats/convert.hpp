// Conversions between formats: every one goes through SegmentMask, exactly or with an error.
#pragma once

#include <cstdint>

#include "fdma/formats/block_mask.hpp"

namespace fdma {

/// Exact conversions to the hub. Input must be valid (validate.hpp); output is canonical.
SegmentMask segment_from_parametric(const ParametricMask& mask, BlockShape block);
SegmentMask segment_from_bitset(const BlockBitset& mask);
SegmentMask segment_from_bcsr(const BcsrMask& mask);
SegmentMask segment_from_columns(const ColumnIntervals& mask, BlockShape block);
SegmentMask segment_from_dense(const DenseBits& mask, BlockShape block);
/// The same cells in other blocks.
SegmentMask segment_from_segment(const SegmentMask& mask, BlockShape block);

/// Exact conversions from the hub. parametric: unsupported unless the cells have such a closed
/// form.
Result<ParametricMask> parametric_from_segment(const SegmentMask& mask);
BlockBitset bitset_from_segment(const SegmentMask& mask);
BcsrMask bcsr_from_segment(const SegmentMask& mask);
ColumnIntervals columns_from_segment(const SegmentMask& mask);
/// out_of_memory if the bits exceed `max_bytes`.
Result<DenseBits> dense_from_segment(const SegmentMask& mask,
                                     std::int64_t max_bytes = std::int64_t{1} << 34);

/// Group g of any BlockMask as a canonical SegmentMask in `block`.
SegmentMask segment_of_group(const BlockMask& mask, std::int64_t group, BlockShape block);

/// What a conversion from the hub allocates: what is known beforehand of its result, all but
/// bitmaps that have yet to be drawn, and what it needs on the way besides.
struct ConversionBytes {
  std::int64_t result = 0;
  std::int64_t scratch = 0;
};
/// Cost: as count_query_intervals for columns, as count_tiles for the tiled formats.
ConversionBytes conversion_bytes(const SegmentMask& mask, MaskFormat format);

/// The same mask in another format and block shape. Errors: those above; invalid_argument for a bad
/// block; out_of_memory where all groups together need more than there is (memory.hpp).
Result<BlockMask> convert(const BlockMask& mask, MaskFormat format, BlockShape block);

/// True iff lengths, counts and cells are equal, whatever the formats and blocks.
bool equal_cells(const BlockMask& a, const BlockMask& b);

/// The mask of rows [q_begin, q_end), keys [kv_begin, kv_end), batch elements and heads likewise;
/// origin offsets add up. Parametric masks stay parametric. Errors: invalid_argument for a range
/// outside the mask; per-element lengths need ranges inside every element chosen. One batch element
/// (head) cut out of several may serve all of them, even of a mask that was written with b (h).
struct CropRange {
  std::int64_t q_begin, q_end, kv_begin, kv_end;
  std::int64_t batch_begin, batch_end, head_begin, head_end;
};
Result<BlockMask> crop(const BlockMask& mask, const CropRange& range);

}  // namespace fdma
