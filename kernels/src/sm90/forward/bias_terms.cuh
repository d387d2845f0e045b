// Key biases as part of the product Q K^T. If every thread read the biases of its columns from
// shared memory, these reads would take a third of the cycles in which shared memory feeds the
// products. The biases are therefore one further k16 step: an operand in registers that is 1 in its
// first three columns, times three 16-bit terms of each key. The sum of the terms is bias / scale
// with all its 24 bits.
//
// Example     bias / scale = 1 + 2^-9 + 2^-17: terms 1, 2^-9, 2^-17
// Fits not    float16, whose terms would overflow where a float32 does not
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "ptx/wgmma.cuh"

namespace fdma::sm90 {

/// True iff the kernel takes biases as terms.
template <class T, class Score, class Reader>
inline constexpr bool kHasBiasTerms = std::is_same_v<T, __nv_bfloat16> &&
                                      (Score::kAddsKeyBias && !Score::kBends &&
                                       Reader::kTakesBiasTerms);

/// The factor of a bias before it is cut into terms. `scale_log2` is an absolute value, because the
/// queries carry the scale's sign (negate_queries).
__device__ __forceinline__ float inverse_scale(float scale_log2) {
  constexpr float kLog2E = 1.44269504088896340736f;
  return kLog2E / scale_log2;
}

/// The first half of a key's eight columns: three terms and a zero. The other half is zeros. A
/// value that is not finite has one term.
__device__ __forceinline__ uint4 bias_terms(float value) {
  const auto upper = [](float x) { return __float_as_uint(x) & 0xFFFF0000u; };
  const std::uint32_t first = upper(value);
  const float rest = fabsf(value) < INFINITY ? value - __uint_as_float(first) : 0.0f;
  const std::uint32_t second = upper(rest);
  const std::uint32_t third = upper(rest - __uint_as_float(second));
  return make_uint4(first >> 16 | second, third >> 16, 0, 0);
}

/// This lane's fragment of the operand that multiplies the terms. Called before wgmma_fence.
__device__ __forceinline__ void ones_of_terms(int lane, std::uint32_t (&fragment)[4]) {
  constexpr std::uint32_t kOne = 0x3F80;  // bfloat16
  const int pair = lane % 4;              // pair of columns
  fragment[0] = fragment[1] = pair == 0 ? kOne << 16 | kOne : pair == 1 ? kOne : 0;
  fragment[2] = fragment[3] = 0;
  ptx::pin_registers(fragment);
}

/// Descriptor of the terms of a slot, 8 keys in 128 bytes, without swizzle. The second half of a
/// k16 step is `zeros`, which lies behind the terms.
__device__ __forceinline__ std::uint64_t terms_descriptor(std::uint32_t terms,
                                                          std::uint32_t zeros) {
  return std::uint64_t{(terms & 0x3FFFFu) >> 4} | std::uint64_t{(zeros - terms) >> 4} << 16 |
         std::uint64_t{128 >> 4} << 32;
}

}  // namespace fdma::sm90
