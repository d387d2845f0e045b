#include "run/element_values.hpp"

#include <bit>
#include <cmath>
#include <cstring>

namespace fdma::maskc {

std::uint16_t half_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16) & 0x8000u;
  std::uint32_t magnitude = bits & 0x7fffffffu;
  std::uint32_t half = 0;
  if (magnitude > 0x7f800000u) {
    half = 0x7e00;  // NaN
  } else if (magnitude >= 0x477ff000u) {
    half = 0x7c00;  // from 65520 on the nearest is infinity
  } else if (magnitude < 0x38800000u) {
    // Below 2^-14 half counts multiples of 2^-24; the product is exact.
    half = static_cast<std::uint32_t>(std::nearbyint(std::bit_cast<float>(magnitude) * 0x1p24f));
  } else {
    magnitude += 0xfffu + ((magnitude >> 13) & 1u);
    half = (magnitude - 0x38000000u) >> 13;
  }
  return static_cast<std::uint16_t>(sign | half);
}

std::uint16_t bfloat16_from_float(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<std::uint16_t>((bits >> 16) | 0x40u);
  return static_cast<std::uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

float float_from_half(std::uint16_t bits) {
  // Exponent and mantissa at their places in float32, 112 too small; subnormals come out right.
  const std::uint32_t magnitude = bits & 0x7fffu;
  float value = std::bit_cast<float>(magnitude << 13) * 0x1p112f;
  if (magnitude >= 0x7c00u) value = std::bit_cast<float>((magnitude << 13) | 0x7f800000u);
  return std::bit_cast<float>(std::bit_cast<std::uint32_t>(value) |
                              (static_cast<std::uint32_t>(bits & 0x8000u) << 16));
}

float float_from_bfloat16(std::uint16_t bits) {
  return std::bit_cast<float>(std::uint32_t{bits} << 16);
}

float rounded_to(DType dtype, float value) {
  if (dtype == DType::float16) return float_from_half(half_from_float(value));
  if (dtype == DType::bfloat16) return float_from_bfloat16(bfloat16_from_float(value));
  return value;
}

void load_elements(const void* data, DType dtype, std::int64_t index, std::int64_t count,
                   float* out) {
  if (dtype == DType::float32) {
    std::memcpy(out, static_cast<const float*>(data) + index,
                static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  const auto* bits = static_cast<const std::uint16_t*>(data) + index;
  if (dtype == DType::float16) {
    for (std::int64_t i = 0; i < count; ++i) out[i] = float_from_half(bits[i]);
  } else {
    for (std::int64_t i = 0; i < count; ++i) out[i] = float_from_bfloat16(bits[i]);
  }
}

void store_elements(const float* values, std::int64_t count, void* data, DType dtype,
                    std::int64_t index) {
  if (dtype == DType::float32) {
    std::memcpy(static_cast<float*>(data) + index, values,
                static_cast<std::size_t>(count) * sizeof(float));
    return;
  }
  auto* bits = static_cast<std::uint16_t*>(data) + index;
  for (std::int64_t i = 0; i < count; ++i) {
    bits[i] = dtype == DType::float16 ? half_from_float(values[i]) : bfloat16_from_float(values[i]);
  }
}

}  // namespace fdma::maskc
