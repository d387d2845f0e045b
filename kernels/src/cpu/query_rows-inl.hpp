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

/// Takes dlse of a row from its shift. `finished`: what the row's output was divided by, over its
/// sum of exponentials.
inline void take_dlse(BackwardRun& run, std::int64_t batch, std::int64_t head, std::int64_t row,
                      float finished) {
  if (run.dlse.data == nullptr) return;
  run.shift[run.row_index(batch, head, row)] -= value_of(run.dlse, batch, head, row) * finished;
}

/// prepare_rows for a score of any kind. A score that finishes rows is not for calls that correct
/// delta, because the weights of its rows do not add up to 1.
template <class Score>
void prepare_rows_with(BackwardRun& run, Score score, std::int64_t batch, std::int64_t head,
                       std::int64_t begin, std::int64_t end) {
  const auto head_dim_v = static_cast<std::size_t>(run.plan->shape.head_dim_v);
  float out[kMaxHeadDim], dout[kMaxHeadDim], out_low[kMaxHeadDim];
  score.begin_head(batch, head);
  for (std::int64_t row = begin; row < end; ++row) {
    load_row(run.out.row(batch, row, head), run.out.dtype, head_dim_v, out);
    load_row(run.dout.row(batch, row, head), run.dout.dtype, head_dim_v, dout);
    const float lse = value_of(run.lse, batch, head, row);
    const bool is_empty = lse == -std::numeric_limits<float>::infinity();
    const std::size_t at = run.row_index(batch, head, row);
    run.exponent[at] = is_empty ? -lse : lse * kLog2E;
    float finished = 1.0F;
    if constexpr (Score::kFinishesRows) {
      if (!is_empty) finished = score.finish_row(run.exponent[at], 1.0F, row);
      run.exponent[at] += std::log2(finished);
    }
    run.shift[at] = dot_of(out, dout, head_dim_v);
    if (run.out_low.data != nullptr) {
      load_row(run.out_low.row(batch, row, head), run.out.dtype, head_dim_v, out_low);
      run.shift[at] += dot_of(out_low, dout, head_dim_v);
    }
    if (!run.corrects_delta) take_dlse(run, batch, head, row, finished);
    std::fill_n(run.dq_sum_of(batch, row, head), static_cast<std::size_t>(run.plan->shape.head_dim),
                0.0F);
  }
}

}  // namespace fdma::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
