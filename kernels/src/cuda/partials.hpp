// Layout of partial results in the workspace. Work tiles of split rows write them; combine_partials
// reads them.
#pragma once

#include <cstdint>

#include "fdma/kernels/host_device.hpp"

namespace fdma::gpu {

inline constexpr int kPartialRows = 128;  ///< rows of the tile, whether they exist or not

/// Byte offsets of partial results from the first of them (256-aligned, behind the counter of the
/// workspace). The arrays are float32 out [num_partials, 128, head_dim_v], in which each row is
/// normalized by its own keys, and float32 lse [num_partials, 128], the natural logarithm of the
/// sum of exponentials. lse is -inf for a row without keys, whose out is not used. Only rows that
/// exist are written and read.
///
/// Example     head_dim_v 128 and 4 partials: lse of row 3 of partial 2 at 4 * 65536 + 2 * 512 + 12
struct PartialLayout {
  std::int32_t head_dim_v;
  std::int32_t num_partials;

  FDMA_HOST_DEVICE std::int64_t out_bytes() const {
    return std::int64_t{num_partials} * kPartialRows * head_dim_v * 4;
  }
  FDMA_HOST_DEVICE std::int64_t bytes() const {
    return out_bytes() + std::int64_t{num_partials} * kPartialRows * 4;
  }
  FDMA_HOST_DEVICE std::int64_t out_at(std::int32_t partial, std::int32_t row) const {
    return (std::int64_t{partial} * kPartialRows + row) * head_dim_v * 4;
  }
  FDMA_HOST_DEVICE std::int64_t lse_at(std::int32_t partial, std::int32_t row) const {
    return out_bytes() + (std::int64_t{partial} * kPartialRows + row) * 4;
  }
};

/// Partials of a closed-form plan with several splits. Every tile row has num_splits partials,
/// which are consecutive and ordered by ascending keys.
struct SplitGrid {
  std::int32_t num_q_tiles;  ///< of the longest element: ceil(max_q_len / block_q)
  /// Work tiles of a tile row over all heads: heads_kv * head sets per group
  std::int32_t num_head_sets;
  std::int32_t num_splits;

  FDMA_HOST_DEVICE std::int32_t partial_of(std::int32_t batch, std::int32_t q_tile,
                                           std::int32_t head_set, std::int32_t split) const {
    return ((batch * num_q_tiles + q_tile) * num_head_sets + head_set) * num_splits + split;
  }
  /// Number of tiles before those of `split`, in a row of num_tiles tiles.
  FDMA_HOST_DEVICE std::int32_t first_tile(std::int32_t num_tiles, std::int32_t split) const {
    const std::int32_t size = num_tiles / num_splits, larger = num_tiles % num_splits;
    return split * size + (split < larger ? split : larger);
  }
};

/// Number of sets of heads_per_tile query heads in a group. The last set may have fewer heads.
FDMA_HOST_DEVICE inline std::int32_t head_sets_of_group(std::int32_t group_size,
                                                        std::int32_t heads_per_tile) {
  return (group_size + heads_per_tile - 1) / heads_per_tile;
}

}  // namespace fdma::gpu
