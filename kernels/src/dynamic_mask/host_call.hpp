// Dynamic Mask Attention on the CPU.
#pragma once

#include "fdma/kernels/device_topk.hpp"
#include "fdma/kernels/dynamic_mask_attention.hpp"

namespace fdma::dynamic_mask {

/// Runs zoh_scores, select_topk for each row, the plan of the kept keys, and attention_forward.
Result<void> run_on_host(const DynamicMaskSpec& spec, const TopkRows& rows,
                         const DynamicMaskTensors& tensors, const AttentionOptions& options);

/// Runs the plan of the kept keys (or select_topk once more), attention_backward and
/// zoh_scores_backward.
Result<void> backward_on_host(const DynamicMaskSpec& spec, const TopkRows& rows,
                              const DynamicMaskBackwardTensors& tensors,
                              const BackwardOptions& options);

/// Converts the intervals [batch, heads_kv, kv_len] of a call to masks of each (batch element, KV
/// head).
std::vector<ColumnIntervals> kept_columns(const AttentionShape& shape, const Interval* kept);

}  // namespace fdma::dynamic_mask
