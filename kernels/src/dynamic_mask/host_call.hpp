// Dynamic Mask Attention on the CPU.
#pragma once

#include "fdma/kernels/device_topk.hpp"
#include "fdma/kernels/dynamic_mask_attention.hpp"

namespace fdma::dynamic_mask {

/// zoh_scores, select_topk for each row, the plan of what it keeps, attention_forward.
Result<void> run_on_host(const DynamicMaskSpec& spec, const TopkRows& rows,
                         const DynamicMaskTensors& tensors, const AttentionOptions& options);

/// The plan of what was kept (or select_topk once more), attention_backward, zoh_scores_backward.
Result<void> backward_on_host(const DynamicMaskSpec& spec, const TopkRows& rows,
                              const DynamicMaskBackwardTensors& tensors,
                              const BackwardOptions& options);

/// The intervals [batch, heads_kv, kv_len] of a call as masks of each (batch element, KV head).
std::vector<ColumnIntervals> kept_columns(const AttentionShape& shape, const Interval* kept);

}  // namespace fdma::dynamic_mask
