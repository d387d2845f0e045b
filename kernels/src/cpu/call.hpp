// What the CPU backend hands to the code that is compiled once per instruction set.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma::cpu {

/// Keys that are computed together: one online-softmax step.
inline constexpr std::int64_t kChunkKeys = 128;
/// Rows of a panel: most vectors per row group (4) times most lanes (16).
inline constexpr std::int64_t kMaxPanelRows = 64;

/// A tensor in elements: base of one (batch, head) comes from strides.
struct Strided {
  const void* data = nullptr;
  DType dtype = DType::float32;
  std::int64_t batch_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
};

/// One attention call, checked.
struct Call {
  const AttentionPlan* plan = nullptr;
  Strided q, k, v;
  Strided out;                      ///< data is written
  const float* key_bias = nullptr;  ///< or null
  std::int64_t bias_batch_stride = 0, bias_head_stride = 0;
  float* lse = nullptr;  ///< or null
  std::int64_t lse_batch_stride = 0, lse_head_stride = 0, lse_row_stride = 0;
  float scale_log2 = 0;  ///< softmax scale times log2(e): exponents are powers of two
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
