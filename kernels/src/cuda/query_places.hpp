// Per-query values of a backward call in its workspace, and the layout of its dQ accumulators.
#pragma once

#include <cstdint>

#include "fdma/kernels/host_device.hpp"

namespace fdma::gpu {

/// Places of per-query values and of dQ accumulators of one call. Rows are padded to tiles; heads
/// follow one another.
struct QueryPlaces {
  float* lse_log2;  ///< [batch * heads_q, padded_q_len]: +inf for rows without keys or past the end
  float* deltas;    ///< the same: D
  /// The same, two values per row: the correction of D, with DeltaSource::corrected
  float* missing;
  float* dq_accum;  ///< [batch * heads_q, padded_q_len / 64] tiles of 64 x kDim, below
  std::int32_t heads_q;
  std::int32_t padded_q_len;  ///< a multiple of kTileKeys

  FDMA_HOST_DEVICE std::int64_t first_row(std::int32_t batch, std::int32_t head) const {
    return (std::int64_t{batch} * heads_q + head) * padded_q_len;
  }
};

/// The fp32 accumulators of dQ are kept in the order of accumulator registers (thread_cells.hpp). A
/// tile has 64 rows. For the columns that one warpgroup computes it holds the warps one after the
/// other (16 rows each), and for each warp and 8 columns four floats a lane. The values that a warp
/// adds are consecutive.
inline constexpr int kSumRows = 64;
template <int kDim>
inline constexpr int kSumColumns = kDim <= 128 ? kDim : kDim / 2;  ///< of one warpgroup
inline constexpr int kSumLanes = 32 * 4;  ///< floats of a warp for 8 columns

/// Offset in a tile of accumulators of the four floats that a thread of a warpgroup has for 8
/// columns.
template <int kDim>
FDMA_HOST_DEVICE constexpr int sum_place(int thread, int column) {
  return (column / kSumColumns<kDim> * 4 + thread / 32) * (kSumColumns<kDim> * 16) +
         column % kSumColumns<kDim> / 8 * kSumLanes + thread % 32 * 4;
}

}  // namespace fdma::gpu
