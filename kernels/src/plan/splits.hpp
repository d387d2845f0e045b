// Planning for few work tiles with long rows: query heads that share a tile, and rows that are
// split over several work tiles. make_plan calls it for backends that pack heads or split rows.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/cost_model.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

inline constexpr std::int32_t kMaxHeadsPerTile = 8;

/// The smallest power of two that holds a group of query heads, at most kMaxHeadsPerTile.
///
/// Example     groups of 1, 3, 7, 12 heads: 1, 4, 8, 8
std::int32_t heads_per_tile_of_group(std::int32_t group_size);

/// Number of heads that share a tile of `tile_rows` rows by the automatic rule. It is
/// heads_per_tile_of_group if that makes at least a tenth fewer work tiles and the heads of every
/// tile have the same mask; otherwise 1. Cost: O(batch * heads_q).
std::int32_t packed_heads(const BlockMask& mask, const AttentionShape& shape,
                          std::int32_t tile_rows);

/// The choice that packed_heads made, with what both ways cost under a full mask.
PlanDecision packing_decision(const BlockMask& mask, const PlanHeader& header,
                              const CostModel& costs, std::int32_t num_workers);

/// A part of a row: tiles [first_tile, first_tile + num_tiles).
struct SplitRun {
  std::int32_t first_tile;
  std::int32_t num_tiles;
  friend bool operator==(const SplitRun&, const SplitRun&) = default;
};

/// Part `index` of `num_split_runs` parts of a row. Sizes differ by one at most, and larger ones
/// come first.
SplitRun split_run_of(std::int32_t num_tiles, std::int32_t num_split_runs, std::int32_t index);

/// Query rows of the partial results of a plan, which combining reads; 0 if no row is split.
std::int64_t combined_rows(const PlanHeader& header, const SegmentPlan& plan);
std::int64_t combined_rows(const PlanHeader& header, const ClosedFormPlan& plan);
std::int64_t combined_rows(const PlanHeader& header, const KvWorklist& lists);

/// Predicted microseconds of a forward plan's work tiles on `num_workers` workers, each of which
/// takes the next work tile when it is free, and of combining the split rows. It is what
/// estimate_plan predicts for both, except that a part of a split row is taken to cost its share of
/// the row's tiles.
double predicted_us(const PlanHeader& header, const SegmentPlan& plan, const CostModel& costs,
                    std::int32_t num_workers);
double predicted_us(const PlanHeader& header, const ClosedFormPlan& plan, const CostModel& costs,
                    std::int32_t num_workers);

/// Sets plan.num_splits, the number of parts into which each row of a closed-form plan is split, by
/// the same prediction: 1 if splitting gains less than LeastGains::split. Returns what was compared.
PlanDecision split_closed_form(const PlanHeader& header, const CostModel& costs,
                               std::int32_t num_workers, ClosedFormPlan& plan);

/// Splits rows of `plan`, whose work tiles are whole, if that reduces predicted_us by at least
/// LeastGains::split; otherwise leaves the plan as it is. Returns what was compared. The work tiles
/// of group i of heads in L2, which are [l2_groups[i], l2_groups[i + 1]) before the split, stay
/// together, longest first.
///
/// Cost: O(work tiles log workers) if workers are busy anyway. Otherwise the same for each part
/// size that is tried, some dozens at most.
PlanDecision split_rows(const PlanHeader& header, std::span<const std::size_t> l2_groups,
                        const CostModel& costs, std::int32_t num_workers, SegmentPlan& plan);

/// Partial results that a launch of the plan leaves in its workspace.
std::int64_t num_partials(const SegmentPlan& plan);
std::int64_t num_partials(const PlanHeader& header, const ClosedFormPlan& plan);

}  // namespace fdma
