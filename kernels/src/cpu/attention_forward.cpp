// attention_forward on the CPU: everything is checked before anything is written, then threads take
// items in the order of the plan.
#include <fmt/format.h>
#include <hwy/targets.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>
#include <optional>
#include <string>

#include "cpu/call.hpp"
#include "fdma/threads/parallel.hpp"

namespace fdma {
namespace cpu {
namespace {

constexpr std::int64_t kAlignment = 16;  // floats: one cache line

std::int64_t aligned(std::int64_t floats) { return ceil_div(floats, kAlignment) * kAlignment; }

// Rows of a tile, rounded up to whole panels.
std::int64_t panel_rows(BlockShape tile) {
  return ceil_div(tile.block_q, kMaxPanelRows) * kMaxPanelRows;
}

}  // namespace

std::int64_t Workspace::bytes(const AttentionShape& shape, BlockShape tile) {
  const std::int64_t rows = panel_rows(tile);
  const std::int64_t floats = aligned(rows * shape.head_dim) + aligned(rows * shape.head_dim_v) +
                              2 * rows + kMaxPanelRows + kChunkKeys * kMaxPanelRows +
                              aligned(kChunkKeys * shape.head_dim) +
                              aligned(kChunkKeys * shape.head_dim_v) + kMaxHeadDim + kAlignment;
  const std::int64_t words = kChunkKeys * ceil_div(tile.block_q, 64) +
                             2 * (std::int64_t{tile.block_q} * tile.block_kv / 64);
  return 4 * floats + 8 * words + kChunkKeys * (2 * 8 + 4 + 4);
}

Workspace::Workspace(const AttentionShape& shape, BlockShape tile) {
  memory.resize(static_cast<std::size_t>(bytes(shape, tile) / 4));
  const auto address = reinterpret_cast<std::uintptr_t>(memory.data()) / sizeof(float);
  float* next = memory.data() + (kAlignment - address % kAlignment) % kAlignment;
  const auto take = [&next](std::int64_t floats) {
    float* begin = next;
    next += aligned(floats);
    return begin;
  };
  const std::int64_t rows = panel_rows(tile);
  q = take(rows * shape.head_dim);
  out = take(rows * shape.head_dim_v);
  max = take(rows);
  sum = take(rows);
  alpha = take(kMaxPanelRows);
  scores = take(kChunkKeys * kMaxPanelRows);
  k = take(kChunkKeys * shape.head_dim);
  v = take(kChunkKeys * shape.head_dim_v);
  row = take(kMaxHeadDim);
  k_rows.resize(kChunkKeys);
  v_rows.resize(kChunkKeys);
  bias.resize(kChunkKeys);
  keys.resize(kChunkKeys);
  row_bits.resize(static_cast<std::size_t>(kChunkKeys * ceil_div(tile.block_q, 64)));
  tile_words.resize(
      static_cast<std::size_t>(2 * (std::int64_t{tile.block_q} * tile.block_kv / 64)));
}

}  // namespace cpu

namespace {

// The environment variable FDMA_CPU_TARGET (AVX3, AVX2, SSE4, ..) forbids better instruction sets,
// for comparisons on one machine. Read once. (DisableTargets would not do: in Highway 1.0.3 the
// next call of SupportedTargets picks from all targets again.)
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

void run_items(const cpu::Call& call, const AttentionOptions& options) {
  const std::vector<WorkItem> of_formulas =
      call.elements.empty() ? std::vector<WorkItem>() : formula_items(*call.plan, call.elements);
  const std::vector<WorkItem>& items = call.elements.empty() ? call.plan->items : of_formulas;
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    cpu::Workspace workspace(call.plan->shape, call.plan->tile);
    for (std::size_t i = next++; i < items.size(); i = next++) {
      if (options.is_cancelled != nullptr && *options.is_cancelled) return;
      cpu::run_item(call, items[i], workspace);
      if (options.num_items_done != nullptr) ++*options.num_items_done;
    }
  };
  in_arena(options.num_threads, [&] {
    const auto num_workers = std::min<std::size_t>(static_cast<std::size_t>(max_concurrency()),
                                                   std::max<std::size_t>(items.size(), 1));
    fdma::parallel_for(
        std::size_t{0}, num_workers, [&](std::size_t) { work(); }, tbb::simple_partitioner());
  });
}

}  // namespace

const char* cpu_target() {
  static_cast<void>(restrict_targets());  // a wrong name is attention_forward's to report
  return cpu::target_name();
}

Result<void> attention_forward(const AttentionPlan& plan, const AttentionTensors& tensors,
                               const AttentionOptions& options) {
  if (plan.backend != Backend::cpu) {
    return Error{ErrorCode::unsupported,
                 fmt::format("backend: expected a plan for cpu, got one for {}: upload it",
                             to_string(plan.backend))};
  }
  FDMA_TRY_VOID(check_direction(plan.direction, Direction::forward));
  FDMA_TRY(const AttentionCall checked, checked_call(plan.shape, plan.score, tensors, options,
                                                     Device::cpu, plan.is_parametric()));
  FDMA_TRY_VOID(check_formula_call(plan, checked));
  FDMA_TRY_VOID(restrict_targets());
  try {
    cpu::Call call{checked, &plan, {}};
    if (plan.is_parametric()) call.elements = formula_elements(plan, checked);
    run_items(call, options);
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
