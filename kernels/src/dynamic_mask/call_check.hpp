// The tensors of a call of Dynamic Mask Attention, checked.
#pragma once

#include "fdma/kernels/dynamic_mask_attention.hpp"
#include "fdma/select/zoh_scores.hpp"

namespace fdma::dynamic_mask {

/// v as scores are made of it: cut off at the longest kv_len.
TensorView values_of(const DynamicMaskSpec& spec, const DynamicMaskTensors& tensors);

/// The attention call: with key_bias = `scores` where the spec adds them.
AttentionTensors attention_tensors(const DynamicMaskSpec& spec, const DynamicMaskTensors& tensors,
                                   const TensorView& scores);

/// A contiguous [batch, heads_kv, kv_len] of float32.
TensorView scores_view(const DynamicMaskSpec& spec, const void* data, Device device);

ZohMode zoh_mode_of(ScoreBias bias);

/// Errors  all that can be said before anything is computed
Result<void> check_call(const DynamicMaskSpec& spec, const DynamicMaskTensors& tensors,
                        const AttentionOptions& options, Device device);

}  // namespace fdma::dynamic_mask
