// Makes random tensors on the host whose numbers are exact in their dtype.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <random>
#include <utility>
#include <vector>

#include "fdma/base/tensor_view.hpp"

namespace fdma::select_test {

/// Numbers that are exact in `dtype`, as doubles and as stored.
struct Tensor {
  DType dtype;
  std::vector<std::int64_t> extents;
  std::vector<double> exact;
  std::vector<std::uint16_t> halves;
  std::vector<float> floats;

  TensorView view() const {
    return make_contiguous_view(
        dtype == DType::float32 ? static_cast<const void*>(floats.data()) : halves.data(), dtype,
        static_cast<int>(extents.size()), extents.data());
  }
};

inline Tensor make_tensor(DType dtype, std::vector<std::int64_t> extents, std::mt19937& random,
                          double scale = 1) {
  Tensor tensor{dtype, std::move(extents), {}, {}, {}};
  std::int64_t count = 1;
  for (const std::int64_t extent : tensor.extents) count *= extent;
  std::normal_distribution<float> normal;
  for (std::int64_t i = 0; i < count; ++i) {
    const auto drawn = static_cast<float>(normal(random) * scale);
    // Cuts a number to 8 bits of mantissa, within the normal range of float16.
    float value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(drawn) & 0xFFFF0000u);
    if (std::abs(value) < 0x1p-14F) value = 0;
    tensor.exact.push_back(value);
    if (dtype == DType::float32) {
      tensor.floats.push_back(value);
    } else if (dtype == DType::bfloat16) {
      tensor.halves.push_back(
          static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
    } else {
      const auto bits = std::bit_cast<std::uint32_t>(value);
      const std::uint32_t exponent = bits >> 23 & 0xFFu;
      tensor.halves.push_back(static_cast<std::uint16_t>(
          (bits >> 16 & 0x8000u) |
          (value == 0 ? 0u : (exponent - 112) << 10 | (bits >> 13 & 0x3FFu))));
    }
  }
  return tensor;
}

}  // namespace fdma::select_test
