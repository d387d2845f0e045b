// What happens to the scaled products of a chunk: softmax forward, its gradients backward. Included
// once per instruction set, as microkernels-inl.hpp is.
#if defined(FDMA_CPU_SOFTMAX_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FDMA_CPU_SOFTMAX_INL
#undef FDMA_CPU_SOFTMAX_INL
#else
#define FDMA_CPU_SOFTMAX_INL
#endif

#include <cstddef>
#include <cstdint>
#include <limits>

#include "cpu/microkernels-inl.hpp"
#include "cpu/score-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace fdma::cpu::HWY_NAMESPACE {

/// One step of online softmax over the scaled products of a chunk, in place: they become logits by
/// `score`, then weights 2^(s - max), then what `weight` makes of them. Updates max and sum, writes
/// alpha = 2^(old max - new max). Returns false if alpha is all ones. `pairs.at(key, row)` are the
/// pairs of a vector; `row_bits` (may be null) says which rows see a key.
template <int kNv, class Score, class Weight, class Pairs>
HWY_NOINLINE bool softmax_step(float* HWY_RESTRICT scores, std::size_t num_keys, const Score& score,
                               const Weight& weight, const Pairs& pairs,
                               const std::uint64_t* row_bits, std::size_t words_per_key,
                               std::size_t first_row, float* HWY_RESTRICT max,
                               float* HWY_RESTRICT sum, float* HWY_RESTRICT alpha) {
  const FloatTag tag;
  constexpr std::size_t kWidth = kNv * kLanes;
  const FloatVec minus_infinity = hn::Set(tag, -std::numeric_limits<float>::infinity());
  FloatVec highest[kNv];
  FDMA_UNROLL for (int v = 0; v < kNv; ++v) {
    highest[v] = hn::LoadU(tag, max + static_cast<std::size_t>(v) * kLanes);
  }
  if (Score::kIsIdentity && row_bits == nullptr) {
    for (std::size_t key = 0; key < num_keys; ++key) {
      FDMA_UNROLL for (int v = 0; v < kNv; ++v) {
        highest[v] = hn::Max(highest[v], hn::LoadU(tag, scores + key * kWidth +
                                                            static_cast<std::size_t>(v) * kLanes));
      }
    }
  } else {
    for (std::size_t key = 0; key < num_keys; ++key) {
      const auto& of_key = for_column(score, pairs.at(key, first_row).column);
      FDMA_UNROLL for (int v = 0; v < kNv; ++v) {
        const std::size_t lane = static_cast<std::size_t>(v) * kLanes;
        float* at = scores + key * kWidth + lane;
        FloatVec logit = of_key.logit(hn::LoadU(tag, at), pairs.at(key, first_row + lane));
        if (row_bits != nullptr) {
          const auto seen = rows_that_see(row_bits + key * words_per_key, first_row + lane);
          logit = hn::IfThenElse(seen, logit, minus_infinity);
        }
        hn::StoreU(logit, tag, at);
        highest[v] = hn::Max(highest[v], logit);
      }
    }
  }
  bool is_rescaled = false;
  FloatVec base[kNv], total[kNv];
  FDMA_UNROLL for (int v = 0; v < kNv; ++v) {
    const auto at = static_cast<std::size_t>(v) * kLanes;
    const FloatVec before = hn::LoadU(tag, max + at);
    // Rows that have seen nothing yet have no maximum; any base gives 2^-inf = 0.
    base[v] = hn::IfThenElse(hn::Eq(highest[v], minus_infinity), hn::Zero(tag), highest[v]);
    const FloatVec factor = exp2_of(hn::Sub(before, base[v]));
    is_rescaled = is_rescaled || !hn::AllTrue(tag, hn::Eq(before, highest[v]));
    hn::StoreU(highest[v], tag, max + at);
    hn::StoreU(factor, tag, alpha + at);
    total[v] = hn::Mul(hn::LoadU(tag, sum + at), factor);
  }
  for (std::size_t key = 0; key < num_keys; ++key) {
    FDMA_UNROLL for (int v = 0; v < kNv; ++v) {
      const std::size_t lane = static_cast<std::size_t>(v) * kLanes;
      float* at = scores + key * kWidth + lane;
      const FloatVec p = exp2_of(hn::Sub(hn::LoadU(tag, at), base[v]));
      hn::StoreU(weight.weigh(p, pairs.at(key, first_row + lane)), tag, at);
      total[v] = hn::Add(total[v], p);
    }
  }
  FDMA_UNROLL for (int v = 0; v < kNv; ++v) {
    hn::StoreU(total[v], tag, sum + static_cast<std::size_t>(v) * kLanes);
  }
  return is_rescaled;
}

/// Gradients of a chunk's scaled products, with keys in lanes, in place. `scores` become P =
/// 2^(logit - exponent) times the factors of `weight`, and dweights (the gradients of that) become
/// the gradients of the scaled products by `score`; both are 0 where a key does not see a column.
/// exponents and shifts are those of the column's query. The gradients are also stored in ds_rows,
/// row by row with `stride`. `pairs.at(column, row)` are the pairs of a vector; `row_bits` may be
/// null. With kSumsLogits only ds_rows are written, with dS = P * (dP - shift) before `score`.
template <int kNv, bool kSumsLogits, class Score, class Weight, class Pairs>
HWY_NOINLINE void gradient_step(float* HWY_RESTRICT scores, float* HWY_RESTRICT dweights,
                                std::size_t num_columns, const Score& score, const Weight& weight,
                                const Pairs& pairs, const float* exponents, const float* shifts,
                                const std::uint64_t* row_bits, std::size_t words_per_column,
                                std::size_t first_row, float* HWY_RESTRICT ds_rows,
                                std::size_t stride) {
  const FloatTag tag;
  constexpr std::size_t kWidth = kNv * kLanes;
  KeyPanel<kNv, Score> panel(score, first_row);
  for (std::size_t i = 0; i < num_columns; ++i) {
    const std::int64_t query = pairs.at(i, first_row).q;
    const FloatVec exponent = hn::Set(tag, exponents[query]);
    const FloatVec shift = hn::Set(tag, shifts[query]);
    FDMA_UNROLL for (int v = 0; v < kNv; ++v) {
      const auto lane = static_cast<std::size_t>(v) * kLanes;
      const auto at = pairs.at(i, first_row + lane);
      float* const to_p = scores + i * kWidth + lane;
      float* const to_gradient = dweights + i * kWidth + lane;
      const FloatVec product = hn::LoadU(tag, to_p);
      FloatVec power = hn::Sub(panel.logit(product, at, v), exponent);
      if constexpr (Score::kHasFarLogits) {  // NaN stays NaN
        power = hn::IfThenElse(hn::Gt(power, hn::Zero(tag)), hn::Zero(tag), power);
      }
      FloatVec p = exp2_of(power);
      FloatVec ds = hn::Mul(p, hn::Sub(weight.weigh(hn::LoadU(tag, to_gradient), at), shift));
      if (row_bits != nullptr) {
        const auto seen = rows_that_see(row_bits + i * words_per_column, first_row + lane);
        p = hn::IfThenElseZero(seen, p);
        ds = hn::IfThenElseZero(seen, ds);
      }
      if constexpr (!kSumsLogits) {
        ds = panel.gradient(ds, product, at, v);
        hn::StoreU(weight.weigh(p, at), tag, to_p);
        hn::StoreU(ds, tag, to_gradient);
      }
      hn::StoreU(ds, tag, ds_rows + i * stride + lane);
    }
  }
  panel.store();
}

}  // namespace fdma::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
