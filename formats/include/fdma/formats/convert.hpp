// Conversions between formats. Every conversion goes through the canonical form, SegmentMask, and
// is exact or an error.
#pragma once

#include <cstdint>

#include "fdma/formats/block_mask.hpp"

namespace fdma {

/// Exact conversions to the canonical form. The input must be valid (validate.hpp).
SegmentMask segment_from_parametric(const ParametricMask& mask, BlockShape block);
SegmentMask segment_from_bitset(const BlockBitset& mask);
SegmentMask segment_from_bcsr(const BcsrMask& mask);
SegmentMask segment_from_columns(const ColumnIntervals& mask, BlockShape block);
SegmentMask segment_from_dense(const DenseBits& mask, BlockShape block);
/// The same cells in other blocks.
SegmentMask segment_from_segment(const SegmentMask& mask, BlockShape block);

/// Exact conversions from the canonical form. parametric_from_segment: unsupported unless the cells
/// have a closed form.
Result<ParametricMask> parametric_from_segment(const SegmentMask& mask);
BlockBitset bitset_from_segment(const SegmentMask& mask);
BcsrMask bcsr_from_segment(const SegmentMask& mask);
ColumnIntervals columns_from_segment(const SegmentMask& mask);
/// out_of_memory if the bits exceed `max_bytes`.
Result<DenseBits> dense_from_segment(const SegmentMask& mask,
                                     std::int64_t max_bytes = std::int64_t{1} << 34);

/// Group g of any BlockMask as a canonical SegmentMask in `block`.
SegmentMask segment_of_group(const BlockMask& mask, std::int64_t group, BlockShape block);

/// Memory that a conversion from the canonical form allocates, as far as it is known beforehand.
/// `result` leaves out bitmaps that have yet to be drawn; `scratch` is memory beside the result.
struct ConversionBytes {
  std::int64_t result = 0;
  std::int64_t scratch = 0;
};
/// Cost: as count_query_intervals for columns, as count_tiles for the tiled formats.
ConversionBytes conversion_bytes(const SegmentMask& mask, MaskFormat format);

/// The same mask in another format and block shape.
///
/// Errors      those above; invalid_argument for a bad block; out_of_memory where all groups
///             together need more memory than there is (memory.hpp)
Result<BlockMask> convert(const BlockMask& mask, MaskFormat format, BlockShape block);

/// True iff lengths, counts and cells are equal. Formats and blocks may differ. Cost: conversions to
/// segment masks, and for masks with patterns a symmetric difference.
bool equal_cells(const BlockMask& a, const BlockMask& b);

/// The mask of rows [q_begin, q_end), keys [kv_begin, kv_end), batch elements [batch_begin,
/// batch_end) and heads [head_begin, head_end). Offsets of the origin add up. Parametric masks stay
/// parametric. One batch element (head) that is cut out of several may be used for all of them,
/// even if the mask was written with b (h).
///
/// Errors      invalid_argument for a range outside the mask; where lengths differ by element, the
///             range must lie inside every element that is chosen
struct CropRange {
  std::int64_t q_begin, q_end, kv_begin, kv_end;
  std::int64_t batch_begin, batch_end, head_begin, head_end;
};
Result<BlockMask> crop(const BlockMask& mask, const CropRange& range);

}  // namespace fdma
