// Dynamic Mask Attention on the CPU.
#pragma once

#include "fdma/kernels/device_topk.hpp"
#include "fdma/kernels/dynamic_mask_attention.hpp"

namespace fdma::dynamic_mask {

/// zoh_scores, select_topk for each row, the plan of what it keeps, attention_forward.
Result<void> run_on_host(const DynamicMaskSpec& spec, const TopkRows& rows,
                         const DynamicMaskTensors& tensors, const AttentionOptions& options);

}  // namespace fdma::dynamic_mask
