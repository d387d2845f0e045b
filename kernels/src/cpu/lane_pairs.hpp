// The query and the key that meet in each lane of a vector, for the policies of the CPU kernels.
#pragma once

#include <cstddef>
#include <cstdint>

namespace fdma::cpu {

/// The pairs of one vector. Lanes are rows of the plan's mask: lane i is the pair (q + i, k) in a
/// forward work tile, and (q, k + i) in a backward one.
template <bool kLanesAreKeys>
struct LanePairs {
  static constexpr bool kAreKeys = kLanesAreKeys;

  std::int64_t q, k;   ///< of lane 0; positions in the tensors
  std::size_t column;  ///< of the chunk: that of k, in a backward work tile that of q
  std::size_t row;     ///< of lane 0 in the tile
};

/// The pairs of a chunk's columns with the rows of a tile.
template <bool kLanesAreKeys>
struct ChunkPairs {
  const std::int32_t* columns;  ///< keys, in a backward work tile queries
  std::size_t first_column;     ///< the column that is computed as number 0
  std::int64_t first_row;       ///< of the tile, in the tensors

  LanePairs<kLanesAreKeys> at(std::size_t index, std::size_t row) const {
    const std::size_t column = first_column + index;
    const std::int64_t in_lanes = first_row + static_cast<std::int64_t>(row);
    if constexpr (kLanesAreKeys) {
      return {columns[column], in_lanes, column, row};
    } else {
      return {in_lanes, columns[column], column, row};
    }
  }
};

}  // namespace fdma::cpu
