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
//   logit(product, scale_log2, offset, place)   the logit in powers of two plus `offset`, which
//                 holds the key's bias and, in the backward pass, minus the logsumexp of the row
//   gradient(gradient, place)   the gradient of the scaled product from that of the logit
//   finish_row(sum, maximum_log2, place)        the sum of the row's exponentials, which refer to
//                 maximum_log2, as it divides the output
//
// A weight has
//   kNeedsPlaces
//   weighted(value, place)      linear in `value`, which is a probability on its way to V and dV,
//                 or the gradient of a weighted probability on its way to dS
//
// Example     ALiBi: logit = fmaf(product, scale_log2, offset + slope * (key - query)) with
//             kIsLinear false, kNeedsPlaces true; gradient returns its argument
// See         FlashInfer's attention variants, whose LogitsTransform is `logit`
#pragma once

#include <cstdint>

#include "ptx/addresses.cuh"

namespace fdma::gpu {

/// A cell of the attention matrix; of a row, key is 0.
struct CellPlace {
  std::int32_t batch, head, query, key;
};

/// The product times a positive scale.
struct LinearScore {
  static constexpr bool kIsLinear = true, kAddsKeyBias = false, kNeedsPlaces = false,
                        kAddsInOrder = false;

  template <class Place>
  __device__ __forceinline__ static float logit(float product, float scale_log2, float offset,
                                                const Place&) {
    return fmaf(product, scale_log2, offset);
  }
  template <class Place>
  __device__ __forceinline__ static float gradient(float gradient, const Place&) {
    return gradient;
  }
  template <class Place>
  __device__ __forceinline__ static float finish_row(float sum, float, const Place&) {
    return sum;
  }
};

/// The product times any scale, plus a bias of the key where the call has one.
struct KeyBiasScore : LinearScore {
  static constexpr bool kIsLinear = false, kAddsKeyBias = true, kAddsInOrder = true;
};

struct NoWeight {
  static constexpr bool kNeedsPlaces = false;

  template <class Place>
  __device__ __forceinline__ static float weighted(float value, const Place&) {
    return value;
  }
};

template <class Score, class Weight>
inline constexpr bool kAsksForPlaces = Score::kNeedsPlaces || Weight::kNeedsPlaces;

/// Turns the products of a step into logits. `biases` is the shared address of the bias of the
/// thread's first column; place_of(i, column) is the place of a cell of the thread's row i, with
/// columns counted from its first one.
template <class Score, int kCount, class PlaceOf>
__device__ __forceinline__ void apply_score(float (&s)[kCount], float scale_log2,
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
        x = Score::logit(x, scale_log2, e == 0 ? bias.x : bias.y,
                         [&] { return place_of(i, 8 * j + e); });
      }
    }
  }
}

}  // namespace fdma::gpu
