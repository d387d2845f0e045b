// Attention and its gradients by their definitions, in float64, and an explicit computation that
// shows the error of rounding alone.
#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "fdma/base/tensor_view.hpp"

namespace fdma::reference {

/// The value of element `index` of an array of float16, bfloat16 or float32.
double decode(const void* data, DType dtype, std::int64_t index);

/// Writes the value nearest to `value` (ties to even, overflow to infinity) at `index`.
void encode(void* data, DType dtype, std::int64_t index, double value);

/// The number of type `dtype` that is nearest to `value`.
double rounded(double value, DType dtype);

/// One query head: its decoded inputs, row-major, and its cells.
///
/// Shapes      q [q_len, head_dim], k [kv_len, head_dim], v [kv_len, head_dim_v], bias [kv_len] or
///             empty, cells [q_len, kv_len], nonzero = attend (borrowed)
///             positions [q_len], read where a part goes by distance; pair_bias [q_len, kv_len],
///             relative [left + 1 + right] and sinks [q_len], or empty
///             kept [q_len, kv_len], nonzero = dropout keeps the pair, or empty: it keeps all
struct HeadProblem {
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  std::int64_t head_dim = 0;
  std::int64_t head_dim_v = 0;
  std::vector<double> q, k, v, bias;
  double softmax_scale = 1;
  double softcap = 0;  ///< 0: none; else scaled products x become softcap * tanh(x / softcap)
  const char* cells = nullptr;
  std::vector<std::int64_t> positions = {};
  std::vector<double> pair_bias = {};
  double alibi_slope = 0;
  std::vector<double> relative = {};
  std::int64_t relative_left = 0;
  std::vector<double> sinks = {};
  std::vector<char> kept = {};
  double dropout_rate = 0;
};

/// Shapes      out [q_len, head_dim_v], lse [q_len]
struct HeadResult {
  std::vector<double> out;
  std::vector<double> lse;
  double max_logit = -std::numeric_limits<double>::infinity();  ///< of all attended pairs
};

/// Dense attention in float64 over the true cells of a row. The logit of a pair is
///
///   softcap(softmax_scale * q.k) + bias[k] + pair_bias[q, k] - alibi_slope * abs(pos - k)
///     + relative[clamp(k - pos, -left, right) + left]
///
/// With p_k = exp(logit_k - max), out = sum of keep_k p_k v_k / (exp(sink - max) + sum p_k), where
/// keep_k is 1 / (1 - dropout_rate) or 0, and lse = max + log(sum p_k). Rows without a true cell,
/// and rows whose every logit is -inf, have out 0 and lse -inf. Otherwise NaN and infinities
/// propagate by these formulas. A false cell contributes nothing, whatever its key holds.
///
/// Cost        2 * (head_dim + head_dim_v) FLOP a true cell
HeadResult attention_float64(const HeadProblem& problem);

/// The explicit computation in the tensors' own types, whose error bounds that of FDMA. Logits have
/// fp32 accumulators. Softmax is float32 and is rounded to `p_dtype`. Its product with v has fp32
/// accumulators and is rounded to `out_dtype`. Logits stay float32, which makes the bound tighter
/// than that of separate 16-bit matrix products.
HeadResult attention_explicit(const HeadProblem& problem, DType p_dtype, DType out_dtype);

/// Shapes      dq [q_len, head_dim], dk [kv_len, head_dim], dv [kv_len, head_dim_v], dbias [kv_len];
///             dpair_bias [q_len, kv_len], drelative and dsinks as in the problem, empty where that
///             has none
struct HeadGradients {
  std::vector<double> dq, dk, dv, dbias;
  std::vector<double> dpair_bias = {}, drelative = {}, dsinks = {};

  /// Adds dk, dv and dbias of another head of the group, which has the same k, v and bias.
  void add_group_head(const HeadGradients& other);
};

/// The gradients of sum(dout * out) + sum(dlse * lse) in float64, with out and lse of
/// attention_float64. A test confirms them by finite differences. dbias is computed even if the
/// problem has no bias. Rows and keys without a true cell have gradient 0.
///
/// Shapes      dout [q_len, head_dim_v]; dlse [q_len], or empty: zeros
/// Cost        6 * head_dim + 4 * head_dim_v FLOP a true cell and those of attention_float64
HeadGradients gradients_float64(const HeadProblem& problem, const std::vector<double>& dout,
                                const std::vector<double>& dlse = {});

/// The gradients by the explicit computation of attention_explicit. out is in `out_dtype`. P and dS
/// are rounded to `p_dtype` before they enter a matrix product. All sums are float32. Results are
/// not rounded; the caller rounds them after it has added those of a group.
HeadGradients gradients_explicit(const HeadProblem& problem, const std::vector<double>& dout,
                                 const std::vector<double>& dlse, DType p_dtype, DType out_dtype);

}  // namespace fdma::reference
