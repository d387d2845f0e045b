// Policies of the attention kernels: how a logit follows from a product of query and key (Score),
// and what multiplies a probability after its row has been summed (Weight). They are type
// parameters of the kernels beside the element type. Members that a kernel does not need for a
// policy cost nothing: a place is asked for by a call, which a policy that needs none does not
// make.
//
// A score has
//   kIsLinear     the logit is the product times a positive scale. The forward kernel then takes
//                 the scale into its exponent, and cells may be masked before the scale
//   kAddsKeyBias  a bias of the key is part of the logit: mask warps bring it, and the backward
//                 pass adds up its gradient
//   kNeedsPlaces  logit, gradient or finish_row asks for the place of a cell or a row
//   kAddsInOrder  instances for it follow the accumulation order of deterministic calls where dQ is
//                 added from registers
//   kAddsTerms    terms of the pairs are added to the logits of a step at once (add_terms), and have
//                 gradients of their own (add_gradients)
//   kBends        the product is bent before the logit is made of it (bent, slope). Its biases are
//                 no terms of the product
//   Arguments     what the functions need of a call, made by arguments(ScoreNumbers). The kernels'
//                 parameters derive from it, so that an empty one takes no room
//   bent(product, arguments)    what logit takes in place of the product
//   slope(bent, arguments)      its derivative over that of the product times the scale, in [0, 1].
//                 The backward pass keeps it in the lowest bits of the weight (with_slope)
//   logit(bent, scale_log2, offset, arguments, place)   the logit in powers of two plus `offset`,
//                 which holds the key's bias and, in the backward pass, minus the logsumexp of the
//                 row
//   gradient(gradient, arguments, place)   the gradient of the scaled product from that of the
//                 logit, times the slope where the score bends
//   finish_row(sum, maximum_log2, arguments, place)     the sum of the row's exponentials, which
//                 refer to maximum_log2, as it divides the output
//
// A weight has
//   kNeedsPlaces
//   kDrops        it drops pairs by chance and multiplies the others by one number. The kernels then
//                 keep a bit of each cell in place of a call of weighted (dropout.cuh)
//   weighted(value, place)      linear in `value`, which is a probability on its way to V and dV,
//                 or the gradient of a weighted probability on its way to dS
//
// Example     ALiBi: logit = fmaf(product, scale_log2, offset + slope * (key - query)) with
//             kIsLinear false, kNeedsPlaces true; gradient returns its argument
// See         FlashInfer's attention variants, whose LogitsTransform is `logit`
#pragma once

#include <cstdint>

#include "cuda/policies.hpp"
#include "ptx/addresses.cuh"
#include "ptx/arithmetic.cuh"
#include "ptx/warpgroup.cuh"

namespace fdma::gpu {

/// A cell of the attention matrix; of a row, key is 0.
struct CellPlace {
  std::int32_t batch, head, query, key;
};

/// The cells of a row i of a thread's accumulators in a step. They begin at a place; element
/// 4 j + 2 i + e is 8 j + e columns further. Columns are keys, or queries where rows are keys.
struct RowCells : CellPlace {
  std::int32_t q_len, kv_len;  ///< of the batch element; cells past them do not exist
};

/// The product times a positive scale.
struct LinearScore {
  static constexpr bool kIsLinear = true, kAddsKeyBias = false, kNeedsPlaces = false,
                        kAddsInOrder = false, kAddsTerms = false, kBends = false;

  struct Arguments {};
  static Arguments arguments(const ScoreNumbers&) { return {}; }

  template <class Given, class Place>
  __device__ __forceinline__ static float logit(float product, float scale_log2, float offset,
                                                const Given&, const Place&) {
    return fmaf(product, scale_log2, offset);
  }
  template <class Given, class Place>
  __device__ __forceinline__ static float gradient(float gradient, const Given&, const Place&) {
    return gradient;
  }
  template <class Given, class Place>
  __device__ __forceinline__ static float finish_row(float sum, float, const Given&, const Place&) {
    return sum;
  }
};

/// The product times any scale, plus a bias of the key where the call has one.
struct KeyBiasScore : LinearScore {
  static constexpr bool kIsLinear = false, kAddsKeyBias = true, kAddsInOrder = true;
};

/// tanh(x) with relative error below 4e-6: 1 - 2 / (1 + e^2x), and near 0, where that loses digits, a
/// Taylor polynomial of degree 5. tanh.approx.f32 takes one instruction for these, but its
/// error of 2^-11 would be that of lse.
__device__ __forceinline__ float tanh_of(float x) {
  constexpr float kTwoLog2E = 2.88539008177792681472f;
  const float square = x * x;
  const float series = fmaf(x * square, fmaf(square, 2.0f / 15.0f, -1.0f / 3.0f), x);
  const float ratio =
      fmaf(-2.0f, ptx::reciprocal_approx(1.0f + ptx::exp2_approx(x * kTwoLog2E)), 1.0f);
  return fabsf(x) < 0.1f ? series : ratio;
}

/// cap * tanh(x / cap) of the product times any scale, plus a bias of the key where the call has
/// one.
struct SoftcapScore : KeyBiasScore {
  static constexpr bool kBends = true;

  struct Arguments {
    float scale_by_cap;  ///< softmax scale / cap
    float cap_log2;      ///< cap times log2(e)
  };
  static Arguments arguments(const ScoreNumbers& of) {
    constexpr float kLog2E = 1.44269504088896340736f;
    return {of.softmax_scale / of.softcap, of.softcap * kLog2E};
  }

  __device__ __forceinline__ static float bent(float product, const Arguments& arguments) {
    return tanh_of(product * arguments.scale_by_cap);
  }
  __device__ __forceinline__ static float slope(float bent, const Arguments&) {
    return fmaf(-bent, bent, 1.0f);
  }
  template <class Place>
  __device__ __forceinline__ static float logit(float bent, float, float offset,
                                                const Arguments& arguments, const Place&) {
    return fmaf(bent, arguments.cap_log2, offset);
  }
};

/// A weight whose 11 lowest bits hold 1 minus a slope of [0, 1] in steps of 2^-11, because there is
/// no register for it. The slope is off by at most 2^-12, by 2^-11 where it is 0. Of the numbers
/// with these bits the one nearest to the weight is taken, which is off by at most 2^-13 of it.
__device__ __forceinline__ float with_slope(float weight, float slope) {
  const float steps = fminf(fmaf(slope, -0x1p11f, 0x1p23f + 0x1p11f), 0x1p23f + 2047.0f);
  const std::uint32_t low = __float_as_uint(steps) & 0x7FFu;
  const int near = max(__float_as_int(weight) - static_cast<int>(low) + 0x400, 0);
  return __uint_as_float((static_cast<std::uint32_t>(near) & ~0x7FFu) | low);
}
__device__ __forceinline__ float slope_in(float weight) {
  return fmaf(__uint_as_float((__float_as_uint(weight) & 0x7FFu) | 0x4B000000u), -0x1p-11f,
              0x1p12f + 1.0f);
}

struct NoWeight {
  static constexpr bool kNeedsPlaces = false, kDrops = false;

  template <class Place>
  __device__ __forceinline__ static float weighted(float value, const Place&) {
    return value;
  }
};

template <class Score, class Weight>
inline constexpr bool kAsksForPlaces = Score::kNeedsPlaces || Weight::kNeedsPlaces;

/// The parameters of a kernel for a score.
template <class Params, class Score>
struct WithArguments : Params, Score::Arguments {
  __device__ __forceinline__ const typename Score::Arguments& arguments() const { return *this; }
};

/// Turns the products of a step into logits. `biases` is the shared address of the bias of the
/// thread's first column; place_of(i, column) is the place of a cell of the thread's row i, with
/// columns counted from its first one.
template <class Score, int kCount, class PlaceOf>
__device__ __forceinline__ void apply_score(float (&s)[kCount], float scale_log2,
                                            const typename Score::Arguments& arguments,
                                            std::uint32_t biases, const PlaceOf& place_of) {
#pragma unroll
  for (int j = 0; j < kCount / 4; ++j) {
    float2 bias = make_float2(0.0f, 0.0f);
    if constexpr (Score::kAddsKeyBias) bias = ptx::load_pair(biases + 32 * j);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
#pragma unroll
      for (int e = 0; e < 2; ++e) {
        float& x = s[4 * j + 2 * i + e];
        if constexpr (Score::kBends) x = Score::bent(x, arguments);
        x = Score::logit(x, scale_log2, e == 0 ? bias.x : bias.y, arguments,
                         [&] { return place_of(i, 8 * j + e); });
      }
    }
  }
}

}  // namespace fdma::gpu
