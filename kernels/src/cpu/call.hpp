// Interface between the CPU backend and its code that is compiled once per instruction set.
#pragma once

#include <cstdint>
#include <vector>

#include "call/attention_call.hpp"
#include "call/dropout_bits.hpp"
#include "cpu/scratch.hpp"
#include "fdma/kernels/plan.hpp"
#include "plan/closed_form.hpp"

namespace fdma::cpu {

/// One checked attention call.
struct CpuCall : CheckedCall {
  const PlanHeader* plan = nullptr;
  const SegmentPlan* segments = nullptr;    ///< of a plan of segments; else null
  std::vector<ClosedFormElement> elements;  ///< of a closed-form plan: one per batch element
  DropoutBits dropout_bits{};               ///< of the call's dropout

  /// kv_len - q_len of a batch element: the position of query 0.
  std::int64_t position_shift(std::int32_t batch) const {
    if (elements.empty()) return plan->shape.kv_len(batch) - plan->shape.q_len(batch);
    const ClosedFormElement& element = elements[static_cast<std::size_t>(batch)];
    return std::int64_t{element.num_columns} - element.num_rows;
  }
};

/// Scratch memory of one thread, float32, sized for the plan's tile and head sizes. Panels are
/// groups of query rows that lie in vector lanes: element (d, r) of a panel is at d * width + r.
///
/// Cost    about 4 * (tile.block_q * (head_dim + head_dim_v) + 128 * (head_dim + head_dim_v + 64))
///         B
struct WorkspaceArrays {
  float* q = nullptr;       ///< [panels, head_dim, width], scaled
  float* out = nullptr;     ///< [panels, head_dim_v, width]
  float* max = nullptr;     ///< [rows]
  float* sum = nullptr;     ///< [rows]
  float* alpha = nullptr;   ///< [width]: factor of the accumulators
  float* scores = nullptr;  ///< [kChunkColumns, width]
  float* k = nullptr;       ///< [kChunkColumns, head_dim]: rows of K in float32, unless K is
  float* v = nullptr;       ///< [kChunkColumns, head_dim_v]
  float* bias = nullptr;    ///< [kChunkColumns]
  float* terms = nullptr;   ///< [kChunkColumns, width], where the call has newer parts
  float* row = nullptr;     ///< [kMaxHeadDim]: one output row

  void add_to(FloatBlock& block, const AttentionShape& shape, BlockShape tile, bool has_terms);
};

struct Workspace : WorkspaceArrays {
  /// `has_terms`: for calls with newer parts; `has_dropout`: for those with dropout.
  Workspace(const AttentionShape& shape, BlockShape tile, bool has_terms = false,
            bool has_dropout = false);
  static std::int64_t bytes(const AttentionShape& shape, BlockShape tile);

  FloatBlock memory;
  // The chunk: its keys, and their rows of K and V.
  Chunk chunk;
  std::vector<const float*> k_rows, v_rows;
};

/// Applies the environment variable FDMA_CPU_TARGET (AVX3, AVX2, SSE4, ..), which forbids better
/// instruction sets, for comparisons on one machine. invalid_argument for a name that is none of
/// this machine's.
Result<void> restrict_targets();

/// Runs one work tile with the best allowed instruction set.
void run_work_tile(const CpuCall& call, const WorkTile& work_tile, Workspace& workspace);

/// The instruction set that run_work_tile uses, as the selected code reports it.
const char* target_name();

}  // namespace fdma::cpu
