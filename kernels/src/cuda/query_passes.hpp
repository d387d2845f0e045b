// The kernels of the backward pass that walk queries: one before the main kernel prepares lse and
// deltas of each query, one after it stores dQ from its accumulators.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "call/strided_views.hpp"
#include "cuda/query_places.hpp"
#include "cuda/rows_view.hpp"

namespace fdma::gpu {

/// Arguments of the kernels before and after the main one.
struct QueryParams {
  QueryPlaces places;
  const int2* lengths;         ///< {q_len, kv_len} of each batch element
  const std::int32_t* q_lens;  ///< those of this call, or null
  std::int32_t batch;
  std::int32_t dim;  ///< columns of the accumulators: kDimQk of the main kernel
  std::int32_t head_dim, head_dim_v;
  RowsView out, dout;
  RowsView out_low;  ///< or data = null: zeros
  QueryValues<const float> lse;
  QueryValues<const float> dlse;  ///< or null: zeros
  /// DeltaSource::corrected: deltas without dlse, until add_missing
  bool corrects_delta;
  std::int32_t* next_tile_groups;  ///< kNumCounters counters, set to 0
  /// Set to 0, or null: two counters for each 64 rows, and after them two for each 64 rows for the
  /// shifts.
  std::int32_t* dq_semaphores;
  RowsView dq;
  float scale;
  /// Accumulators that are set to 0: those of the first heads of the first batch elements. That is
  /// all of them, or those of the first KV head of the first element, which are to be zero at
  /// launch (ZeroFill).
  std::int32_t zeroed_heads, zeroed_elements;

  FDMA_HOST_DEVICE std::int64_t num_rows() const {
    return std::int64_t{batch} * places.heads_q * places.padded_q_len;
  }
};

/// Tile group counters: of two launches of the main kernel, and of the shifts
inline constexpr int kNumCounters = 3;

/// Writes lse_log2 and deltas, clears dq_accum where that is wanted and the counters; missing =
/// -dlse.
template <class T>
cudaError_t prepare_queries(const QueryParams& params, cudaStream_t stream);

/// deltas += missing.
cudaError_t add_missing(const QueryParams& params, cudaStream_t stream);

/// dq = dq_accum * scale, for the rows below the length.
template <class T>
cudaError_t store_query_gradients(const QueryParams& params, cudaStream_t stream);

}  // namespace fdma::gpu
