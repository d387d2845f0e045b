// The tensors of a call of Dynamic Mask Attention, checked, and as its parts take them.
#pragma once

#include "fdma/kernels/dynamic_mask_attention.hpp"
#include "fdma/select/zoh_backward.hpp"
#include "fdma/select/zoh_scores.hpp"

namespace fdma::dynamic_mask {

/// v, or its gradient, as scores are made of it: cut off at the longest kv_len.
TensorView values_of(const DynamicMaskSpec& spec, TensorView v);

/// The attention call: with key_bias = `scores` where the spec adds them.
AttentionTensors attention_tensors(const DynamicMaskSpec& spec, const DynamicMaskTensors& tensors,
                                   const TensorView& scores);

/// The attention part of a backward call: `dscores` as the gradient of the bias, where there is
/// one.
BackwardTensors backward_tensors(const DynamicMaskSpec& spec,
                                 const DynamicMaskBackwardTensors& tensors,
                                 const MutableTensorView& dscores);

/// The scores' part, after that: dv has the gradient through attention.
ZohBackwardTensors zoh_tensors(const DynamicMaskSpec& spec,
                               const DynamicMaskBackwardTensors& tensors,
                               const TensorView& dscores);

/// The same memory, to be written.
MutableTensorView mutable_view(const TensorView& view);

/// A contiguous [batch, heads_kv, kv_len] of float32.
TensorView scores_view(const DynamicMaskSpec& spec, const void* data, Device device);

ZohMode zoh_mode_of(ScoreBias bias);

/// Errors  all that can be said before anything is computed
Result<void> check_call(const DynamicMaskSpec& spec, const DynamicMaskTensors& tensors,
                        const AttentionOptions& options, Device device);

/// The same of a backward call; tensors.kept may be missing.
Result<void> check_backward(const DynamicMaskSpec& spec, const DynamicMaskBackwardTensors& tensors,
                            const BackwardOptions& options, Device device);

}  // namespace fdma::dynamic_mask
