// Combines the partial results of split rows, as the step after the forward kernel.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "call/strided_views.hpp"
#include "cuda/partials.hpp"
#include "fdma/kernels/plan_arrays.hpp"

namespace fdma::gpu {

/// Arguments of one launch. Lengths and pointers on the device.
///
/// With split_rows the rows of the plan's list are combined. Without it every row of a closed-form
/// plan is (`grid`, num_rows = batch * num_q_tiles * num_head_sets).
struct CombineParams {
  const float* partial_out;     ///< [num_partials, 128, head_dim_v] (PartialLayout)
  const float* partial_lse;     ///< [num_partials, 128]
  const SplitRow* split_rows;   ///< [num_rows], or null
  std::int32_t num_rows;        ///< tile rows to combine
  std::int32_t max_partials;    ///< of one row
  SplitGrid grid;               ///< read where split_rows is null
  std::int32_t block_q;         ///< queries of a tile
  std::int32_t heads_per_tile;  ///< query heads of a tile
  std::int32_t group_size;      ///< query heads of a KV head
  std::int32_t head_dim_v;      ///< a multiple of 8 up to 256
  std::int32_t max_q_len;       ///< of any batch element
  const int2* lengths;          ///< {q_len, kv_len} of each batch element
  const std::int32_t* q_lens;   ///< those of this call, cut at the plan's; or null
  bool is_bfloat16;             ///< out; float16 otherwise
  void* out;                    ///< 8-aligned, strides multiples of 4
  void* out_low;                ///< or null: the low half of out, at the same offsets
  TensorStrides out_strides;
  QueryValues<float> lse;        ///< or null
  PairValues<const void> sinks;  ///< or null: a value of each row, float32 or of out's type
};

/// Combines the partials i of each existing query row of each tile row, in their order: lse = log
/// sum exp(lse_i), out = sum exp(lse_i - lse) out_i. A sink of the row multiplies out by
/// exp(lse) / (exp(lse) + exp(sink)). A row without keys gets out 0 and lse -inf. A NaN makes its
/// row NaN. Every run gives the same bits, whatever lies in rows that do not exist or
/// in out_i of partials without keys.
///
/// Example     out_1 = 1, lse_1 = 0 and out_2 = 4, lse_2 = log 2: out 3, lse log 3
cudaError_t combine_partials(const CombineParams& params, cudaStream_t stream);

}  // namespace fdma::gpu
