// Partial results in the workspace: what items of a split row leave for combine_partials.
#pragma once

#include <cstdint>

#include "fdma/kernels/host_device.hpp"

namespace fdma::sm90 {

inline constexpr int kPartialRows = 128;  ///< of the tile, existing or not

/// Where partial results lie, in bytes from the first of them (256-aligned, behind the counter of
/// the workspace): for each partial float32 out [128][head_dim_v], normalized by its own keys, then
/// float32 lse [128], the natural logarithm of the sum of exponentials, -inf of a row without keys
/// (its out is not read). Only rows that exist are written and read.
///
/// Example     head_dim_v 128: 66048 bytes a partial; lse of row 3 of partial 2 at 2 * 66048 +
///             65536 + 12
struct PartialLayout {
  std::int32_t head_dim_v;

  FDMA_HOST_DEVICE std::int64_t out_bytes() const {
    return std::int64_t{kPartialRows} * head_dim_v * 4;
  }
  FDMA_HOST_DEVICE std::int64_t bytes() const { return out_bytes() + kPartialRows * 4; }
  FDMA_HOST_DEVICE std::int64_t out_at(std::int32_t partial, std::int32_t row) const {
    return partial * bytes() + std::int64_t{row} * head_dim_v * 4;
  }
  FDMA_HOST_DEVICE std::int64_t lse_at(std::int32_t partial, std::int32_t row) const {
    return partial * bytes() + out_bytes() + std::int64_t{row} * 4;
  }
};

/// Partials of a parametric plan with several splits: every tile row has num_splits of them, those
/// of one row side by side by ascending keys.
struct SplitGrid {
  std::int32_t num_q_tiles;    ///< of the longest element: ceil(max_q_len / block_q)
  std::int32_t num_head_sets;  ///< items of a tile row over all heads: heads_kv * sets of a group
  std::int32_t num_splits;

  FDMA_HOST_DEVICE std::int32_t partial_of(std::int32_t batch, std::int32_t q_tile,
                                           std::int32_t head_set, std::int32_t split) const {
    return ((batch * num_q_tiles + q_tile) * num_head_sets + head_set) * num_splits + split;
  }
};

/// Sets of heads_per_tile query heads that make up a group; the last may have fewer heads.
FDMA_HOST_DEVICE inline std::int32_t head_sets_of_group(std::int32_t group_size,
                                                        std::int32_t heads_per_tile) {
  return (group_size + heads_per_tile - 1) / heads_per_tile;
}

}  // namespace fdma::sm90
