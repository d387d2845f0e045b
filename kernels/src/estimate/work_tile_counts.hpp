// The work of a plan's work tiles: numbers of tiles and cells by kind. Estimates use it.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/kernels/estimate.hpp"
#include "plan/closed_form.hpp"
#include "plan/pattern_rows.hpp"

namespace fdma {

/// How a device computes tiles of a plan: in stripes of rows (DeviceProfile::stripe_rows), with or
/// without the keys that no row of the tile sees (skips_dead_keys).
struct TileComputing {
  TileComputing(const PlanHeader& header, std::int32_t stripe_rows, bool skips_dead_keys);

  /// Rows that are computed where `rows` of a tile exist.
  std::int64_t computed_rows(std::int64_t rows) const;

  BlockShape tile;           ///< rows and columns of the plan's mask, here queries and keys
  std::int64_t stripe_rows;  ///< at most block_q
  bool skips_dead_keys;
  std::int32_t heads_per_tile;
};

/// Counts the work of work tiles of one plan of segments. A run of tiles is counted in one step,
/// whatever its length.
///
/// Example     WorkCounter counter(plan, segments, 64, true);
///             PlanWork work = counter.of(segments.work_tiles[0]);
/// Owner       borrows header and plan
/// Cost        the first work tile O(bitmaps + row intervals); every work tile O(its segments)
class WorkCounter {
 public:
  WorkCounter(const PlanHeader& header, const SegmentPlan& plan, std::int32_t stripe_rows,
              bool skips_dead_keys);

  PlanWork of(const WorkTile& work_tile) const;

 private:
  void count_bitmaps();
  void count_panels();
  /// Adds tiles [first, end) of a pattern, of `rows` computed rows and kv_len keys.
  void add_pattern(const PlanPattern& pattern, std::int64_t first, std::int64_t end,
                   std::int64_t rows, std::int64_t kv_len, PlanWork& work) const;

  const PlanHeader& header_;
  const SegmentPlan& plan_;
  TileComputing computing_;
  std::int64_t gather_step_;                // keys of a list are computed in multiples of this
  std::vector<std::int64_t> bitmap_cells_;  // computed cells of a tile with this bitmap
  std::vector<std::int64_t> panel_cells_;   // computed cells of a whole row panel
  PatternSums<std::int64_t> full_entries_;
  PatternSums<std::int64_t> entry_cells_;  // computed cells of tiles with bitmaps; skips_dead_keys
};

/// The same for the work tiles of a closed-form plan (closed_form_work_tiles).
///
/// Owner       borrows the plan
/// Cost        the first work tile O(tile rows of all batch elements); every other O(1), unless its
///             row is split
class ClosedFormWorkCounter {
 public:
  ClosedFormWorkCounter(const PlanHeader& header, const ClosedFormPlan& plan,
                        std::int32_t stripe_rows, bool skips_dead_keys);

  PlanWork of(const WorkTile& work_tile) const;

 private:
  PlanWork count(const WorkTile& work_tile) const;

  TileComputing computing_;
  std::vector<ClosedFormElement> elements_;
  std::vector<std::size_t> first_row_;  // of each batch element in row_work_
  std::vector<PlanWork> row_work_;      // of whole tile rows, the same for all heads
};

/// Columns (keys, in backward plans queries) whose rows the work tile reads, counted once for each
/// tile or index tile that computes them.
std::int64_t columns_read(const PlanWork& work, const WorkTile& work_tile,
                          std::int64_t tile_columns);

/// The share of L2 misses (0: all hits, 1: all misses) for the tensors' rows of a work tile that
/// reads `num_columns` columns. Between two work tiles of one KV head a worker passes through as
/// many work tiles of every other head of the group in L2.
class ColumnDistance {
 public:
  ColumnDistance(const PlanHeader& header, double near_bytes, double far_bytes);
  double of(std::int64_t num_columns) const;

 private:
  double bytes_per_column_;  // of all heads in between
  double near_bytes_;
  double far_bytes_;
};

/// 0 up to `low`, 1 from `high` on, and logarithmic in between; 0 where both are 0.
double logarithmic_share(double value, double low, double high);

}  // namespace fdma
