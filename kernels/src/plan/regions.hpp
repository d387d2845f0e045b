// Chooses, by predicted cost, which tiles of a tile row are visited as they are and which give
// their live keys to a kv index list. plan_groups calls it.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/formats/segment_mask.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// The head sizes up to which sm90 gathers.
inline constexpr std::int32_t kSm90GatherHeadDim = 128;

/// Costs of tiles of one kind, in full tiles: of each tile, and of a tile's worth of keys that the
/// tiles compute.
struct RegionCost {
  double tile = 0;
  double keys = 0;
};

/// The costs by which plans for a backend are made.
struct RegionCosts {
  RegionCost full, bitmap, rows, columns;
  double gather = 0;             ///< a tile's worth of the keys of a kv index list
  std::int64_t gather_step = 1;  ///< keys of a list are computed in multiples of this
  double permuted_key = 0;       ///< a key of a kv permutation
  double moving = 0;             ///< permuting keys at all
  /// Share of a row's cost that gathering must save, or its tiles stay as they are
  double least_gain = 0;
  double least_mask_gain = 0;  ///< the same for the whole mask, where `automatic` gathers

  const RegionCost& of(SegmentKind kind) const;
};
RegionCosts region_costs(Backend backend);

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
