// Checks the tensors of a call of Dynamic Mask Attention, and derives the calls of its parts from
// them. The CPU and the GPU path use it.
#pragma once

#include "fdma/kernels/dynamic_mask_attention.hpp"
#include "fdma/select/zoh_backward.hpp"
#include "fdma/select/zoh_scores.hpp"

namespace fdma::dynamic_mask {

/// v, or its gradient, as the input of the scores: cut at the longest kv_len.
TensorView values_of(const DynamicMaskSpec& spec, TensorView v);

/// The attention call, with key_bias = `scores` if the spec adds them.
AttentionTensors attention_tensors(const DynamicMaskSpec& spec, const DynamicMaskTensors& tensors,
                                   const TensorView& scores);

/// The attention part of a backward call, with `dscores` as the gradient of the bias, if there is a
/// bias.
BackwardTensors backward_tensors(const DynamicMaskSpec& spec,
                                 const DynamicMaskBackwardTensors& tensors,
                                 const MutableTensorView& dscores);

/// The part of the scores, after that: dv holds the gradient through attention.
ZohBackwardTensors zoh_tensors(const DynamicMaskSpec& spec,
                               const DynamicMaskBackwardTensors& tensors,
                               const TensorView& dscores);

/// A contiguous float32 view [batch, heads_kv, kv_len].
MutableTensorView scores_view(const DynamicMaskSpec& spec, void* data, Device device);

ZohMode zoh_mode_of(ScoreBias bias);

/// Errors  all that can be detected before anything is computed
Result<void> check_call(const DynamicMaskSpec& spec, const DynamicMaskTensors& tensors,
                        const AttentionOptions& options, Device device);

/// The same for a backward call; tensors.kept may be missing.
Result<void> check_backward(const DynamicMaskSpec& spec, const DynamicMaskBackwardTensors& tensors,
                            const BackwardOptions& options, Device device);

}  // namespace fdma::dynamic_mask
