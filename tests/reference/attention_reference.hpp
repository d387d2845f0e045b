// Attention and its gradients by their definitions, in float64, and what rounding alone costs an
// explicit computation.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/base/tensor_view.hpp"

namespace fdma::reference {

/// The value of element `index` of an array of float16, bfloat16 or float32.
double decode(const void* data, DType dtype, std::int64_t index);

/// Writes the value nearest to `value` (ties to even, overflow to infinity) at `index`.
void encode(void* data, DType dtype, std::int64_t index, double value);

/// The number of that type nearest to `value`.
double rounded(double value, DType dtype);

/// One query head: decoded inputs, row-major, and which cells exist and are true.
///
/// Shapes      q [q_len, head_dim], k [kv_len, head_dim], v [kv_len, head_dim_v], bias [kv_len] or
///             empty, cells [q_len, kv_len], nonzero = attend (borrowed)
struct HeadProblem {
  std::int64_t q_len = 0;
  std::int64_t kv_len = 0;
  std::int64_t head_dim = 0;
  std::int64_t head_dim_v = 0;
  std::vector<double> q, k, v, bias;
  double softmax_scale = 1;
  const char* cells = nullptr;
};

/// Shapes      out [q_len, head_dim_v], lse [q_len]
struct HeadResult {
  std::vector<double> out;
  std::vector<double> lse;
};

/// Dense attention in float64: out = sum p_k v_k / sum p_k with p_k = exp(logit_k - max), lse = max
/// + log(sum p_k), over the true cells of a row. Rows without a true cell: out 0, lse -inf. NaN and
/// infinities go where these formulas take them; a false cell contributes nothing, whatever its key
/// holds.
///
/// Cost        2 * (head_dim + head_dim_v) FLOP a true cell
HeadResult attention_float64(const HeadProblem& problem);

/// The explicit computation in the tensors' own types, whose error bounds that of FDMA: logits with
/// float32 accumulation, softmax in float32 rounded to `p_dtype`, its product with v accumulated in
/// float32 and rounded to `out_dtype`. Logits themselves stay float32, which makes the bound
/// tighter than that of separate 16-bit matrix products.
HeadResult attention_explicit(const HeadProblem& problem, DType p_dtype, DType out_dtype);

/// Shapes      dq [q_len, head_dim], dk [kv_len, head_dim], dv [kv_len, head_dim_v], dbias [kv_len]
struct HeadGradients {
  std::vector<double> dq, dk, dv, dbias;

  /// Adds those of another head of the group: k, v and bias are the same for all.
  void add_group_head(const HeadGradients& other);
};

/// Gradients of sum(dout * out) + sum(dlse * lse), in float64, over the true cells: those of
/// attention_float64, which finite differences of it confirm. dbias also where the problem has no
/// bias; rows and keys without a true cell: 0.
///
/// Shapes      dout [q_len, head_dim_v]; dlse [q_len], or empty: zeros
/// Cost        6 * head_dim + 4 * head_dim_v FLOP a true cell and those of attention_float64
HeadGradients gradients_float64(const HeadProblem& problem, const std::vector<double>& dout,
                                const std::vector<double>& dlse = {});

/// The explicit computation that attention_explicit begins: its out in `out_dtype`, P and dS
/// rounded to `p_dtype` where they enter a matrix product, all sums in float32. Results are not
/// rounded: that is done where those of a group are added.
HeadGradients gradients_explicit(const HeadProblem& problem, const std::vector<double>& dout,
                                 const std::vector<double>& dlse, DType p_dtype, DType out_dtype);

}  // namespace fdma::reference
