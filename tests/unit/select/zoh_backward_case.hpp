// Calls zoh_scores_backward on random tensors, and compares the results with the oracle's.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "fdma/select/zoh_backward.hpp"
#include "zoh_oracle.hpp"
#include "zoh_tensor.hpp"

namespace fdma::select_test {

/// A number of 16 bits.
inline float widened(std::uint16_t bits, DType dtype) {
  if (dtype == DType::bfloat16) return std::bit_cast<float>(std::uint32_t{bits} << 16);
  const int exponent = bits >> 10 & 0x1F, mantissa = bits & 0x3FF;
  const float size = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                     : exponent == 31
                         ? (mantissa == 0 ? std::numeric_limits<float>::infinity()
                                          : std::numeric_limits<float>::quiet_NaN())
                         : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  return (bits & 0x8000) != 0 ? -size : size;
}

/// An output, poisoned.
struct Gradient {
  DType dtype;
  std::vector<std::int64_t> extents;
  std::vector<std::uint8_t> bytes;

  Gradient(const Tensor& input, DType type) : dtype(type), extents(input.extents) {
    bytes.assign(input.exact.size() * static_cast<std::size_t>(size_bytes(type)), 0xEE);
  }
  MutableTensorView view() {
    return make_contiguous_mutable_view(bytes.data(), dtype, static_cast<int>(extents.size()),
                                        extents.data());
  }
  float operator[](std::size_t i) const {
    if (dtype == DType::float32) {
      float value = 0;
      std::memcpy(&value, bytes.data() + 4 * i, 4);
      return value;
    }
    std::uint16_t bits = 0;
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    return widened(bits, dtype);
  }
};

/// The tensors of a call. Gradients have the dtypes of their inputs.
struct Inputs {
  Tensor values, dt_proj, a_coef, dscores;

  Inputs(const ZohShape& shape, DType dtype, DType weight_dtype, std::mt19937& random,
         double kept = 0.7)
      : values(make_tensor(
            dtype, {shape.num_batches, shape.kv_len, shape.num_heads_kv, shape.head_dim}, random)),
        dt_proj(make_tensor(
            weight_dtype,
            {shape.num_heads_kv, (shape.is_per_head ? 1 : shape.num_heads_kv) * shape.head_dim},
            random, 0.3)),
        a_coef(make_tensor(weight_dtype, {shape.num_heads_kv}, random, 1.5)),
        dscores(make_tensor(DType::float32, {shape.num_batches, shape.num_heads_kv, shape.kv_len},
                            random)) {
    std::bernoulli_distribution is_kept(kept);
    for (std::size_t i = 0; i < dscores.exact.size(); ++i) {
      if (!is_kept(random)) dscores.exact[i] = dscores.floats[i] = 0;
    }
  }
  ZohBackwardTensors tensors() const {
    ZohBackwardTensors result;
    result.values = values.view();
    result.dt_proj = dt_proj.view();
    result.a_coef = a_coef.view();
    result.dscores = dscores.view();
    return result;
  }
  ZohProblem problem(ZohMode mode) const {
    const auto shape = zoh_shape(values.view(), dt_proj.view(), a_coef.view());
    return {*shape, mode, values.exact, dt_proj.exact, a_coef.exact, dscores.exact};
  }
};

struct Outputs {
  Gradient dvalues, ddt_proj, da_coef;
  explicit Outputs(const Inputs& inputs, bool in_float32 = false)
      : dvalues(inputs.values, in_float32 ? DType::float32 : inputs.values.dtype),
        ddt_proj(inputs.dt_proj, in_float32 ? DType::float32 : inputs.dt_proj.dtype),
        da_coef(inputs.a_coef, in_float32 ? DType::float32 : inputs.a_coef.dtype) {}
  Result<void> run(ZohBackwardTensors tensors, ZohOptions options = {}) {
    tensors.dvalues = dvalues.view();
    tensors.ddt_proj = ddt_proj.view();
    tensors.da_coef = da_coef.view();
    return zoh_scores_backward(tensors, options);
  }
};

inline void expect_near(const Gradient& got, const Bounded& expected, const std::string& name) {
  for (std::size_t i = 0; i < expected.exact.size(); ++i) {
    ASSERT_NEAR(got[i], expected.exact[i],
                expected.error[i] * 1.01 + rounding_error(expected.exact[i], got.dtype) + 1e-44)
        << name << "[" << i << "]";
  }
}

}  // namespace fdma::select_test
