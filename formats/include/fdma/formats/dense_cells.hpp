// Dense masks of one byte per cell, as frameworks hold them, from and to stored forms.
#pragma once

#include <cstdint>

#include "fdma/base/mutable_tensor_view.hpp"
#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"
#include "fdma/formats/dense_bits.hpp"
#include "fdma/formats/segment_mask.hpp"

namespace fdma {

/// Packs cells [q_len, kv_len] of booleans, or of uint8 or int8 that are 0 and 1; any strides.
///
/// Errors      unsupported (element type, device), invalid_argument (rank, lengths beyond
/// kMaxLength, a value that is neither 0 nor 1, with its place)
/// Cost        the cells, read once, eight at a time where keys are adjacent; all threads
Result<DenseBits> dense_from_cells(const TensorView& cells);

/// Writes cells [q_len, kv_len] of `mask` as bytes 0 and 1. `cells` is a view of booleans, uint8 or
/// int8 on the host, its last stride 1, at least q_len by kv_len; what lies beyond stays as it is.
///
/// Cost        the cells, written once, and the row intervals of the mask; all threads
void write_cells(const SegmentMask& mask, const MutableTensorView& cells);

}  // namespace fdma
