// Online softmax of one step in the accumulator registers of a warpgroup. The computing warps of
// the forward kernel call it. A thread has two rows, r and r + 8, of the 64 rows, and 32 columns of
// each; register 4 j + 2 i + e is row i, column 8 j + e.
//
// The maximum to which exponents refer follows the true maximum lazily. As long as the exponential
// of the true maximum of a row grows by less than a factor of 2^kSlack, sums and outputs keep their
// scale, and the correction of the output (head_dim multiplications a row) is skipped. P is then at
// most 2^kSlack, which its type can hold.
//
// The maximum of a step need not even be computed, because in most steps it is below the reference
// or little above it. weigh computes exponentials at once. If none is too large, which their sum
// tells, they are the weights. Otherwise, and for rows that have seen no key, the maximum is
// computed. If the reference has to be raised, the exponentials are computed once more.
//
// Example     logits 3, 1 of the first step, 20, 2 of the second (in powers of 2), kSlack 32: the
//             exponents of both refer to 3; the second step's sum, 2^17 + 2^-1, does not trigger
//             the search for the maximum
// Fits not    the first step of a work tile, which has no maximum before it: softmax_first
// Cost        a step of 128 keys saves 66 of some 460 instructions, and all shuffles; a step that
//             is computed again takes some 300 more
#pragma once

#include <cuda_bf16.h>

#include <cstdint>
#include <type_traits>

#include "ptx/addresses.cuh"
#include "ptx/arithmetic.cuh"
#include "ptx/warpgroup.cuh"

namespace fdma::gpu {

/// For bfloat16, sums of 2^17 such weights times values are far below the largest float32. float16
/// ends at 2^16.
template <class T>
inline constexpr float kSlack = std::is_same_v<T, __nv_bfloat16> ? 32.0f : 8.0f;
/// 32 * 2^kSlack. A thread's sum of the 32 weights of a row exceeds it only if one of them exceeds
/// 2^kSlack.
template <class T>
inline constexpr float kLargeSum = std::is_same_v<T, __nv_bfloat16> ? 0x1p37f : 0x1p13f;

/// State of a thread's two rows: the maximum of the logits to which exponents refer, and the sum of
/// the exponentials in the thread's own columns.
struct RowState {
  float max[2];
  float sum[2];
};

/// Sets cells whose mask bit is 0 to `masked`. There are two loops, so that each becomes one
/// register of predicates at a time.
template <int kCount>
__device__ __forceinline__ void apply_fragments(float (&s)[kCount], std::uint32_t word0,
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

/// The largest score of each of the thread's rows in a step.
template <int kCount>
__device__ __forceinline__ float2 row_maxima(const float (&s)[kCount]) {
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
  return {max0, max1};
}

/// The first step of a work tile, whose state is {-inf, 0}: s <- 2^(s * scale - max). scale > 0.
template <int kCount>
__device__ __forceinline__ void softmax_first(float (&s)[kCount], RowState& state, float scale) {
  const auto [max0, max1] = row_maxima(s);
  // The comparison with -inf, in this form, leaves ptxas registers for all products (otherwise
  // C7511).
  if ((max0 - state.max[0]) * scale > 0.0f) state.max[0] = max0;
  if ((max1 - state.max[1]) * scale > 0.0f) state.max[1] = max1;
  // For a row that has seen no key yet every logit is -inf, and any finite reference gives 0.
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
}

/// Computes the exponentials of a step, weighted(x, i, column) of them as elements T; returns the
/// sum of the exponentials over the thread's columns of each row. `wait` waits until
/// `probabilities` may be written. 4 * kFirst exponentials are computed before it, and `value`, not
/// negative, holds them there (ptx::compute_before).
template <class T, int kFirst, bool kHold, int kCount, int kPieces, class Weighted, class Wait>
__device__ __forceinline__ float2 exponentials(const float (&s)[kCount], const RowState& state,
                                               float scale,
                                               std::uint32_t (&probabilities)[kPieces][4],
                                               int value, const Weighted& weighted,
                                               const Wait& wait) {
  const float base0 = state.max[0] == -INFINITY ? 0.0f : state.max[0] * scale;
  const float base1 = state.max[1] == -INFINITY ? 0.0f : state.max[1] * scale;
  float2 sum = make_float2(0.0f, 0.0f);
  const auto compute = [&](int j, float(&x)[4]) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      x[e] = ptx::exp2_approx(fmaf(s[4 * j + e], scale, e < 2 ? -base0 : -base1));
    }
    sum.x += x[0];
    sum.y += x[2];
    sum.x += x[1];
    sum.y += x[3];
  };
  const auto store = [&](int j, const float(&x)[4]) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      probabilities[j / 2][j % 2 * 2 + i] =
          ptx::pack<T>(weighted(x[2 * i], i, 8 * j), weighted(x[2 * i + 1], i, 8 * j + 1));
    }
  };
  float first[kFirst > 0 ? kFirst : 1][4];
#pragma unroll
  for (int j = 0; j < kFirst; ++j) compute(j, first[j]);
  if constexpr (kHold) ptx::compute_before(value, sum.x, sum.y);
  wait();
#pragma unroll
  for (int j = 0; j < kFirst; ++j) store(j, first[j]);
#pragma unroll
  for (int j = kFirst; j < kCount / 4; ++j) {
    float x[4];
    compute(j, x);
    store(j, x);
  }
  return sum;
}

/// Raises the reference maximum where the maximum of a step is too large for it, and rescales sums
/// and outputs. Returns false iff the exponentials that were computed are valid in all rows of the
/// warp.
template <class T, int kCount, int kOut>
__device__ __forceinline__ bool raise_maximum(const float (&s)[kCount], RowState& state,
                                              float scale, float (&out)[kOut]) {
  const auto [max0, max1] = row_maxima(s);
  const float max[2] = {max0, max1};
  float factor[2] = {1.0f, 1.0f};
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    if (!((max[i] - state.max[i]) * scale > kSlack<T>)) continue;
    const bool is_first = state.max[i] == -INFINITY;
    if (is_first && fabsf(max[i] * scale) <= kSlack<T>) {
      state.max[i] = 0.0f;  // the reference of a row without keys
      continue;
    }
    factor[i] = is_first ? 0.0f : ptx::exp2_approx((state.max[i] - max[i]) * scale);
    state.max[i] = max[i];
    state.sum[i] *= factor[i];
  }
  if (!__any_sync(~0u, factor[0] != 1.0f || factor[1] != 1.0f)) return false;
#pragma unroll
  for (int j = 0; j < kOut / 4; ++j) {
#pragma unroll
    for (int e = 0; e < 4; ++e) out[4 * j + e] *= factor[e / 2];
  }
  return true;
}

/// Computes the weights of a step after the first, as elements T; updates state and outputs. scale
/// > 0. `wait` waits until the outputs and `probabilities` are available, after the first
/// exponentials (exponentials).
template <class T, int kFirst, bool kHold, int kCount, int kPieces, int kOut, class Weighted,
          class Wait>
__device__ __forceinline__ void weigh(const float (&s)[kCount], RowState& state, float scale,
                                      std::uint32_t (&probabilities)[kPieces][4],
                                      float (&out)[kOut], int value, const Weighted& weighted,
                                      const Wait& wait) {
  float2 sum =
      exponentials<T, kFirst, kHold>(s, state, scale, probabilities, value, weighted, wait);
  const bool is_large = fmaxf(sum.x, sum.y) > kLargeSum<T>;
  const bool is_first = fminf(state.max[0], state.max[1]) == -INFINITY;
  if (__any_sync(~0u, is_large || is_first) && raise_maximum<T>(s, state, scale, out)) {
    sum = exponentials<T, 0, false>(s, state, scale, probabilities, value, weighted, [] {});
  }
  state.sum[0] += sum.x;
  state.sum[1] += sum.y;
}

/// Returns 1 / x and log2 x of a sum x of exponentials without branches, or NaN for NaN. A sum is
/// at least nearly 2^-kSlack, the exponential of the maximum. The quotient is the nearest float.
/// The logarithm has an error of 2^-22 in addition to its rounding.
__device__ __forceinline__ float2 inverse_and_log2(float sum) {
  const float near = ptx::reciprocal_approx(sum);
  const std::uint32_t exponent = __float_as_uint(sum) & 0x7F800000u;
  const float fraction = sum * __uint_as_float(0x7F000000u - exponent);  // in [1, 2)
  const float log2_fraction = ptx::log2_approx(fraction);
  return {fmaf(near, fmaf(-sum, near, 1.0f), near),
          static_cast<float>(static_cast<int>(exponent >> 23) - 127) + log2_fraction};
}

/// After the last tile: computes the factor of each output row (0 for a row without keys) and its
/// logsumexp (natural logarithm). finish(sum, maximum, i) is the score's finish_row. `kStraight`:
/// without branches.
template <bool kStraight, class Finish>
__device__ __forceinline__ void finish_rows(const RowState& state, float scale, float (&inverse)[2],
                                            float (&lse)[2], const Finish& finish) {
  constexpr float kLn2 = 0.693147180559945309417f;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float sum = state.sum[i];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    sum = finish(sum, state.max[i] * scale, i);
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

/// Multiplies the output of each row by its factor. If a factor is 0, zero_rows has to follow.
template <int kCount>
__device__ __forceinline__ void normalize(float (&out)[kCount], const float (&inverse)[2]) {
#pragma unroll
  for (int i = 0; i < kCount / 4; ++i) {
#pragma unroll
    for (int e = 0; e < 4; ++e) out[4 * i + e] *= inverse[e / 2];
  }
}

/// Sets rows whose factor is 0 to 0 whatever they hold, because V of keys that no row sees may be
/// NaN.
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

}  // namespace fdma::gpu
