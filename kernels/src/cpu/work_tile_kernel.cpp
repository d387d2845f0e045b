// Forward work tiles with the policies that a call asks for.
//
// Highway compiles this file once for each instruction set and selects one at run time. One thread
// runs a work tile in the order of its segments, so the result does not depend on the number of
// threads.
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "cpu/work_tile_kernel.cpp"
// AVX2 and AVX-512 are the targets that matter; SSE4 and the compiler's baseline are the fallback.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_AVX3_DL)
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include "cpu/call.hpp"
#include "cpu/dropped_weights-inl.hpp"
#include "cpu/forward_work_tile-inl.hpp"
#include "cpu/kv_reader.hpp"
#include "cpu/parts_score-inl.hpp"
#include "cpu/score-inl.hpp"
#include "cpu/weight-inl.hpp"

HWY_BEFORE_NAMESPACE();
namespace fdma::cpu::HWY_NAMESPACE {

void run_work_tile_here(const CpuCall& call, const WorkTile& work_tile, Workspace& workspace) {
  const std::int32_t kv_head = work_tile.head / call.plan->shape.group_size();
  const StridedKv kv(call, work_tile.batch, kv_head);
  if (call.has_newer_parts()) {
    const PartsScore score(call, call.position_shift(work_tile.batch), kv_head, work_tile.batch,
                           workspace.terms, workspace.bias);
    if (call.dropout.rate == 0) {
      return ForwardWorkTile(call, work_tile, workspace, score, WholeWeights{}, kv).run();
    }
    const DroppedWeights weight(call.dropout_bits, call.plan->shape.heads_q, workspace.chunk);
    return ForwardWorkTile(call, work_tile, workspace, score, weight, kv).run();
  }
  with_score_of(
      call,
      [&](const auto& before) {
        return KeyBiasScore(before, call.key_bias, work_tile.batch, kv_head, workspace.bias);
      },
      [&](const auto& score) {
        ForwardWorkTile(call, work_tile, workspace, score, WholeWeights{}, kv).run();
      });
}

const char* target_name_here() { return hwy::TargetName(HWY_TARGET); }

}  // namespace fdma::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace fdma::cpu {
HWY_EXPORT(run_work_tile_here);

void run_work_tile(const CpuCall& call, const WorkTile& work_tile, Workspace& workspace) {
  HWY_DYNAMIC_DISPATCH(run_work_tile_here)(call, work_tile, workspace);
}

HWY_EXPORT(target_name_here);

const char* target_name() { return HWY_DYNAMIC_DISPATCH(target_name_here)(); }

}  // namespace fdma::cpu
#endif
