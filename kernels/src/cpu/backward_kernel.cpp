// The backward pass on the CPU: groups with the policies that a call asks for, and what comes before
// and after them, row by row.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/backward_kernel.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)  // as work_tile_kernel.cpp
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include <algorithm>
#include <limits>

#include "cpu/backward.hpp"
#include "cpu/backward_work_tile-inl.hpp"
#include "cpu/kv_reader.hpp"
#include "cpu/score-inl.hpp"
#include "cpu/weight-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace fdma::cpu::HWY_NAMESPACE {

float dot_of(const float* a, const float* b, std::size_t length) {
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

void run_group_here(BackwardRun& run, BackwardPass& pass, const WorkTile* work_tiles,
                    BackwardWorkspace& workspace) {
  const WorkTile& first = work_tiles[0];
  const std::int32_t kv_head = first.head / run.plan->shape.group_size();
  const StridedKv kv(run, first.batch, kv_head);
  if (run.key_bias.data == nullptr) {
    run_group_with(run, pass, work_tiles, workspace, NoScore{}, WholeWeights{}, kv);
  } else {
    run_group_with(run, pass, work_tiles, workspace,
                   KeyBiasScore(run.key_bias, first.batch, kv_head, workspace.bias, run.dkey_bias,
                                workspace.dbias),
                   WholeWeights{}, kv);
  }
}

// The element of `values` that the kernels of rows name by 64-bit positions.
float value_of(const QueryValues<const float>& values, std::int64_t batch, std::int64_t head,
               std::int64_t row) {
  return values.at(static_cast<std::int32_t>(batch), static_cast<std::int32_t>(head),
                   static_cast<std::int32_t>(row));
}

void take_dlse(BackwardRun& run, std::int64_t batch, std::int64_t head, std::int64_t row) {
  if (run.dlse.data == nullptr) return;
  run.shift[run.row_index(batch, head, row)] -= value_of(run.dlse, batch, head, row);
}

void prepare_rows_here(BackwardRun& run, std::int64_t batch, std::int64_t head, std::int64_t begin,
                       std::int64_t end) {
  const auto head_dim_v = static_cast<std::size_t>(run.plan->shape.head_dim_v);
  float out[kMaxHeadDim], dout[kMaxHeadDim], out_low[kMaxHeadDim];
  for (std::int64_t row = begin; row < end; ++row) {
    load_row(run.out.row(batch, row, head), run.out.dtype, head_dim_v, out);
    load_row(run.dout.row(batch, row, head), run.dout.dtype, head_dim_v, dout);
    const float lse = value_of(run.lse, batch, head, row);
    const std::size_t at = run.row_index(batch, head, row);
    run.exponent[at] = lse == -std::numeric_limits<float>::infinity() ? -lse : lse * kLog2E;
    run.shift[at] = dot_of(out, dout, head_dim_v);
    if (run.out_low.data != nullptr) {
      load_row(run.out_low.row(batch, row, head), run.out.dtype, head_dim_v, out_low);
      run.shift[at] += dot_of(out_low, dout, head_dim_v);
    }
    if (!run.corrects_delta) take_dlse(run, batch, head, row);
    std::fill_n(run.dq_sum_of(batch, row, head), static_cast<std::size_t>(run.plan->shape.head_dim),
                0.0F);
  }
}

void add_missing_here(BackwardRun& run, std::int64_t batch, std::int64_t head, std::int64_t begin,
                      std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    const std::size_t at = run.row_index(batch, head, row);
    run.shift[at] += run.missing[at];
    take_dlse(run, batch, head, row);
  }
}

void store_dq_here(const BackwardRun& run, std::int64_t batch, std::int64_t head,
                   std::int64_t begin, std::int64_t end) {
  for (std::int64_t row = begin; row < end; ++row) {
    store_row(run.dq_sum_of(batch, row, head), run.dq.dtype,
              static_cast<std::size_t>(run.plan->shape.head_dim), run.dq.row(batch, row, head));
  }
}

}  // namespace fdma::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fdma::cpu {
HWY_EXPORT(run_group_here);
HWY_EXPORT(prepare_rows_here);
HWY_EXPORT(add_missing_here);
HWY_EXPORT(store_dq_here);

void run_group(BackwardRun& run, BackwardPass& pass, const WorkTile* work_tiles,
               BackwardWorkspace& workspace) {
  HWY_DYNAMIC_DISPATCH(run_group_here)(run, pass, work_tiles, workspace);
}

void add_missing(BackwardRun& run, std::int64_t batch, std::int64_t head, std::int64_t begin,
                 std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(add_missing_here)(run, batch, head, begin, end);
}

void prepare_rows(BackwardRun& run, std::int64_t batch, std::int64_t head, std::int64_t begin,
                  std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(prepare_rows_here)(run, batch, head, begin, end);
}

void store_dq(const BackwardRun& run, std::int64_t batch, std::int64_t head, std::int64_t begin,
              std::int64_t end) {
  HWY_DYNAMIC_DISPATCH(store_dq_here)(run, batch, head, begin, end);
}

}  // namespace fdma::cpu
#endif
