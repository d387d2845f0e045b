// What the backward pass on the CPU computes of each query row before its work tiles run. Included
// once per instruction set, as microkernels-inl.hpp is.
#if defined(FDMA_CPU_QUERY_ROWS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FDMA_CPU_QUERY_ROWS_INL
#undef FDMA_CPU_QUERY_ROWS_INL
#else
#define FDMA_CPU_QUERY_ROWS_INL
#endif

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/backward.hpp"
#include "cpu/microkernels-inl.hpp"
#include "cpu/rows-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace fdma::cpu::HWY_NAMESPACE {

inline float dot_of(const float* a, const float* b, std::size_t length) {
  const FloatTag tag;
  FloatVec sum = hn::Zero(tag);
  std::size_t i = 0;
  for (; i + kLanes <= length; i += kLanes) {
    sum = hn::MulAdd(hn::LoadU(tag, a + i), hn::LoadU(tag, b + i), sum);
  }
  float result = hn::GetLane(hn::SumOfLanes(tag, sum));
  for (; i < length; ++i) result += a[i] * b[i];
  return result;
}

// The element of `values` that the kernels of rows name by 64-bit positions.
inline float value_of(const QueryValues<const float>& values, std::int64_t batch, std::int64_t head,
                      std::int64_t row) {
  return values.at(static_cast<std::int32_t>(batch), static_cast<std::int32_t>(head),
                   static_cast<std::int32_t>(row));
}

/// What the output of a row was divided by, over its sum of exponentials 2^lse, in powers of two.
template <class Score>
float finish_of(const Score& score, float lse, std::int64_t row) {
  if constexpr (!Score::kFinishesRows) return 1.0F;
  return lse == -std::numeric_limits<float>::infinity() ? 1.0F : score.finish_row(lse, 1.0F, row);
}

/// Completes the shift of a row, which is D: the gradient of its sink comes from D, then dlse is taken
/// from the shift.
template <class Score>
void end_shift(BackwardRun& run, const Score& score, std::int64_t batch, std::int64_t head,
               std::int64_t row, float lse, float finished) {
  const std::size_t at = run.row_index(batch, head, row);
  if constexpr (Score::kFinishesRows) {
    if (run.score_gradients && !run.score_gradients->sink_rows.empty()) {
      const bool is_empty = lse == -std::numeric_limits<float>::infinity();
      const float weight = is_empty ? 0.0F : score.finish_row(lse, 0.0F, row) / finished;
      run.score_gradients->sink_rows[at] = weight == 0.0F ? 0.0F : -weight * run.shift[at];
    }
  }
  if (run.dlse.data == nullptr) return;
  run.shift[at] -= value_of(run.dlse, batch, head, row) * finished;
}

/// prepare_rows for a score of any kind.
template <class Score>
void prepare_rows_with(BackwardRun& run, Score score, std::int64_t batch, std::int64_t head,
                       std::int64_t begin, std::int64_t end) {
  const auto head_dim_v = static_cast<std::size_t>(run.plan->shape.head_dim_v);
  float out[kMaxHeadDim], dout[kMaxHeadDim], out_low[kMaxHeadDim];
  score.begin_head(batch, head);
  for (std::int64_t row = begin; row < end; ++row) {
    load_row(run.out.row(batch, row, head), run.out.dtype, head_dim_v, out);
    load_row(run.dout.row(batch, row, head), run.dout.dtype, head_dim_v, dout);
    const float lse = value_of(run.lse, batch, head, row) * kLog2E;
    const bool is_empty = lse == -std::numeric_limits<float>::infinity();
    const std::size_t at = run.row_index(batch, head, row);
    const float finished = finish_of(score, lse, row);
    run.exponent[at] = is_empty ? -lse : lse;
    if constexpr (Score::kFinishesRows) run.exponent[at] += std::log2(finished);
    run.shift[at] = dot_of(out, dout, head_dim_v);
    if (run.out_low.data != nullptr) {
      load_row(run.out_low.row(batch, row, head), run.out.dtype, head_dim_v, out_low);
      run.shift[at] += dot_of(out_low, dout, head_dim_v);
    }
    if (!run.corrects_delta) end_shift(run, score, batch, head, row, lse, finished);
    std::fill_n(run.dq_sum_of(batch, row, head), static_cast<std::size_t>(run.plan->shape.head_dim),
                0.0F);
  }
}

/// add_missing for a score of any kind. The weights of a row add up to 1 / finished, so that the sum
/// of P * (dP - shift) is D less that part of the shift.
template <class Score>
void add_missing_with(BackwardRun& run, Score score, std::int64_t batch, std::int64_t head,
                      std::int64_t begin, std::int64_t end) {
  score.begin_head(batch, head);
  for (std::int64_t row = begin; row < end; ++row) {
    const std::size_t at = run.row_index(batch, head, row);
    const float lse = value_of(run.lse, batch, head, row) * kLog2E;
    const float finished = finish_of(score, lse, row);
    run.shift[at] = run.shift[at] / finished + run.missing[at];
    end_shift(run, score, batch, head, row, lse, finished);
  }
}

}  // namespace fdma::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
