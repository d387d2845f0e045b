// Attention by a plan.
#pragma once

#include <atomic>
#include <cstdint>

#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// The tensors of one call. Any strides whose last is 1 are accepted. Extents along lengths are at
/// least the longest length of the plan's shape. Elements past an element's own length are neither
/// read nor written.
///
/// Shapes      q             [batch, q_len, heads_q, head_dim]
///             kv            see KvView
///             key_bias      [batch, heads_kv, kv_len] float32, iff the plan's score says so
///             bias          [batch or 1, heads_q or heads_kv or 1, q_len or 1, kv_len] float32 or of
///                           q's type, iff the plan's score says so, as for the following
///             alibi_slopes  [heads_q] or [batch, heads_q] float32
///             relative      [heads_q or 1, left + 1 + right] float32, left being
///                           AttentionOptions::relative_left
///             sinks         [heads_q] or [batch, heads_q, q_len], float32 or of q's type
///             out           [batch, q_len, heads_q, head_dim_v]
///             lse           [batch, heads_q, q_len] float32, optional
///             out_low  shape and dtype of out, 16 bits, optional: the low half of O, that is
///                           the part that rounding took from out, itself rounded to 16 bits;
///                           backward calls read it
///             max_logit     [heads_q] float32, optional: the largest logit of an attended pair of each
///                           head, over batch and rows; -inf where there is none. On the CPU
///             q_lens        [batch] int32, optional; each in [0, the plan's length of the element]
///             kv_lens       [batch] int32, optional; likewise
///             cu_seqlens    [num_borders] int32, optional: the same documents for all elements; or
///                           [batch, num_borders]; not decreasing, in [0, the plan's longest
///                           kv_len]; num_borders >= 2 need not be the plan's
///             an optional tensor that is not wanted or not given has data = nullptr
/// Invariants  out, lse, out_low and max_logit overlap no other tensor
///             on a GPU the strides of out_low are those of out
///             q_lens, kv_lens and cu_seqlens are contiguous, lie where q lies, and come with
///             closed-form plans only
///
/// q_lens, kv_lens and cu_seqlens replace the plan's lengths and documents for this call; they are
/// read when the call runs. With the lengths of element b its mask is the plan's closed form at
/// pos = q + kv_len - q_len + pos_shift over keys below min(kv_end, kv_len). Rows at or past q_len
/// are neither read nor written.
///
/// Errors      invalid_argument on the CPU, which checks these values; a GPU clamps values that are
///             out of range
struct AttentionTensors {
  TensorView q;
  KvView kv;
  TensorView key_bias;
  MutableTensorView out;
  MutableTensorView lse;
  TensorView q_lens = {};
  TensorView kv_lens = {};
  TensorView cu_seqlens = {};
  MutableTensorView out_low = {};
  TensorView bias = {};
  TensorView alibi_slopes = {};
  TensorView relative = {};
  TensorView sinks = {};
  MutableTensorView max_logit = {};
};

/// Drops each pair of query and key with probability `rate` after the softmax and divides the others
/// by 1 - rate. Which pairs is a function of the numbers here and of batch element, query head,
/// query and key, the same for every backend, plan and pass.
///
/// Invariants  0 <= rate < 1
///             the pointers are null, or hold numbers that the call reads where it runs, in place of
///             `seed` and `offset`; on a GPU they point to its memory
struct Dropout {
  double rate = 0;
  std::uint64_t seed = 0;
  std::uint64_t offset = 0;
  const std::uint64_t* seed_at = nullptr;
  const std::uint64_t* offset_at = nullptr;
};

/// The range of AttentionOptions::softcap. Beyond it x / softcap would be subnormal or infinite for
/// ordinary logits.
inline constexpr float kLeastSoftcap = 1e-12F, kMostSoftcap = 1e12F;

struct AttentionOptions {
  /// Multiplies q.k; 0: 1 / sqrt(head_dim).
  float softmax_scale = 0;
  /// A scaled product x becomes softcap * tanh(x / softcap). From kLeastSoftcap to kMostSoftcap where
  /// the plan's score has a softcap, and 0 elsewhere.
  float softcap = 0;
  /// The element of each row of `relative` for k == pos, its `left`. Elements before it are for
  /// keys before the query; keys further away than the table reaches take its first or last one.
  std::int64_t relative_left = 0;
  /// A rate above 0 where the plan's score has dropout, and 0 elsewhere.
  Dropout dropout = {};
  /// CPU threads; 0: all that the process may use. The result does not depend on their number.
  int num_threads = 0;
  /// If given, counts finished work tiles while the call runs.
  std::atomic<std::int64_t>* num_work_tiles_done = nullptr;
  /// If given and set while the call runs, work stops early and the call fails with `io`
  /// ("interrupted"); outputs are then incomplete.
  const std::atomic<bool>* is_cancelled = nullptr;
};

/// out = softmax(softcap(softmax_scale * q k^T) + biases, masked) v, in float32 with online softmax.
/// lse is the natural logarithm of the sum of exponentials, without the sink and before dropout.
///
/// With pos = q + kv_len - q_len, the logit of query q of head h and key k is
///
///   softcap(softmax_scale * q.k) + key_bias[b, kv head, k] + bias[b, h, q, k]
///     - alibi_slopes[b, h] * abs(pos - k)
///     + relative[h, clamp(k - pos, -left, right) + left]
///
/// and its weight exp(logit) / (exp(sinks[b, h, q]) + sum of exp(logit) over the keys of the row).
///
/// With dropout, each weight is then multiplied by 0 or by 1 / (1 - rate).
///
/// A row without keys has out 0 and lse -inf; so has a row whose every logit is -inf. Exponents are
/// powers of two in float32, so that a bias beyond 2.3e38 in magnitude counts as infinite. A NaN in q
/// makes its row NaN; so does a NaN in the k, v or bias of a key that the row sees. Keys that a row
/// does not see never reach it. The result has the same bits for any number of threads.
///
/// Errors      shape_mismatch; invalid_argument: strides, null data; unsupported: device, layout,
///             dtype; out_of_memory. All are checked before anything is written
/// Cost        2 * (head_dim + head_dim_v) FLOP a visited cell (4 * head_dim where the two are
///             equal); full tiles read no mask, empty ones are not visited
Result<void> attention_forward(const AttentionPlan& plan, const AttentionTensors& tensors,
                               const AttentionOptions& options = {});

/// The instruction set that the CPU backend runs with here, for example "AVX3_ZEN4" or "AVX2".
const char* cpu_target();

}  // namespace fdma
