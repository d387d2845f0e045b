// What the CPU backend hands to the code that is compiled once per instruction set.
#pragma once

#include <cstdint>
#include <vector>

#include "attention_call.hpp"
#include "fdma/kernels/plan.hpp"
#include "plan_formula.hpp"

namespace fdma::cpu {

/// Keys that are computed together: one online-softmax step.
inline constexpr std::int64_t kChunkKeys = 128;
/// Rows of a panel: most vectors per row group (4) times most lanes (16).
inline constexpr std::int64_t kMaxPanelRows = 64;

/// One attention call, checked.
struct Call : AttentionCall {
  const AttentionPlan* plan = nullptr;
  std::vector<FormulaElement> elements;  ///< of a parametric plan: one for each batch element
};

/// Scratch of one thread, float32; sizes for the plan's tile and head sizes. Panels are groups of
/// query rows whose rows lie in vector lanes: element (d, r) of a panel is at d * width + r.
///
/// Cost    about 4 * (tile.block_q * (head_dim + head_dim_v) + 128 * (head_dim + head_dim_v + 64))
/// B
struct Workspace {
  Workspace(const AttentionShape& shape, BlockShape tile);
  static std::int64_t bytes(const AttentionShape& shape, BlockShape tile);

  std::vector<float> memory;
  float* q = nullptr;       ///< [panels, head_dim, width], scaled
  float* out = nullptr;     ///< [panels, head_dim_v, width]
  float* max = nullptr;     ///< [rows]
  float* sum = nullptr;     ///< [rows]
  float* alpha = nullptr;   ///< [width]: what the accumulators are multiplied with
  float* scores = nullptr;  ///< [kChunkKeys, width]
  float* k = nullptr;       ///< [kChunkKeys, head_dim]: rows of K in float32, where K is not
  float* v = nullptr;       ///< [kChunkKeys, head_dim_v]
  float* row = nullptr;     ///< [kMaxHeadDim]: one output row
  // The chunk: rows of K and V, biases, and which query rows see each key.
  std::vector<const float*> k_rows, v_rows;
  std::vector<float> bias;
  std::vector<std::int32_t> keys;
  std::vector<std::uint64_t> row_bits;    ///< [kChunkKeys, tile.block_q / 64 rounded up]
  std::vector<std::uint64_t> tile_words;  ///< two tiles of bits, to turn row panels
};

/// Runs one item with the best instruction set here.
void run_item(const Call& call, const WorkItem& item, Workspace& workspace);

/// The instruction set that run_item runs with, said by the code that was picked.
const char* target_name();

}  // namespace fdma::cpu
