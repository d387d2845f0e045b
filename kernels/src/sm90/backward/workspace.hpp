// Layout of the workspace of one backward launch.
#pragma once

#include <cstdint>

#include "cuda/device_plan.hpp"
#include "cuda/tile_rows.hpp"
#include "plan/backward_dims.hpp"
#include "sm90/backward/params.hpp"

namespace fdma::sm90 {

/// Byte offsets from its begin, multiples of 256: the counter of tile groups, lse and deltas of
/// every query and the correction of deltas, the dQ semaphore of deterministic calls, the fp32
/// accumulators of dQ, those of dK and dV of worklist keys and of their biases, what each query adds
/// to the gradients of sinks, the tile rows of a closed-form plan and the turn offsets of its query
/// tiles.
struct BackwardWorkspace {
  explicit BackwardWorkspace(const DevicePlan& plan) {
    constexpr std::int64_t kAlignment = 256;
    const AttentionShape& shape = plan.shape;
    padded_q_len = ceil_div(shape.max_q_len(), kTileKeys) * kTileKeys;
    const std::int64_t rows = shape.batch * shape.heads_q * padded_q_len;
    const auto add = [&](std::int64_t size) {
      const std::int64_t at = bytes;
      bytes += ceil_div(size, kAlignment) * kAlignment;
      return at;
    };
    add(kAlignment);
    lse_log2 = add(rows * 4);
    deltas = add(rows * 4);
    missing = add(rows * 2 * 4);
    dq_semaphores = add(rows / kSumRows * 2 * 2 * 4);
    dq_accum = add(rows * backward_dim(shape, plan.score) * 4);
    dk_accum = add(plan.worklist.num_accum_rows * backward_dim(shape, plan.score) * 4);
    dv_accum = add(plan.worklist.num_accum_rows * backward_dim(shape, plan.score) * 4);
    dbias_accum = add(plan.worklist.num_accum_rows * 4);
    sink_terms = add(plan.score.sink ? rows * 4 : 0);
    zero_counters = add(plan.is_by_row ? shape.batch * shape.heads_kv *
                                             static_cast<int>(sizeof(ZeroFillCounters))
                                       : 0);
    const bool is_closed_form = plan.arrays.num_closed_forms > 0;
    tile_rows = add(is_closed_form ? shape.batch * plan.arrays.max_tile_rows *
                                         static_cast<int>(sizeof(TileRow))
                                   : 0);
    dq_semaphore_offsets = add(is_closed_form ? shape.batch * (padded_q_len / kTileKeys) *
                                                    static_cast<int>(sizeof(DqSemaphoreOffsets))
                                              : 0);
  }

  std::int64_t padded_q_len = 0;
  std::int64_t lse_log2, deltas, missing, dq_semaphores, dq_accum, dk_accum, dv_accum, dbias_accum;
  std::int64_t sink_terms, zero_counters;
  std::int64_t tile_rows, dq_semaphore_offsets;
  std::int64_t bytes = 0;
};

}  // namespace fdma::sm90
