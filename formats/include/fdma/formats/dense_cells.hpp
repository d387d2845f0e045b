// Dense masks of one byte per cell, as frameworks hold them, from and to stored forms.
#pragma once

#include <cstdint>

#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"
#include "fdma/formats/dense_bits.hpp"
#include "fdma/formats/segment_mask.hpp"

namespace fdma {

/// Packs cells [q_len, kv_len] of booleans, or of uint8 or int8 that are 0 and 1; any strides.
///
/// Errors      unsupported: element type, device
///             invalid_argument: rank, lengths beyond kMaxLength, a value that is neither 0 nor 1
///             (the message gives its place)
/// Cost        reads the cells once, eight at a time where keys are adjacent; uses all threads
Result<DenseBits> dense_from_cells(const TensorView& cells);

/// Writes the cells [q_len, kv_len] of `mask` as bytes 0 and 1. `cells` is a host view of booleans,
/// uint8 or int8, at least q_len by kv_len, with a last stride of 1. Elements beyond q_len and
/// kv_len stay as they are.
///
/// Cost        writes the cells once and walks the row intervals of the mask; uses all threads
void write_cells(const SegmentMask& mask, const MutableTensorView& cells);

}  // namespace fdma
