// Chooses, by predicted cost, which tiles of a tile row are visited as they are and which give
// their live keys to a kv index list. plan_groups calls it.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/formats/segment_mask.hpp"
#include "fdma/kernels/cost_model.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// The choice for one tile row: what is gathered, and what it costs one worker.
struct RowRegions {
  double tiles_us = 0;            ///< if every tile is visited
  double us = 0;                  ///< as chosen; both exclude the work tile's own cost
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
///              cheaper by least_gain (LeastGains::row)
///
/// A kernel that cannot gather (CostModel::can_gather) gathers what `gather` asks for alone.
///
/// In a mask with patterns the numbers of each row are those of expand_patterns(mask), except that
/// a full tile of a pattern counts keys past the last one, too. Which tiles of patterns are gathered
/// is not said.
///
/// Cost: O(keys + intervals + tiles), and stored partial cells / 64. The tiles of a pattern
/// segment cost as much as one.
Regions choose_regions(const SegmentMask& mask, ColumnMode mode, const CostModel& costs,
                       double least_gain);

/// False if gathering cannot save least_gain (LeastGains::mask) of what the mask costs, even if its
/// partial tiles were free. Cost: O(tile rows and their segments), without a look at keys.
bool may_gain(const SegmentMask& mask, const CostModel& costs, double least_gain);

}  // namespace fdma
