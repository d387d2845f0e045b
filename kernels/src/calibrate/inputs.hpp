// What calibration on any backend has in common: the tensors' shape and values.
#pragma once

#include <cstdint>
#include <span>

#include "fdma/base/result.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/formats/block_mask.hpp"

namespace fdma {

/// The shape of `heads` heads, of one dtype and head size, that all use `mask`.
AttentionShape calibration_shape(const BlockMask& mask, DType dtype, std::int32_t head_dim,
                                 std::int32_t heads);

/// Standard normal, the same everywhere; a few thousand values repeat. `bytes` holds whole elements
/// of float32, float16 or bfloat16.
void fill_normal(std::span<std::uint8_t> bytes, DType dtype);

/// What a calibration ends with that was cancelled: io.
Error calibration_interrupted();

}  // namespace fdma
