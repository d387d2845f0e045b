// Gradients of attention by a plan.
//
//   P  = exp(scale * q k^T + bias - lse), 0 where the mask is     D  = rowsum(dout * out) - dlse
//   dv = P^T dout                                                 dS = P * (dout v^T - D)
//   dq = scale * dS k      dk = scale * dS^T q      dkey_bias = sum of dS over rows
//
// With a softcap, x = scale * q k^T becomes cap * tanh(x / cap) before the bias is added, and dq and dk
// have dS * (1 - tanh^2(x / cap)) in place of dS.
//
//   dbias       = sum of dS over the axes that it does not have       drelative = the same by distance
//   with a sink: P has it in the denominator, dlse belongs to weights without it, and
//   dsinks      = -(weight of the sink) * rowsum(dout * out)
//   with dropout: dv = (P * keep)^T dout and dS = P * (keep * (dout v^T) - D), keep being 0 or
//   1 / (1 - rate)
//
// P comes from lse, a float32: where logits are around 1000 it has some four digits, and where they are
// beyond 10^7 none.
//
// The rows of dS add up to dlse as long as D agrees with P and dP. It does not quite: `out` was
// rounded, and so was P where it was multiplied by v. With 16 bits D is off by some 0.1 %, the same
// for all keys of a row. The error shows in dkey_bias, which keeps every other digit. It shows in
// dq and dk, for which dS is rounded too, only where rows are few. out_low, the low half of O,
// gives back what out lost for one more read. DeltaSource says how D is computed without it.
#pragma once

#include <atomic>
#include <cstdint>

#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/kernels/attention.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// The tensors of one call: those of the forward call (AttentionTensors), its results, and the
/// gradients. Any strides whose last is 1 are accepted. Extents along lengths are at least the
/// longest length of the plan's shape. Elements past an element's own length are neither read nor
/// written.
///
/// Shapes      out, lse      results of the forward call with the same inputs, mask and scale
///             dout          gradient of out, with its shape and dtype
///             dlse          [batch, heads_q, q_len] float32, gradient of lse, optional: zeros
///             out_low  result of the forward call, optional
///             dq, dk, dv    shapes of q, k and v; each of that input's dtype or float32
///             dkey_bias     [batch, heads_kv, kv_len] float32, optional; only where the plan's
///                           score has a bias
///             dbias, drelative, dsinks: shapes and types of bias, relative and sinks, optional;
///                           only where the plan's score has the part. Sums are float32
///             q_lens, kv_lens, cu_seqlens, bias, alibi_slopes, relative, sinks: as in the forward
///                           call
///             an optional tensor that is not wanted or not given has data = nullptr
/// Written     every row of dq below the element's q_len, and every row of dk, dv and dkey_bias
///             below its kv_len; zero for rows without keys and for keys that no row sees
///             every element of dbias, drelative and dsinks; zero where no pair is seen
/// Invariants  outputs overlap no other tensor
struct BackwardTensors {
  TensorView q;
  KvView kv;
  TensorView key_bias;
  TensorView out;
  TensorView lse;
  TensorView dout;
  TensorView dlse = {};
  MutableTensorView dq;
  MutableTensorView dk;
  MutableTensorView dv;
  MutableTensorView dkey_bias = {};
  TensorView q_lens = {};
  TensorView kv_lens = {};
  TensorView cu_seqlens = {};
  TensorView out_low = {};
  TensorView bias = {};
  TensorView alibi_slopes = {};
  TensorView relative = {};
  TensorView sinks = {};
  MutableTensorView dbias = {};
  MutableTensorView drelative = {};
  MutableTensorView dsinks = {};
};

/// How a backward call computes D.
enum class DeltaSource : std::uint8_t {
  /// `corrected` for a 16-bit out if dkey_bias is wanted or queries are few (kFewQueries); if
  /// out_low is given, only if queries are very few (kVeryFewQueries). Otherwise `output`.
  automatic,
  output,  ///< rowsum(dout * (out + out_low)); out_low counts as 0 where it is absent
  /// The exact delta: D of `output` plus the sum of P * (dout v^T - D) along each row, exact to
  /// float32. The correction pass walks all keys once more (2 of 5 matrix products).
  corrected,
};

/// Rows of all query heads up to which the correction pass costs no time worth mentioning.
inline constexpr std::int64_t kFewQueries = 4096;
/// Rows up to which the rounding of P in one row may show as the largest error of all.
inline constexpr std::int64_t kVeryFewQueries = 1024;

struct BackwardOptions {
  /// That of the forward call; 0: 1 / sqrt(head_dim).
  float softmax_scale = 0;
  /// That of the forward call; 0 if the plan's score has none.
  float softcap = 0;
  /// That of the forward call.
  std::int64_t relative_left = 0;
  /// That of the forward call, the same numbers where it reads them from memory.
  Dropout dropout = {};
  /// The same bits every run: dq is summed in the accumulation order of the plan. Always so on CPU.
  bool deterministic = false;
  DeltaSource delta_source = DeltaSource::automatic;
  /// CPU threads; 0: all that the process may use. The result does not depend on their number.
  int num_threads = 0;
  /// If given, counts finished work tiles while the call runs.
  std::atomic<std::int64_t>* num_work_tiles_done = nullptr;
  /// If given and set while the call runs, work stops early and the call fails with `io`
  /// ("interrupted"); outputs are then incomplete.
  const std::atomic<bool>* is_cancelled = nullptr;
};

/// The gradients of q, k, v and the key bias, given those of out and lse, in float32. `plan` is
/// made with PlanOptions::direction = Direction::backward from the mask of the forward call.
///
/// A row and a key that it does not see never meet: NaN in one does not reach the gradients of the
/// other. The result has the same bits for any number of threads.
///
/// Errors      shape_mismatch; invalid_argument: strides, null data; unsupported: device, layout,
///             dtype, a plan for forward calls; out_of_memory. All are checked before anything is
///             written
/// Cost        6 * head_dim + 4 * head_dim_v FLOP a visited cell, 2.5 times those of forward; full
///             tiles read no mask, empty ones are not visited
///             DeltaSource::corrected: 2 * (head_dim + head_dim_v) FLOP more
///             memory: two float32 for each row of a query head (three with
///             DeltaSource::corrected), head_dim more where dq is not float32, and
///             plan.worker_bytes a thread; with dsinks one float32 more for each row. A dbias whose
///             elements are sums over pairs takes tile.block_kv float32 for each query (or one of
///             them, if it has no axis of queries) a thread, and its own size in float32 if it has 16
///             bits. drelative takes 8 bytes for each element of a head a thread
Result<void> attention_backward(const AttentionPlan& plan, const BackwardTensors& tensors,
                                const BackwardOptions& options = {});

}  // namespace fdma
