// Scores of keys from their values: zero-order hold, the score of Dynamic Mask Attention.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"

namespace fdma {

/// The score as a function of dt. `exp` is exp(A softplus(dt)), in (0, 1] for A <= 0. `log` is its
/// logarithm, A softplus(dt), which ranks alike where A has one sign and exp neither overflows nor
/// vanishes.
enum class ZohMode : std::uint8_t { exp, log };

/// "exp" or "log".
std::string_view to_string(ZohMode mode);
std::optional<ZohMode> parse_zoh_mode(std::string_view text);

/// The extents of one call whose tensors fit together.
struct ZohShape {
  std::int64_t num_batches = 0;
  std::int64_t kv_len = 0;
  std::int64_t num_heads_kv = 0;
  std::int64_t head_dim = 0;
  /// True: dt_proj is [heads_kv, head_dim] and a head sees its own values. False: dt_proj is
  /// [heads_kv, heads_kv * head_dim] and a head sees the values of all heads, kv head major. With
  /// one head the two are the same, and this is true.
  bool is_per_head = false;
};

/// Checks dtypes, ranks, extents, null pointers and the strides of `values`, on any device.
///
/// Errors      shape_mismatch: extents that do not fit, or are 0; invalid_argument: null data,
///             values whose last stride is not 1; unsupported: elements that are not float32,
///             float16 or bfloat16, tensors on different devices
Result<ZohShape> zoh_shape(const TensorView& values, const TensorView& dt_proj,
                           const TensorView& a_coef);

struct ZohOptions {
  ZohMode mode = ZohMode::exp;
  /// CPU threads; 0: all that the process may use. The result does not depend on their number.
  int num_threads = 0;
};

/// Computes for every key of every KV head
///   dt    = V' dt_proj^T
///   score = exp(softplus(dt) * A), or softplus(dt) * A
/// where V' is the values of the key as [heads_kv * head_dim], or of the head alone (is_per_head).
///
/// Example     values 0: dt 0, softplus ln 2; A = -1: score 0.5 (exp), -0.693147 (log)
/// Shapes      values   [batch, kv_len, heads_kv, head_dim], last stride 1
///             dt_proj  [heads_kv, heads_kv * head_dim] or [heads_kv, head_dim]
///             a_coef   [heads_kv]
///             scores   [batch, heads_kv, kv_len] float32, any strides
///             values, dt_proj and a_coef are each float32, float16 or bfloat16; a kv_len or batch
///             of 0 writes nothing
/// Accuracy    sums are float32; softplus(dt) = max(dt, 0) + log1p(exp(-|dt|)) neither overflows
///             nor cancels
///             with s = sum |value * weight| and u = 2^-24, the error of dt is at most
///             (n / 4 + 8) u s for n terms; that of the score is |A| times as much (times the score
///             for exp) and a few units in its last place
///             infinities and NaN follow the arithmetic: 0 * inf is NaN, which selection refuses
/// Errors      those of zoh_shape; shape_mismatch, invalid_argument, unsupported for `scores`,
///             num_threads < 0 or a device that is not the host. All are checked before anything is
///             written
/// Cost        reads `values` once; 2 head_dim FLOP a score (2 heads_kv head_dim for the wide
///             dt_proj); the same bits for any number of threads
Result<void> zoh_scores(const TensorView& values, const TensorView& dt_proj,
                        const TensorView& a_coef, const MutableTensorView& scores,
                        const ZohOptions& options = {});

}  // namespace fdma
