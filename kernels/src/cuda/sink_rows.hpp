// Sinks in the backward pass. A sink is a logit without a key: it takes part in the sum that divides
// a row. Weights then refer to log(exp(lse) + exp(sink)), which replaces lse in the rows that the
// kernel before (query_passes.hpp) has prepared.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "call/strided_views.hpp"
#include "cuda/query_places.hpp"

namespace fdma::gpu {

/// Arguments of the kernels for sinks. Values are float32 or of the type of q.
struct SinkParams {
  QueryPlaces places;
  const int2* lengths;         ///< {q_len, kv_len} of each batch element
  const std::int32_t* q_lens;  ///< those of this call, or null
  std::int32_t batch;
  QueryValues<const float> lse;
  QueryValues<const float> dlse;  ///< or null: zeros
  PairValues<const void> sinks;
  PairValues<void> dsinks;       ///< or null: not wanted; strides of 0 where sums go over an axis
  std::int64_t num_dsinks_rows;  ///< its extent along rows; those past the longest length become 0
  bool corrects_delta;           ///< DeltaSource::corrected: add_missing_to_sinks follows
  float* terms;                  ///< [batch * heads_q, padded_q_len]: each row's part of dsinks

  FDMA_HOST_DEVICE std::int64_t num_rows() const {
    return std::int64_t{batch} * places.heads_q * places.padded_q_len;
  }
};

/// Takes sinks into the rows that prepare_queries has written without dlse: lse_log2 becomes that of
/// exp(lse) + exp(sink), and D loses dlse * exp(lse' - lse), lse' being the new one. With
/// corrects_delta D stays, and `missing` takes the part of it that the sums of P * (dP - D) do not,
/// because weights beside a sink do not add up to 1.
template <class T>
cudaError_t take_sinks(const SinkParams& params, cudaStream_t stream);

/// In place of add_missing: D takes what is missing, then loses dlse * exp(lse' - lse).
template <class T>
cudaError_t add_missing_to_sinks(const SinkParams& params, cudaStream_t stream);

/// dsinks = -sum of exp(sink - lse') * D, in a fixed order, after the others.
template <class T>
cudaError_t store_sink_gradients(const SinkParams& params, cudaStream_t stream);

}  // namespace fdma::gpu
