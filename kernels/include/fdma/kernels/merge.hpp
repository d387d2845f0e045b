// Merging attention results over disjoint sets of keys.
#pragma once

#include <span>

#include "fdma/base/result.hpp"
#include "fdma/base/tensor_view.hpp"
#include "fdma/kernels/backends.hpp"

namespace fdma {

/// The largest number of parts of one call.
inline constexpr int kMaxMergeParts = 32;

/// The result of attention over a part of the keys: out and lse of attention_forward.
struct MergePart {
  TensorView out;
  TensorView lse;
};

/// The tensors of one call.
///
/// Shapes      parts[i].out  [batch, q_len, heads_q, head_dim_v], float32, float16 or bfloat16
///             parts[i].lse  [batch, heads_q, q_len] float32
///             sinks         [heads_q] or [batch, heads_q, q_len] float32, optional
///             out           shape and dtype of parts[0].out
///             lse           [batch, heads_q, q_len] float32, optional
///             an optional tensor that is not given or not wanted has data = nullptr
/// Strides     any; the last one of every out is 1
/// Invariants  1 to kMaxMergeParts parts of one shape and dtype; out and lse overlap no other
///             tensor
struct MergeTensors {
  std::span<const MergePart> parts;
  TensorView sinks = {};
  MutableTensorView out;
  MutableTensorView lse = {};
};

/// Merges parts that attend disjoint sets of keys, so that the result is that of attention over all
/// of these keys. For each row
///
///     lse = log(sum_i exp(lse_i))
///     out = sum_i exp(lse_i - lse) out_i * sigmoid(lse - sink)
///
/// A sink is the logit of one more key, whose value is 0: it takes weight from the keys. lse does
/// not count it, so that the result is a part of a later merge, which then gives the sinks. A sink
/// of -inf, like no sinks, takes nothing.
///
/// Example     out_1 = 1, lse_1 = 0 and out_2 = 4, lse_2 = log 2: out 3, lse log 3;
///             with sink = log 3: out 1.5, lse log 3
///
/// A row whose every lse_i is -inf has out 0 and lse -inf. The out_i of such a part is not used,
/// whatever it holds. An lse_i that is NaN or +inf makes its row NaN. Sums are float32, in the
/// order of parts; a row that one part alone attends keeps its values where there is no sink.
///
/// On the host. num_threads: CPU threads; 0: all that the process may use. The result does not
/// depend on their number.
///
/// Errors      shape_mismatch; invalid_argument: number of parts, strides, null or misaligned data,
///             num_threads; unsupported: dtype, device. All are checked before anything is written
/// Cost        reads each part once; an exponential for each row and part
Result<void> merge(const MergeTensors& tensors, int num_threads = 0);

/// The same on the device, in the order of `stream`. It returns after the launch, without waiting;
/// a CUDA graph may capture it. The bits are the same every run, and differ from those of the host
/// within rounding. Rows whose addresses and lengths are multiples of 16 bytes are read 16 bytes a
/// thread, others element by element.
///
/// Errors      those of the host; unsupported: a tensor on the host, a GPU of another architecture,
///             2^31 rows or more; cuda
Result<void> merge(const MergeTensors& tensors, Stream stream);

}  // namespace fdma
