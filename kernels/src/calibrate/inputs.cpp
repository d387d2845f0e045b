// Shapes and values of the tensors that calibration runs with.
#include "calibrate/inputs.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

#include "cpu/float16.hpp"

namespace fdma {

AttentionShape calibration_shape(const BlockMask& mask, DType dtype, std::int32_t head_dim,
                                 std::int32_t heads) {
  AttentionShape shape;
  shape.heads_q = shape.heads_kv = heads;
  shape.q_lens = mask.shape.q_lens;
  shape.kv_lens = mask.shape.kv_lens;
  shape.head_dim = shape.head_dim_v = head_dim;
  shape.q_dtype = shape.k_dtype = shape.v_dtype = shape.out_dtype = dtype;
  return shape;
}

// Box and Muller's transform of two uniform numbers, of which only the cosine is used.
void fill_normal(std::span<std::uint8_t> bytes, DType dtype) {
  constexpr std::size_t kPeriod = 4093;
  std::uint64_t state = 1;
  const auto uniform = [&state] {  // in (0, 1]
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<double>((state >> 32) + 1) * 0x1p-32;
  };
  const auto size = static_cast<std::size_t>(size_bytes(dtype));
  std::vector<std::uint8_t> period(kPeriod * size);
  for (std::size_t i = 0; i < kPeriod; ++i) {
    const double radius = std::sqrt(-2 * std::log(uniform()));
    const auto value = static_cast<float>(radius * std::cos(2 * std::numbers::pi * uniform()));
    std::uint8_t* to = period.data() + i * size;
    if (dtype == DType::float32) {
      std::memcpy(to, &value, size);
    } else {
      const std::uint16_t half = dtype == DType::bfloat16 ? cpu::bfloat16_from_float(value)
                                                          : cpu::float16_from_float(value);
      std::memcpy(to, &half, size);
    }
  }
  for (std::size_t at = 0; at < bytes.size(); at += period.size()) {
    std::memcpy(bytes.data() + at, period.data(), std::min(period.size(), bytes.size() - at));
  }
}

Error calibration_interrupted() { return Error{ErrorCode::io, "calibrate: interrupted"}; }

}  // namespace fdma
