// The time of one plan. The work of each work tile (work_tile_counts.hpp) at the profile's costs is
// run by a simulated schedule, and compared with the time that main memory needs for what the work
// tiles read and write (memory_traffic.hpp). A power limit slows long calls. The schedule is therefore simulated at full clocks first, which
// decides how long the call is.
//
// A backward plan is treated the same way. Its work tiles are key tiles over the query tiles that
// see them, and a worker takes those of a group of query heads at once. Gradients of q are added up
// in memory at the same time. On a GPU the kernels before and after handle their accumulators
// (query_passes.hpp).
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "estimate/memory_traffic.hpp"
#include "estimate/work_tile_counts.hpp"
#include "fdma/kernels/estimate.hpp"
#include "plan/closed_form.hpp"
#include "plan/query_passes.hpp"
#include "plan/splits.hpp"

namespace fdma {
namespace {

Error unsupported(std::string message) { return Error{ErrorCode::unsupported, std::move(message)}; }

/// The costs of the plan's tile, which the profile must have.
Result<CostModel> costs_of(const AttentionPlan& plan, const DeviceProfile& profile) {
  const BlockShape tile{plan.heads_per_tile * plan.tile.block_q, plan.tile.block_kv};
  FDMA_TRY(const CostModel costs,
           cost_model(profile, plan.shape, plan.direction, tile, plan.score));
  if (costs.has_tile) return costs;
  std::string shapes;
  for (const TileCosts& each : costs.kernel.tiles) {
    shapes +=
        fmt::format("{}{}x{}", shapes.empty() ? "" : ", ", each.tile.block_q, each.tile.block_kv);
  }
  return unsupported(fmt::format("tile: device profile '{}' has costs for {} ({}, {}), got {}x{}",
                                 profile.name, shapes, to_string(costs.kernel.direction),
                                 to_string(costs.kernel.dtype), tile.block_q, tile.block_kv));
}

void add(PlanWork& sum, const PlanWork& work) {
  for (std::size_t kind = 0; kind < sum.steps.size(); ++kind) {
    sum.steps[kind].tiles += work.steps[kind].tiles;
    sum.steps[kind].cells += work.steps[kind].cells;
  }
}

/// What the times of work tiles depend on beside the plan.
struct WorkTileCosts {
  const DeviceProfile& profile;
  const CostModel& model;
};

/// The time of each work tile, in a backward plan of each group of query heads, whose work tiles
/// are adjacent.
template <class Counter>
std::vector<double> times_of(const PlanHeader& header, const std::vector<WorkTile>& work_tiles,
                             const Counter& counter, const WorkTileCosts& costs, PlanWork& total) {
  const ColumnDistance distance(header, costs.profile.near_bytes, costs.profile.far_bytes);
  std::vector<double> item_us;
  const std::size_t at_once =
      header.is_backward() ? static_cast<std::size_t>(header.shape.group_size()) : 1;
  item_us.reserve(work_tiles.size() / at_once);
  for (std::size_t first = 0; first < work_tiles.size(); first += at_once) {
    PlanWork group;
    double l2_miss_us = 0;
    for (std::size_t i = first; i < std::min(first + at_once, work_tiles.size()); ++i) {
      const PlanWork work = counter.of(work_tiles[i]);
      add(group, work);
      const std::int64_t columns = columns_read(work, work_tiles[i], header.mask_tile().block_kv);
      l2_miss_us +=
          distance.of(columns) * static_cast<double>(columns) * costs.model.tile.far_key_us;
    }
    add(total, group);
    const bool is_split = work_tiles[first].partial != kWholeRow;
    item_us.push_back(costs.model.work_tile_us(group, is_split) + l2_miss_us);
  }
  return item_us;
}

std::vector<double> work_tile_times(const PlanHeader& header, const SegmentPlan& plan,
                                    const WorkTileCosts& costs, PlanWork& total) {
  const WorkCounter counter(header, plan, costs.profile.stripe_rows, costs.profile.skips_dead_keys);
  return times_of(header, plan.work_tiles, counter, costs, total);
}

std::vector<double> work_tile_times(const PlanHeader& header, const ClosedFormPlan& plan,
                                    const WorkTileCosts& costs, PlanWork& total) {
  const ClosedFormWorkCounter counter(header, plan, costs.profile.stripe_rows,
                                      costs.profile.skips_dead_keys);
  return times_of(header, closed_form_work_tiles(header, plan, closed_form_elements(header, plan)),
                  counter, costs, total);
}

/// In kv worklists every tile is computed whole, and what the work tiles of a segment read stays in
/// the cache.
std::vector<double> work_tile_times(const PlanHeader& header, const KvWorklist& lists,
                                    const WorkTileCosts& costs, PlanWork& total) {
  const std::int64_t tile_cells = std::int64_t{kWorklistTile} * kWorklistTile;
  const std::int64_t group_size = header.shape.group_size();
  std::vector<double> item_us;
  item_us.reserve(lists.work_tiles.size());
  for (const KvWorkTile& work_tile : lists.work_tiles) {
    PlanWork work;
    StepWork& full = work.of(PlanSegmentKind::full);
    StepWork& rows = work.of(PlanSegmentKind::rows);
    full.tiles = group_size * (work_tile.full_end - work_tile.full_begin);
    rows.tiles = group_size * (work_tile.end_tile - work_tile.begin_tile) - full.tiles;
    full.cells = full.tiles * tile_cells;
    rows.cells = rows.tiles * tile_cells;
    add(total, work);
    item_us.push_back(costs.model.work_tile_us(work));
  }
  return item_us;
}

bool has_kv_index_lists(const SegmentPlan& plan) { return !plan.kv_index_lists.empty(); }
bool has_kv_index_lists(const ClosedFormPlan& /*plan*/) { return false; }
bool has_kv_index_lists(const KvWorklist& /*lists*/) { return false; }

/// Bytes of the kernels before and after the main one of a backward call.
std::int64_t pass_bytes(const AttentionPlan& plan) {
  if (!plan.backend.traits().has_query_passes || !plan.is_backward()) return 0;
  const auto* const lists = std::get_if<KvWorklist>(&plan.form);
  return query_pass_bytes(plan.shape) +
         (lists == nullptr
              ? 0
              : key_pass_bytes(plan.shape, static_cast<std::int64_t>(lists->accum_keys.size())));
}

/// Keys whose rows are copied before the work tiles run.
std::int64_t num_copied_keys(const AttentionPlan& plan) {
  return plan.is_backward() ? 0 : plan.counts.moved_keys;
}

/// Additional costs of a backward call: shares of the time of its work tiles (KernelCosts).
double extra_us(const PlanHeader& header, const KernelCosts& kernel, const BackwardExtras& extras,
                double makespan_us) {
  if (!header.is_backward()) return 0;
  double share = 0;
  if (extras.is_deterministic) share += kernel.ordered_share;
  if (extras.corrects_delta) share += kernel.correction_share;
  return share * makespan_us;
}

/// The slowdown of long calls by a power limit: the slowdowns of index tiles and of all other work,
/// weighted by their times.
double sustained_slowdown(const KernelCosts& kernel, const TileCosts& costs, const PlanWork& work,
                          double busy_us) {
  if (busy_us <= 0) return kernel.sustained_slowdown;
  const StepWork& index_tiles = work.of(PlanSegmentKind::gather);
  const double tile_cells = static_cast<double>(costs.tile.block_q) * costs.tile.block_kv;
  const double index_tiles_us =
      static_cast<double>(index_tiles.tiles) * costs.gather.tile_us +
      static_cast<double>(index_tiles.cells) / tile_cells * costs.gather.compute_us;
  return kernel.sustained_slowdown +
         index_tiles_us / busy_us * (kernel.gather_slowdown - kernel.sustained_slowdown);
}

void slow_down(Schedule& schedule, double factor) {
  schedule.makespan_us *= factor;
  schedule.busy_us *= factor;
  schedule.longest_item_us *= factor;
}

}  // namespace

Result<PlanEstimate> estimate_plan(const AttentionPlan& plan, const DeviceProfile& profile,
                                   const BackwardExtras& extras) {
  FDMA_TRY(const CostModel costs, costs_of(plan, profile));
  const KernelCosts& kernel = costs.kernel;
  const bool gathers =
      std::visit([](const auto& form) { return has_kv_index_lists(form); }, plan.form);
  if (gathers && !costs.can_gather()) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("plan: has kv index lists, but the {} kernel of device profile '{}' "
                             "does not gather; make it with columns = scan",
                             to_string(plan.direction), profile.name)};
  }
  PlanEstimate estimate;
  const WorkTileCosts work_tile_costs{profile, costs};
  const std::vector<double> item_us = std::visit(
      [&](const auto& form) { return work_tile_times(plan, form, work_tile_costs, estimate.work); },
      plan.form);
  estimate.schedule = simulate_schedule(item_us, profile.num_workers, kernel.ahead_us);
  const double burst_makespan_us = estimate.schedule.makespan_us;
  const double slowdown =
      profile.sustained_us > 0
          ? sustained_slowdown(kernel, costs.tile, estimate.work, estimate.schedule.busy_us)
          : 0;
  slow_down(estimate.schedule, 1 + slowdown * logarithmic_share(burst_makespan_us, profile.burst_us,
                                                                profile.sustained_us));
  estimate.launch_us = kernel.launch_us;
  estimate.memory_bytes =
      work_tile_bytes(plan, profile.num_workers) + bias_bytes(plan, estimate.work.cells());
  estimate.memory_us = static_cast<double>(estimate.memory_bytes) / profile.memory_bytes_per_us;
  const std::int64_t combined =
      std::visit([&](const auto& form) { return combined_rows(plan, form); }, plan.form);
  estimate.combine_us = costs.combine_us(static_cast<double>(combined));
  estimate.move_us = costs.move_us(static_cast<double>(num_copied_keys(plan)));
  estimate.query_us = static_cast<double>(pass_bytes(plan)) / profile.memory_bytes_per_us;
  estimate.extra_us = extra_us(plan, kernel, extras, estimate.schedule.makespan_us);
  const double outside_us =
      estimate.launch_us + estimate.move_us + estimate.query_us + estimate.combine_us;
  const double work_tiles_us = estimate.schedule.makespan_us + estimate.extra_us;
  estimate.time_us = outside_us + std::max(work_tiles_us, estimate.memory_us);
  const double sustained_makespan_us = burst_makespan_us * (1 + slowdown);
  const double sustained_work_tiles_us =
      sustained_makespan_us + extra_us(plan, kernel, extras, sustained_makespan_us);
  estimate.sustained_time_us = outside_us + std::max(sustained_work_tiles_us, estimate.memory_us);
  return estimate;
}

}  // namespace fdma
