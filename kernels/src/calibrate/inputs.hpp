// Inputs of calibration on any backend: the tensors' shape and values.
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

/// Fills `bytes` with standard normal values, the same on every platform; a few thousand values
/// repeat. `bytes` holds whole elements of float32, float16 or bfloat16.
void fill_normal(std::span<std::uint8_t> bytes, DType dtype);

/// The error of a cancelled calibration: io.
Error calibration_interrupted();

}  // namespace fdma
