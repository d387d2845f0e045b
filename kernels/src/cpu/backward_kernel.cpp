// The backward pass on the CPU: groups with the policies that a call asks for, and what comes before
// and after them, row by row.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/backward_kernel.cpp"
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)  // as work_tile_kernel.cpp
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "cpu/backward.hpp"
#include "cpu/backward_work_tile-inl.hpp"
#include "cpu/dropped_weights-inl.hpp"
#include "cpu/kv_reader.hpp"
#include "cpu/parts_score-inl.hpp"
#include "cpu/query_rows-inl.hpp"
#include "cpu/score-inl.hpp"
#include "cpu/weight-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace fdma::cpu::HWY_NAMESPACE {

void run_group_here(BackwardRun& run, BackwardPass& pass, const WorkTile* work_tiles,
                    BackwardWorkspace& workspace) {
  const WorkTile& first = work_tiles[0];
  const std::int32_t kv_head = first.head / run.plan->shape.group_size();
  const StridedKv kv(run, first.batch, kv_head);
  if (run.has_newer_parts()) {
    ScoreGradientSums* const sums = workspace.sums ? &*workspace.sums : nullptr;
    if (sums != nullptr) sums->begin_group(first, workspace.sum_tickets.data());
    const PartsScore score(run, run.kv_len(first.batch) - run.q_len(first.batch), kv_head,
                           first.batch, workspace.terms, workspace.bias, sums);
    if (run.dropout.rate == 0) {
      return run_group_with(run, pass, work_tiles, workspace, score, WholeWeights{}, kv);
    }
    const DroppedWeights weight(run.dropout_bits, run.plan->shape.heads_q, workspace.chunk);
    return run_group_with(run, pass, work_tiles, workspace, score, weight, kv);
  }
  with_score_of(
      run,
      [&](const auto& before) {
        return KeyBiasScore(before, run.key_bias, first.batch, kv_head, workspace.bias,
                            run.dkey_bias, workspace.dbias);
      },
      [&](const auto& score) {
        run_group_with(run, pass, work_tiles, workspace, score, WholeWeights{}, kv);
      });
}

// Calls compute(score) with what finishes the rows of the call.
template <class Compute>
void with_finish_of(const BackwardRun& run, const Compute& compute) {
  if (run.sinks.data == nullptr) return compute(NoScore{});
  compute(SinkScore(run));
}

void prepare_rows_here(BackwardRun& run, std::int64_t batch, std::int64_t head, std::int64_t begin,
                       std::int64_t end) {
  with_finish_of(
      run, [&](const auto& score) { prepare_rows_with(run, score, batch, head, begin, end); });
}

void add_missing_here(BackwardRun& run, std::int64_t batch, std::int64_t head, std::int64_t begin,
                      std::int64_t end) {
  with_finish_of(run,
                 [&](const auto& score) { add_missing_with(run, score, batch, head, begin, end); });
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
