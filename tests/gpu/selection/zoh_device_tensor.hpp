// Tensors of numbers that are exact in their dtype, on the host and on the device.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "fdma/base/tensor_view.hpp"
#include "selection/guarded_array.hpp"

namespace fdma::gpu_test {

/// Numbers that are exact in every dtype. They are held as doubles, as stored on the host, and on
/// the device.
struct Tensor {
  DType dtype;
  std::vector<std::int64_t> extents;
  std::vector<double> exact;
  std::vector<std::uint8_t> bytes;
  std::unique_ptr<GuardedBytes> device;

  TensorView host_view() const {
    return make_contiguous_view(bytes.data(), dtype, static_cast<int>(extents.size()),
                                extents.data());
  }
  TensorView view() const {
    TensorView result = host_view();
    result.data = device->as<void>();
    result.device = Device::cuda;
    return result;
  }
};

/// The float16 bits of a float with 8 bits of mantissa that is in the normal range of float16 or
/// not finite.
inline std::uint16_t half_bits(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u, exponent = bits >> 23 & 0xFFu;
  if (value == 0) return static_cast<std::uint16_t>(sign);
  if (exponent == 0xFF) {
    return static_cast<std::uint16_t>(sign | 0x7C00u | (std::isnan(value) ? 0x200u : 0u));
  }
  return static_cast<std::uint16_t>(sign | (exponent - 112) << 10 | (bits >> 13 & 0x3FFu));
}

inline void store(Tensor& tensor, std::size_t i, float value) {
  tensor.exact[i] = value;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if (tensor.dtype == DType::float32) {
    std::memcpy(tensor.bytes.data() + 4 * i, &bits, 4);
  } else {
    const auto half =
        tensor.dtype == DType::bfloat16 ? static_cast<std::uint16_t>(bits >> 16) : half_bits(value);
    std::memcpy(tensor.bytes.data() + 2 * i, &half, 2);
  }
}

inline void upload(Tensor& tensor) {
  tensor.device = std::make_unique<GuardedBytes>(tensor.bytes.size());
  require(cudaMemcpy(tensor.device->as<void>(), tensor.bytes.data(), tensor.bytes.size(),
                     cudaMemcpyHostToDevice),
          "cudaMemcpy");
}

inline Tensor make_tensor(DType dtype, std::vector<std::int64_t> extents, std::mt19937& random,
                          double scale = 1) {
  Tensor tensor{dtype, std::move(extents), {}, {}, nullptr};
  std::size_t count = 1;
  for (const std::int64_t extent : tensor.extents) count *= static_cast<std::size_t>(extent);
  tensor.exact.resize(count);
  tensor.bytes.resize(count * static_cast<std::size_t>(size_bytes(dtype)));
  std::normal_distribution<float> normal;
  for (std::size_t i = 0; i < count; ++i) {
    const auto drawn = static_cast<float>(normal(random) * scale);
    float value = std::bit_cast<float>(std::bit_cast<std::uint32_t>(drawn) & 0xFFFF0000u);
    if (std::abs(value) < 0x1p-14F) value = 0;
    store(tensor, i, value);
  }
  upload(tensor);
  return tensor;
}

}  // namespace fdma::gpu_test
