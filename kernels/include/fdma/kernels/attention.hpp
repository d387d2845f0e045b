// Attention by a plan.
#pragma once

#include <atomic>
#include <cstdint>

#include "fdma/base/mutable_tensor_view.hpp"
#include "fdma/base/result.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// The tensors of one call. Any strides whose last is 1; extents along lengths at least the longest
/// length of the plan's shape. Elements past an element's own length are neither read nor written.
///
/// Shapes      q [batch, q_len, heads_q, head_dim]; kv: see KvView; key_bias float32 [batch,
///             heads_kv, kv_len] iff the plan's score says so; out [batch, q_len, heads_q,
///             head_dim_v]; lse float32 [batch, heads_q, q_len], or data = nullptr where it is not
///             wanted; out_residual, of shape and dtype of out where those are 16 bits: what
///             rounding took from out, rounded to 16 bits itself, for backward calls, or data =
///             nullptr where it is not wanted
/// Invariants  out, lse and out_residual overlap no other tensor; on a GPU the strides of
///             out_residual are those of out
///
/// Of parametric plans only, int32, contiguous, where q lies, or data = nullptr: what this call
/// takes instead of the plan's lengths and documents, read when it runs. With element b's lengths
/// its mask is the plan's formula at pos = q + kv_len - q_len + pos_shift over keys below
/// min(kv_end, kv_len); rows at or past q_len are neither read nor written.
///
/// Shapes      q_lens, kv_lens [batch], each in [0, the plan's length of that element]; cu_seqlens
///             [num_borders], the same documents for all elements, or [batch, num_borders]; not
///             decreasing, in [0, the plan's longest kv_len]; num_borders >= 2 need not be the
///             plan's
/// Errors      values are checked on the CPU (invalid_argument); on a GPU, out of range, they are
///             clamped
struct AttentionTensors {
  TensorView q;
  KvView kv;
  TensorView key_bias;
  MutableTensorView out;
  MutableTensorView lse;
  TensorView q_lens = {};
  TensorView kv_lens = {};
  TensorView cu_seqlens = {};
  MutableTensorView out_residual = {};
};

struct AttentionOptions {
  /// Multiplies q.k; 0 means 1 / sqrt(head_dim).
  float softmax_scale = 0;
  /// CPU threads; 0: all that the process may use. The result does not depend on it.
  int num_threads = 0;
  /// If given, counts finished work items while the call runs.
  std::atomic<std::int64_t>* num_items_done = nullptr;
  /// If given and set while the call runs, work stops early and the call fails with `io`
  /// ("interrupted"); outputs are then incomplete.
  const std::atomic<bool>* is_cancelled = nullptr;
};

/// out = softmax(softmax_scale * q k^T + bias, masked) v, in float32 with online softmax; lse is
/// the natural logarithm of the sum of exponentials. Rows without keys: out 0, lse -inf; so
/// are rows whose every logit is -inf. A NaN in
/// q, or in the k, v or bias of a key that a row sees, makes the row NaN; keys that a row does not
/// see never reach it. The same bits for any number of threads.
///
/// Errors  shape_mismatch, invalid_argument (strides, null data), unsupported (device, layout,
///         dtype), out_of_memory. Checked before anything is written
/// Cost    4 * head_dim FLOP a visited cell (2 * (head_dim + head_dim_v)); full tiles read no mask,
///         empty ones are not visited
Result<void> attention_forward(const AttentionPlan& plan, const AttentionTensors& tensors,
                               const AttentionOptions& options = {});

/// The instruction set that the CPU backend runs with here, for example "AVX3_ZEN4" or "AVX2".
const char* cpu_target();

}  // namespace fdma
