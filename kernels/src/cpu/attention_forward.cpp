// attention_forward on the CPU. Everything is checked before anything is written; then threads take
// work tiles in the order of the plan.
#include <fmt/format.h>
#include <hwy/targets.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <new>
#include <optional>
#include <string>

#include "cpu/call.hpp"
#include "fdma/base/parallel.hpp"

namespace fdma {
namespace cpu {

std::int64_t Workspace::bytes(const AttentionShape& shape, BlockShape tile) {
  FloatBlock block;
  WorkspaceArrays arrays;
  arrays.add_to(block, shape, tile, true);
  return block.bytes() + Chunk::bytes(tile) + 2 * kChunkColumns * std::int64_t{sizeof(float*)};
}

Workspace::Workspace(const AttentionShape& shape, BlockShape tile, bool has_terms, bool has_dropout)
    : chunk(tile, has_dropout), k_rows(kChunkColumns), v_rows(kChunkColumns) {
  add_to(memory, shape, tile, has_terms);
  memory.allocate();
}

void WorkspaceArrays::add_to(FloatBlock& block, const AttentionShape& shape, BlockShape tile,
                             bool has_terms) {
  const std::int64_t rows = panel_rows(tile.block_q);
  block.add(q, rows * shape.head_dim);
  block.add(out, rows * shape.head_dim_v);
  block.add(max, rows);
  block.add(sum, rows);
  block.add(alpha, kMaxPanelRows);
  block.add(scores, kChunkColumns * kMaxPanelRows);
  block.add(k, kChunkColumns * shape.head_dim);
  block.add(v, kChunkColumns * shape.head_dim_v);
  block.add(bias, kChunkColumns);
  block.add(terms, has_terms ? kChunkColumns * kMaxPanelRows : 0);
  block.add(row, kMaxHeadDim);
}

// The environment variable is read once. (DisableTargets would not do: in Highway 1.0.3 the next
// call of SupportedTargets picks from all targets again.)
Result<void> restrict_targets() {
  static const std::optional<Error> wrong = []() -> std::optional<Error> {
    const char* name = std::getenv("FDMA_CPU_TARGET");
    if (name == nullptr || *name == '\0') return std::nullopt;
    std::string names;
    for (std::int64_t rest = hwy::SupportedTargets(); rest != 0; rest &= rest - 1) {
      const char* target = hwy::TargetName(rest & -rest);
      if (std::string_view(name) == target) {
        hwy::SetSupportedTargetsForTest(rest);  // lower bits are better instruction sets
        return std::nullopt;
      }
      names += fmt::format("{}{}", names.empty() ? "" : ", ", target);
    }
    return Error{ErrorCode::invalid_argument,
                 fmt::format("FDMA_CPU_TARGET: expected one of {}, got '{}'", names, name)};
  }();
  if (wrong) return *wrong;
  return {};
}

}  // namespace cpu

namespace {

void run_work_tiles(const cpu::CpuCall& call, const std::vector<WorkTile>& work_tiles,
                    const AttentionOptions& options) {
  for (std::int32_t h = 0; call.max_logit != nullptr && h < call.plan->shape.heads_q; ++h) {
    call.max_logit[h * call.max_logit_stride] = -std::numeric_limits<float>::infinity();
  }
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    cpu::Workspace workspace(call.plan->shape, call.plan->tile, call.has_newer_parts(),
                             call.dropout.rate > 0);
    for (std::size_t i = next++; i < work_tiles.size(); i = next++) {
      if (options.is_cancelled != nullptr && *options.is_cancelled) return;
      cpu::run_work_tile(call, work_tiles[i], workspace);
      if (options.num_work_tiles_done != nullptr) ++*options.num_work_tiles_done;
    }
  };
  in_arena(options.num_threads, [&] {
    const auto num_workers = std::min<std::size_t>(static_cast<std::size_t>(max_concurrency()),
                                                   std::max<std::size_t>(work_tiles.size(), 1));
    fdma::parallel_for(
        std::size_t{0}, num_workers, [&](std::size_t) { work(); }, tbb::simple_partitioner());
  });
}

Result<void> run(const PlanHeader& header, const SegmentPlan& plan, const AttentionTensors& tensors,
                 const AttentionOptions& options) {
  FDMA_TRY(const CheckedCall checked,
           checked_call(header.shape, header.score, tensors, options, Device::cpu));
  FDMA_TRY_VOID(cpu::restrict_targets());
  run_work_tiles({checked, &header, &plan, {}, dropout_bits(checked.dropout)}, plan.work_tiles,
                 options);
  return {};
}

Result<void> run(const PlanHeader& header, const ClosedFormPlan& plan,
                 const AttentionTensors& tensors, const AttentionOptions& options) {
  FDMA_TRY(const CheckedCall checked,
           checked_call(header.shape, header.score, tensors, options, Device::cpu, true));
  FDMA_TRY_VOID(check_closed_form_call(header.shape, checked));
  FDMA_TRY_VOID(cpu::restrict_targets());
  const cpu::CpuCall call{checked, &header, nullptr, closed_form_elements(header, plan, checked),
                          dropout_bits(checked.dropout)};
  run_work_tiles(call, closed_form_work_tiles(header, plan, call.elements), options);
  return {};
}

Result<void> run(const PlanHeader& /*header*/, const KvWorklist& /*lists*/,
                 const AttentionTensors& /*tensors*/, const AttentionOptions& /*options*/) {
  return Error{ErrorCode::unsupported, "plan: kv worklists are for backward calls on a GPU"};
}

}  // namespace

const char* cpu_target() {
  static_cast<void>(cpu::restrict_targets());  // attention_forward reports a wrong name
  return cpu::target_name();
}

Result<void> attention_forward(const AttentionPlan& plan, const AttentionTensors& tensors,
                               const AttentionOptions& options) {
  if (plan.backend != Backend::cpu) {
    return Error{ErrorCode::unsupported,
                 fmt::format("backend: expected a plan for cpu, got one for {}: prepare it",
                             to_string(plan.backend))};
  }
  FDMA_TRY_VOID(check_direction(plan.direction, Direction::forward));
  try {
    FDMA_TRY_VOID(
        std::visit([&](const auto& form) { return run(plan, form, tensors, options); }, plan.form));
  } catch (const std::bad_alloc&) {
    return Error{ErrorCode::out_of_memory,
                 fmt::format("attention: no {} bytes of workspace for each thread",
                             cpu::Workspace::bytes(plan.shape, plan.tile))};
  }
  if (options.is_cancelled != nullptr && *options.is_cancelled) {
    return Error{ErrorCode::io, "attention: interrupted"};
  }
  return {};
}

}  // namespace fdma
