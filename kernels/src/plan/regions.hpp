// Chooses, by predicted cost, which tiles of a tile row are visited as they are and which give
// their live keys to a kv index list. plan_groups calls it.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/formats/segment_mask.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// The costs of tiles of one kind.
const RegionCost& costs_of_kind(const RegionCosts& costs, SegmentKind kind);

/// The choice for one tile row: what is gathered, and what it costs.
struct RowRegions {
  double tiles_cost = 0;          ///< if every tile is visited
  double cost = 0;                ///< as chosen; both exclude the work tile's own cost
  std::int64_t num_scanned = 0;   ///< live keys of column tiles that are visited
  std::int64_t num_gathered = 0;  ///< entries of its kv index list; 0: none
  std::int64_t first_word = 0;    ///< offset of its bits, where it has a list
  friend bool operator==(const RowRegions&, const RowRegions&) = default;
};

/// The choice for all tile rows of a mask.
struct Regions {
  std::vector<RowRegions> rows;
  std::vector<std::uint64_t> gathered;  ///< bit `col` of a row's words: the tile is gathered

  bool is_gathered(std::int32_t row, std::int64_t col) const {
    const RowRegions& of_row = rows[static_cast<std::size_t>(row)];
    return of_row.num_gathered > 0 &&
           (gathered[static_cast<std::size_t>(of_row.first_word + col / 64)] >> (col % 64) & 1) !=
               0;
  }
};

/// Chooses for each tile row of `mask`.
///
///   scan       nothing is gathered
///   gather     every column tile, and of the other partial tiles those that this makes cheaper
///   automatic  the partial tiles whose entries cost less in a list, where that makes the row
///              cheaper by least_gain
///
/// Cost: O(keys + intervals + tiles), and stored partial cells / 64.
Regions choose_regions(const SegmentMask& mask, ColumnMode mode, const RegionCosts& costs);

/// False if gathering cannot save least_mask_gain of what the mask costs, even if its partial tiles
/// were free. Cost: O(tile rows and their segments), without a look at keys.
bool may_gain(const SegmentMask& mask, const RegionCosts& costs);

}  // namespace fdma
