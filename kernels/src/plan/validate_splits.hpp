// Validates that the work tiles of a plan cover its tile rows exactly once, whole or in parts.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/kernels/plan.hpp"

namespace fdma {

/// Checks, work tile by work tile, that every (batch, head set, query tile) occurs once, and that
/// work tiles of a split row write its partials and walk its tiles in their order.
///
/// Owner       borrows header and plan; shape and tile are valid
/// Cost        O(work tiles + rows)
class RowCover {
 public:
  RowCover(const PlanHeader& header, const SegmentPlan& plan);

  /// Called before any work tile. Returns an internal error that names the first wrong split row.
  Result<void> check_split_rows();
  /// Returns an internal error that says how work tile `index` does not fit. Its batch, head and
  /// q_tile are inside the shape; its segments have `row_tiles` tiles.
  Result<void> add(std::size_t index, std::int64_t row_tiles);
  /// Called after all work tiles. Returns an internal error that names the first row that is not
  /// covered.
  Result<void> finish() const;

 private:
  struct SplitRange {
    std::int32_t first_tile = -1;
    std::int32_t num_tiles = 0;
    std::int64_t row_tiles = 0;
    std::int32_t first_segment = 0, num_segments = 0, step = 0, num_entries = 0;
  };

  std::size_t place_of(std::int32_t batch, std::int32_t head, std::int32_t q_tile) const;
  bool is_first_head(std::int32_t head) const;

  const PlanHeader& header_;
  const SegmentPlan& plan_;
  std::int32_t sets_of_group_;
  std::vector<std::int64_t> first_of_batch_;
  std::vector<std::int32_t> split_row_of_;  ///< by place: an index, kWhole or kSeen
  std::vector<SplitRange> parts_;           ///< by partial
};

}  // namespace fdma
