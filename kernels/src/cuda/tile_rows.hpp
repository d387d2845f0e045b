// The tile rows of a closed-form plan: which tiles each of them walks, in the order in which work
// tiles take them. A kernel makes them at the start of each call, because lengths and documents may
// be given with the call. Rows are queries. In a backward plan they are keys, and columns are
// queries.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "cuda/plan_arrays.hpp"
#include "fdma/kernels/closed_form_columns.hpp"
#include "fdma/kernels/closed_form_mask.hpp"
#include "plan/closed_form_dq_order.hpp"

namespace fdma::gpu {

/// Lengths and documents of this call. Null means those of the plan.
struct RunTimeLengths {
  const std::int32_t* q_lens;      ///< [batch]
  const std::int32_t* kv_lens;     ///< [batch]
  const std::int32_t* cu_seqlens;  ///< borders of documents
  std::int64_t cu_seqlens_batch_stride;
  std::int32_t num_borders;  ///< per batch element, where cu_seqlens is given
};

/// The tiles that a tile row walks.
struct alignas(16) TileRowTiles {
  std::int32_t q_tile;
  std::int32_t num_tiles;                      ///< or kNoRow
  std::int32_t first_document, last_document;  ///< of its first and last row
  ClosedFormWalk::TileRun tile_runs[2];
};

/// One tile row of a batch element.
struct alignas(16) TileRow {
  TileRowTiles tiles;
  ClosedFormBand band;  ///< of its rows, where heads do not share the tile
};

inline constexpr std::int32_t kNoRow = -1;  ///< the whole row lies past the length

/// The lengths of batch element b: those of the call, cut at those of the plan.
__device__ __forceinline__ int2 lengths_of(const PlanArrays& plan, const RunTimeLengths& run_time,
                                           int b) {
  int2 lengths = __ldg(plan.lengths + b);
  if (run_time.q_lens != nullptr) {
    lengths.x = min(max(__ldg(run_time.q_lens + b), 0), lengths.x);
  }
  if (run_time.kv_lens != nullptr) {
    lengths.y = min(max(__ldg(run_time.kv_lens + b), 0), lengths.y);
  }
  return lengths;
}

/// The closed-form mask of a batch element and the address of its borders.
struct ElementClosedForm {
  ClosedFormMask closed_form;
  const std::int32_t* borders;
};
__device__ __forceinline__ ElementClosedForm element_closed_form(const PlanArrays& plan,
                                                                 const RunTimeLengths& run_time,
                                                                 int b) {
  ElementClosedForm element{plan.closed_forms[plan.num_closed_forms == 1 ? 0 : b], nullptr};
  element.borders = plan.borders + element.closed_form.first_border;
  if (run_time.cu_seqlens != nullptr) {
    element.borders = run_time.cu_seqlens + b * run_time.cu_seqlens_batch_stride;
    element.closed_form.num_borders = run_time.num_borders;
  }
  return element;
}

/// The closed-form mask of batch element b for these lengths.
__device__ __forceinline__ ClosedFormRows closed_form_rows(const PlanArrays& plan,
                                                           const RunTimeLengths& run_time, int b,
                                                           int q_len, int kv_len) {
  const ElementClosedForm element = element_closed_form(plan, run_time, b);
  return ClosedFormRows(element.closed_form, element.borders, q_len, kv_len);
}

/// The same closed-form mask, read by keys.
__device__ __forceinline__ ClosedFormColumns closed_form_columns(const PlanArrays& plan,
                                                                 const RunTimeLengths& run_time,
                                                                 int b, int q_len, int kv_len) {
  const ElementClosedForm element = element_closed_form(plan, run_time, b);
  return ClosedFormColumns(element.closed_form, element.borders, q_len, kv_len);
}

/// Writes `rows` [batch, plan.max_tile_rows] and zeroes `counter`, asynchronously on `stream`. The
/// rows of a batch element are sorted by descending number of tiles (in steps of 1/1024 of the
/// largest), with kNoRow last.
cudaError_t order_tile_rows(const PlanArrays& plan, const RunTimeLengths& lengths, int batch,
                            TileRow* rows, std::int32_t* counter, cudaStream_t stream);

/// The counterpart for deterministic calls of a backward plan. Rows that some query sees come
/// first, from the last key tile to the first, then all others, kNoRow last. The rank of row n of
/// the former at a query tile follows from n and `offsets` [batch, num_q_tiles]
/// (closed_form_dq_order.hpp).
cudaError_t number_tile_rows(const PlanArrays& plan, const RunTimeLengths& lengths, int batch,
                             TileRow* rows, DqSemaphoreOffsets* offsets, int num_q_tiles,
                             std::int32_t* counter, cudaStream_t stream);

/// Zeroes `counter`, for plans with work tiles. It is a kernel, so that the next one may overlap
/// with it.
cudaError_t zero_counter(std::int32_t* counter, cudaStream_t stream);

}  // namespace fdma::gpu
