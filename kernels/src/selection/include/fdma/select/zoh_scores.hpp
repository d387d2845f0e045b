// Scores of keys from their values: zero-order hold, the score of Dynamic Mask Attention.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "fdma/base/mutable_tensor_view.hpp"
#include "fdma/base/result.hpp"

namespace fdma {

/// What is made of dt: `exp` is exp(A softplus(dt)), in (0, 1] for A <= 0; `log` is its logarithm,
/// A softplus(dt), which ranks alike where A has one sign and neither overflows nor vanishes.
enum class ZohMode : std::uint8_t { exp, log };

/// "exp" or "log".
std::string_view to_string(ZohMode mode);
std::optional<ZohMode> parse_zoh_mode(std::string_view text);

/// The extents of one call, once its tensors are known to fit together.
struct ZohShape {
  std::int64_t num_batches = 0;
  std::int64_t kv_len = 0;
  std::int64_t num_heads_kv = 0;
  std::int64_t head_dim = 0;
  /// True: dt_proj is [heads_kv, head_dim] and a head sees its own values. False: it is
  /// [heads_kv, heads_kv * head_dim] and a head sees those of all heads, kv head major. With one
  /// head the two are the same, and this is true.
  bool is_per_head = false;
};

/// Checks dtypes, ranks, extents, null pointers and the strides of `values`, on any device.
///
/// Errors  shape_mismatch: extents that do not fit, or are 0; invalid_argument: null data, values
///         whose last stride is not 1; unsupported: elements that are not float32, float16 or
///         bfloat16, tensors on different devices
Result<ZohShape> zoh_shape(const TensorView& values, const TensorView& dt_proj,
                           const TensorView& a_coef);

struct ZohOptions {
  ZohMode mode = ZohMode::exp;
  /// CPU threads; 0: all that the process may use. The result does not depend on it.
  int num_threads = 0;
};

/// For every key of every KV head
///   dt = V' dt_proj^T        V' = values of the key as [heads_kv * head_dim] (or of the head
///   alone) score = exp(softplus(dt) * A), or softplus(dt) * A
///
/// Example     values 0: dt 0, softplus ln 2; A = -1: score 0.5 (exp), -0.693147 (log)
/// Shapes      values [batch, kv_len, heads_kv, head_dim], last stride 1; dt_proj
///             [heads_kv, heads_kv * head_dim] or [heads_kv, head_dim]; a_coef [heads_kv]; each
///             float32, float16 or bfloat16; scores float32 [batch, heads_kv, kv_len], any strides.
///             A kv_len or batch of 0 writes nothing
/// Accuracy    sums in float32; softplus(dt) = max(dt, 0) + log1p(exp(-|dt|)) neither overflows nor
///             cancels. With s = sum |value * weight| and u = 2^-24, the error of dt is at most
///             (n / 4 + 8) u s for n terms, and that of the score |A| times as much (times the
///             score for exp) and a few units in its last place. Infinities and NaN go through: 0 *
///             inf is NaN, which selection refuses
/// Errors      those of zoh_shape; shape_mismatch, invalid_argument, unsupported for `scores`,
///             num_threads < 0 or a device that is not the host. Checked before anything is written
/// Cost        reads `values` once; 2 head_dim FLOP a score (2 heads_kv head_dim for the wide
///             dt_proj); the same bits for any number of threads
Result<void> zoh_scores(const TensorView& values, const TensorView& dt_proj,
                        const TensorView& a_coef, const MutableTensorView& scores,
                        const ZohOptions& options = {});

}  // namespace fdma
