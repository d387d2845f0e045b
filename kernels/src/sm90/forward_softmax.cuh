// Online softmax of one tile in the accumulator registers of a warpgroup: a thread has two rows, r
// and r + 8, of 64 and 32 columns of each; register 4 j + 2 i + e is row i, column 8 j + e.
//
// The maximum that exponents refer to follows the true one lazily: as long as the true maximum of a
// row grows by less than 2^kSlack, sums and outputs keep their scale, and the correction of the
// output (head_dim multiplications a row) is left out. P is then at most 2^kSlack, within 16 bits.
#pragma once

#include <cstdint>

#include "ptx/warpgroup.cuh"

namespace fdma::sm90 {

inline constexpr float kSlack = 8.0f;

/// Of a thread's two rows: the maximum of the logits that exponents refer to, and the sum of the
/// exponentials in the thread's own columns.
struct RowState {
  float max[2];
  float sum[2];
};

/// `masked` where the bit of a cell is 0. Two loops, so that each becomes one register of
/// predicates at a time.
template <int kCount>
__device__ __forceinline__ void apply_words(float (&s)[kCount], std::uint32_t word0,
                                            std::uint32_t word1, float masked = -INFINITY) {
#pragma unroll
  for (int bit = 0; bit < kCount / 2; ++bit) {
    float& x = s[4 * (bit / 2) + bit % 2];
    x = (word0 & (1u << bit)) ? x : masked;
  }
#pragma unroll
  for (int bit = 0; bit < kCount / 2; ++bit) {
    float& x = s[4 * (bit / 2) + 2 + bit % 2];
    x = (word1 & (1u << bit)) ? x : masked;
  }
}

/// s <- s * scale + bias of its column; `biases`: shared address of the thread's first column.
template <int kCount>
__device__ __forceinline__ void scale_and_bias(float (&s)[kCount], float scale,
                                               std::uint32_t biases) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    float bias0, bias1;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                 : "=f"(bias0), "=f"(bias1)
                 : "r"(biases + 32 * j)
                 : "memory");
    s[4 * j] = fmaf(s[4 * j], scale, bias0);
    s[4 * j + 1] = fmaf(s[4 * j + 1], scale, bias1);
    s[4 * j + 2] = fmaf(s[4 * j + 2], scale, bias0);
    s[4 * j + 3] = fmaf(s[4 * j + 3], scale, bias1);
  }
}

/// s <- 2^(s * scale - max); updates the state and returns what the output of each row has to be
/// multiplied with. scale > 0.
template <int kCount>
__device__ __forceinline__ float2 softmax_step(float (&s)[kCount], RowState& state, float scale) {
  float max0 = s[0], max1 = s[2];
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    max0 = fmaxf(max0, fmaxf(s[4 * j], s[4 * j + 1]));
    max1 = fmaxf(max1, fmaxf(s[4 * j + 2], s[4 * j + 3]));
  }
#pragma unroll
  for (int distance = 1; distance <= 2; distance *= 2) {
    max0 = fmaxf(max0, __shfl_xor_sync(~0u, max0, distance));
    max1 = fmaxf(max1, __shfl_xor_sync(~0u, max1, distance));
  }
  float2 factor = make_float2(1.0f, 1.0f);
  if ((max0 - state.max[0]) * scale > kSlack) {
    factor.x = state.max[0] == -INFINITY ? 0.0f : ptx::exp2_approx((state.max[0] - max0) * scale);
    state.max[0] = max0;
    state.sum[0] *= factor.x;
  }
  if ((max1 - state.max[1]) * scale > kSlack) {
    factor.y = state.max[1] == -INFINITY ? 0.0f : ptx::exp2_approx((state.max[1] - max1) * scale);
    state.max[1] = max1;
    state.sum[1] *= factor.y;
  }
  // A row that has seen nothing yet: every logit is -inf, any finite reference gives 0.
  const float base0 = state.max[0] == -INFINITY ? 0.0f : state.max[0] * scale;
  const float base1 = state.max[1] == -INFINITY ? 0.0f : state.max[1] * scale;
  float sum0 = 0.0f, sum1 = 0.0f;
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      s[4 * j + e] = ptx::exp2_approx(fmaf(s[4 * j + e], scale, -base0));
      sum0 += s[4 * j + e];
      s[4 * j + 2 + e] = ptx::exp2_approx(fmaf(s[4 * j + 2 + e], scale, -base1));
      sum1 += s[4 * j + 2 + e];
    }
  }
  state.sum[0] += sum0;
  state.sum[1] += sum1;
  return factor;
}

/// 1 / x and log2 x of a sum of exponentials without branches, or NaN of NaN. A sum is
/// nearly 1 at least: the exponential of the maximum. The quotient is the nearest float; the
/// logarithm is off by 2^-22 beside its rounding.
__device__ __forceinline__ float2 inverse_and_log2(float sum) {
  float near, log2_fraction;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(near) : "f"(sum));
  const std::uint32_t exponent = __float_as_uint(sum) & 0x7F800000u;
  const float fraction = sum * __uint_as_float(0x7F000000u - exponent);  // in [1, 2)
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log2_fraction) : "f"(fraction));
  return {fmaf(near, fmaf(-sum, near, 1.0f), near),
          static_cast<float>(static_cast<int>(exponent >> 23) - 127) + log2_fraction};
}

/// After the last tile: what the output of each row is multiplied with (0 for a row without keys)
/// and the natural logarithm of its sum. `kStraight`: without branches.
template <bool kStraight>
__device__ __forceinline__ void finish_rows(const RowState& state, float scale, float (&inverse)[2],
                                            float (&lse)[2]) {
  constexpr float kLn2 = 0.693147180559945309417f;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum = state.sum[i];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if constexpr (kStraight) {
      const float2 of_sum = inverse_and_log2(sum);
      inverse[i] = sum == 0.0f ? 0.0f : of_sum.x;
      lse[i] = sum == 0.0f ? -INFINITY : (state.max[i] * scale + of_sum.y) * kLn2;
    } else {
      inverse[i] = sum == 0.0f ? 0.0f : 1.0f / sum;
      lse[i] = sum == 0.0f ? -INFINITY : (state.max[i] * scale + log2f(sum)) * kLn2;
    }
  }
}

/// The output of each row times its factor; where one is 0, zero_rows has to follow.
template <int kCount>
__device__ __forceinline__ void normalize(float (&out)[kCount], const float (&inverse)[2]) {
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) out[4 * i + e] *= inverse[e / 2];
  }
}

/// Rows whose factor is 0 become 0 whatever they hold: V of keys that no row sees may be NaN.
template <int kCount>
__device__ __forceinline__ void zero_rows(float (&out)[kCount], const float (&inverse)[2]) {
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (inverse[e / 2] == 0.0f) out[4 * i + e] = 0.0f;
    }
  }
}

}  // namespace fdma::sm90
