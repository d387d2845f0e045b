// Cost inputs of backward calls on a GPU: the bytes that the kernels before and after the main one
// move, and the head size that the main one computes. The planner, the estimate and the calibration
// use them.
#pragma once

#include <cstdint>

#include "fdma/formats/attention_shape.hpp"
#include "fdma/kernels/plan.hpp"
#include "plan/backward_dims.hpp"

namespace fdma {

/// Bytes read and written. The first kernel reads out, dout and lse and writes two float32 a query
/// and the zero fill of dq's accumulators. The last one reads the accumulators and writes dq.
inline std::int64_t query_pass_bytes(const AttentionShape& shape) {
  const std::int64_t kFloat = size_bytes(DType::float32);
  const std::int64_t outputs = 2 * std::int64_t{shape.head_dim_v} * size_bytes(shape.out_dtype);
  const std::int64_t sums = 2 * std::int64_t{sm90::backward_dim(shape)} * kFloat;
  const std::int64_t dq = std::int64_t{shape.head_dim} * size_bytes(shape.q_dtype);
  std::int64_t rows = 0;
  for (std::int64_t b = 0; b < shape.batch; ++b) rows += shape.q_len(b) * shape.heads_q;
  return rows * (outputs + 3 * kFloat + sums + dq);
}

/// The same of the kernels for a kv worklist with `num_accum_rows` rows of fp32 accumulators. Before
/// the main kernel all of dk and dv and the accumulators are zeroed; after it the accumulators are
/// stored.
inline std::int64_t key_pass_bytes(const AttentionShape& shape, std::int64_t num_accum_rows) {
  const std::int64_t gradients = std::int64_t{shape.head_dim} * size_bytes(shape.k_dtype) +
                                 std::int64_t{shape.head_dim_v} * size_bytes(shape.v_dtype);
  const std::int64_t accumulators =
      2 * std::int64_t{sm90::backward_dim(shape)} * size_bytes(DType::float32);
  std::int64_t rows = 0;
  for (std::int64_t b = 0; b < shape.batch; ++b) rows += shape.kv_len(b) * shape.heads_kv;
  return rows * gradients + num_accum_rows * (2 * accumulators + gradients);
}

/// The head size for which costs are taken from a device profile. It is the mean of both head
/// sizes, because products grow with their own. For backward calls it is the head size of the
/// kernel where that pads with zeros.
inline double head_dim_of_costs(const AttentionShape& shape, Direction direction, Backend backend) {
  const BackendTraits& traits = backend.traits();
  if (traits.backward_head_dim != nullptr && direction == Direction::backward) {
    return traits.backward_head_dim(shape);
  }
  return (shape.head_dim + shape.head_dim_v) / 2.0;
}

}  // namespace fdma
