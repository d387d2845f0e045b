// Kernels before and after the main kernel of a launch over worklist keys. They zero the gradients
// of keys that are not listed, and store the gradients that the main kernel has accumulated in
// float32.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "call/strided_views.hpp"
#include "cuda/rows_view.hpp"
#include "fdma/base/interval.hpp"
#include "fdma/kernels/kv_worklist.hpp"

namespace fdma::gpu {

/// Accumulator rows in groups of equal capacity: one group for each KV head, or one for all. A key
/// may have several consecutive rows, which are added up in their order.
struct KvAccum {
  const AccumKey* keys;  ///< [num_groups * rows_of_group]
  float *dk, *dv;        ///< [num_groups * rows_of_group, dim_qk] and [.., dim_v]
  /// [num_groups * rows_of_group], or null: the main kernel adds up the biases
  float* dbias;
  std::int64_t rows_of_group;
  const std::int32_t* num_rows;  ///< [num_groups]: rows in use; null: all
  std::int32_t num_groups;
  std::int32_t dim_qk, dim_v;  ///< columns of the main kernel: the same, 64, 128 or 256
};

struct KeyGradientParams {
  RowsView dk, dv;
  KeyValues<float> dkey_bias;  ///< or null
  const int2* lengths;         ///< {q_len, kv_len} of each batch element
  std::int64_t max_kv_len;
  std::int32_t batch, heads_kv;
  std::int32_t head_dim, head_dim_v;  ///< multiples of 8
  /// [batch * heads_kv, max_kv_len]: the queries that see each key. A key that some query sees is
  /// listed, and its rows are not zeroed. Null: all rows are zeroed.
  const Interval* seen;
  KvAccum sums;
  float scale;  ///< of dk
};

/// Runs before the main kernel: zeroes the rows of dk and dv that it does not write (or all rows),
/// dkey_bias and the accumulators in use.
cudaError_t zero_key_gradients(const KeyGradientParams& params, cudaStream_t stream);

/// Runs after the main kernel: stores accumulators to dk, times scale, and to dv. T is the type of dk
/// and dv unless they are float32.
template <class T>
cudaError_t store_key_gradients(const KeyGradientParams& params, cudaStream_t stream);

}  // namespace fdma::gpu
