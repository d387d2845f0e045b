// What the items of a plan compute, in closed form: tiles and cells by kind.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/kernels/estimate.hpp"
#include "plan/closed_form.hpp"

namespace fdma {

/// Counts the work of items of one plan on a device that computes stripes of rows
/// (DeviceProfile::stripe_rows, skips_dead_keys). A run of tiles is counted in one step, whatever
/// its length.
///
/// Example     WorkCounter counter(plan, 64, true); PlanWork work = counter.of(plan.items[0]);
/// Owner       borrows the plan
/// Cost        the first item O(bitmaps + row intervals); every item O(its segments)
class WorkCounter {
 public:
  WorkCounter(const AttentionPlan& plan, std::int32_t stripe_rows, bool skips_dead_keys);

  PlanWork of(const WorkItem& item) const;

 private:
  void count_formulas();
  PlanWork formula_work(const WorkItem& item) const;
  void count_bitmaps();
  void count_panels();
  std::int64_t computed_rows(std::int64_t rows) const;

  const AttentionPlan& plan_;
  BlockShape tile_;           // rows and columns of the plan's mask, here queries and keys
  std::int64_t stripe_rows_;  // at most block_q
  bool skips_dead_keys_;
  std::int64_t gather_step_;                // keys of a list are computed by so many
  std::vector<std::int64_t> bitmap_cells_;  // computed cells of a tile with this bitmap
  std::vector<std::int64_t> panel_cells_;   // computed cells of a whole row panel
  // Of a parametric plan.
  std::vector<FormulaElement> elements_;
  std::vector<std::size_t> first_row_;  // of each batch element in row_work_
  std::vector<PlanWork> row_work_;      // of whole tile rows, the same for all heads
};

/// Columns (keys, backward queries) whose rows the item reads, once for each tile or chunk that
/// computes them.
std::int64_t columns_read(const PlanWork& work, const WorkItem& item, std::int64_t tile_columns);

/// How far away (0: near, 1: far) the tensors' rows are for an item that reads `num_columns`:
/// between two items of one KV head a worker passes through as many of every other head of the
/// section.
class ColumnDistance {
 public:
  ColumnDistance(const AttentionPlan& plan, double near_bytes, double far_bytes);
  double of(std::int64_t num_columns) const;

 private:
  double bytes_per_column_;  // of all heads that are passed
  double near_bytes_;
  double far_bytes_;
};

/// 0 up to `low`, 1 from `high` on, in between by the logarithm; 0 where both are 0.
double logarithmic_share(double value, double low, double high);

/// Time of an item's work at these costs, keys and values being near; `overlaps_masks`: as
/// KernelCosts.
double work_us(const PlanWork& work, const TileCosts& costs, bool overlaps_masks = false);

}  // namespace fdma
