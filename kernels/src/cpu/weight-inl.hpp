// Weight policies of the CPU kernels: what a pair's weight is multiplied by after the softmax has
// divided by the sum of its row, as dropout does. Included once per instruction set, as
// microkernels-inl.hpp is.
//
// A policy is a value that a work tile owns, with
//
//   begin_head(b, h)   before the work tiles of a query head
//   begin_chunk(pairs, num_columns, num_rows)
//                      before a chunk: the pairs of its columns with the rows of the tile
//   weigh(x, pairs)    x times the factors of the pairs. Forward, x are the weights that multiply V.
//                      Backward it is called twice: x are the weights that multiply dout, which
//                      gives dV, and the gradients of the weights, which give dS
//
// The factors are a function of the pairs alone, so that both directions and all tilings agree.
#if defined(FDMA_CPU_WEIGHT_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FDMA_CPU_WEIGHT_INL
#undef FDMA_CPU_WEIGHT_INL
#else
#define FDMA_CPU_WEIGHT_INL
#endif

#include "cpu/microkernels-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace fdma::cpu::HWY_NAMESPACE {

/// Every factor is 1.
struct WholeWeights {
  void begin_head(std::int64_t, std::int64_t) {}
  template <class Pairs>
  void begin_chunk(const Pairs&, std::size_t, std::size_t) {}
  template <class Pairs>
  HWY_INLINE FloatVec weigh(FloatVec x, const Pairs&) const {
    return x;
  }
};

}  // namespace fdma::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
