// Arithmetic for which C++ has no expression, one instruction per function (PTX ISA: shl, mul,
// rcp, lg2).
#pragma once

#include <cstdint>

namespace fdma::ptx {

/// value << count, and 0 for counts over 31.
__device__ __forceinline__ std::uint32_t shift_left(std::uint32_t value, std::uint32_t count) {
  std::uint32_t shifted;
  asm("shl.b32 %0, %1, %2;" : "=r"(shifted) : "r"(value), "r"(count));
  return shifted;
}

/// a * b, in which subnormal numbers count as 0.
__device__ __forceinline__ float multiply_ftz(float a, float b) {
  float product;
  asm("mul.ftz.f32 %0, %1, %2;" : "=f"(product) : "f"(a), "f"(b));
  return product;
}

/// Returns 1 / x with an error of 1 ulp; subnormal numbers count as 0.
__device__ __forceinline__ float reciprocal_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

/// Returns log2 x with an error of 2^-22 for x in [1, 2); subnormal numbers count as 0.
__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace fdma::ptx
