// Reads and writes elements of float32, float16 and bfloat16 tensors as float numbers.
#pragma once

#include <cstdint>

#include "fdma/base/tensor_view.hpp"

namespace fdma::maskc {

/// The nearest value, ties to even. NaN stays NaN; values that are too large become infinite.
std::uint16_t half_from_float(float value);
std::uint16_t bfloat16_from_float(float value);
float float_from_half(std::uint16_t bits);
float float_from_bfloat16(std::uint16_t bits);

/// `value` as `dtype` (float32, float16, bfloat16) holds it.
float rounded_to(DType dtype, float value);

/// Loads elements [index, index + count) after `data` into `out`. `dtype` is as above.
void load_elements(const void* data, DType dtype, std::int64_t index, std::int64_t count,
                   float* out);
/// The reverse of load_elements, with rounding.
void store_elements(const float* values, std::int64_t count, void* data, DType dtype,
                    std::int64_t index);

}  // namespace fdma::maskc
