// The time of one plan: the work of each item (item_work.hpp) at the profile's costs, run by a
// simulated schedule, against what main memory needs for the tensors. A power limit slows long
// calls: the schedule is simulated at full clocks, which decides how long the call is.
//
// Backward. Items are key tiles: each (batch element, query head, key tile) walks the query tiles
// that see it. How many do is the sum of a difference array over the same segments, so that it
// costs no more than forward, whatever the lengths. Tiles count whole: a backward kernel is assumed
// to skip tiles, not keys; rows that forward splits are whole.
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "fdma/kernels/estimate.hpp"
#include "item_work.hpp"
#include "plan_formula.hpp"
#include "plan_splits.hpp"

namespace fdma {
namespace {

Error unsupported(std::string message) { return Error{ErrorCode::unsupported, std::move(message)}; }

Result<TileCosts> costs_of_tile(const KernelCosts& kernel, BlockShape tile,
                                const std::string& device) {
  std::string shapes;
  for (const TileCosts& costs : kernel.tiles) {
    if (costs.tile == tile) return costs;
    shapes +=
        fmt::format("{}{}x{}", shapes.empty() ? "" : ", ", costs.tile.block_q, costs.tile.block_kv);
  }
  return unsupported(fmt::format("tile: device profile '{}' has costs for {} ({}, {}), got {}x{}",
                                 device, shapes, to_string(kernel.direction),
                                 to_string(kernel.dtype), tile.block_q, tile.block_kv));
}

void add(PlanWork& sum, const PlanWork& work) {
  for (std::size_t kind = 0; kind < sum.steps.size(); ++kind) {
    sum.steps[kind].tiles += work.steps[kind].tiles;
    sum.steps[kind].cells += work.steps[kind].cells;
  }
}

std::vector<WorkItem> items_of(const AttentionPlan& plan) {
  return plan.is_parametric() ? formula_items(plan, formula_elements(plan)) : plan.items;
}

std::vector<double> forward_items(const AttentionPlan& plan, const DeviceProfile& profile,
                                  const TileCosts& costs, bool overlaps_masks, PlanWork& total) {
  const WorkCounter counter(plan, profile.stripe_rows, profile.skips_dead_keys);
  const KeyDistance distance(plan.shape, profile.near_bytes, profile.far_bytes);
  std::vector<double> item_us;
  const std::vector<WorkItem> items = items_of(plan);
  item_us.reserve(items.size());
  for (const WorkItem& item : items) {
    const PlanWork work = counter.of(item);
    add(total, work);
    const std::int64_t keys = keys_read(work, item, plan.tile.block_kv);
    const double far_us = distance.of(keys) * static_cast<double>(keys) * costs.far_key_us;
    item_us.push_back(work_us(work, costs, overlaps_masks) + far_us);
  }
  return item_us;
}

/// Query tiles of each kind that see each key tile, of one batch element and head.
class KeyTileCounts {
 public:
  void begin(std::int64_t num_tiles) {
    for (std::vector<std::int64_t>& changes : changes_) {
      changes.assign(static_cast<std::size_t>(num_tiles) + 1, 0);
    }
  }
  void add(const FormulaWalk& walk) {
    const auto add = [this](PlanSegmentKind kind, std::int32_t first, std::int32_t end) {
      std::vector<std::int64_t>& changes = changes_[static_cast<std::size_t>(kind)];
      ++changes[static_cast<std::size_t>(first)];
      --changes[static_cast<std::size_t>(end)];
    };
    for (const int index : {0, 1}) {
      const FormulaWalk::Stretch& stretch = walk.stretch(index);
      add(PlanSegmentKind::bitmap, stretch.first, stretch.end);
      if (stretch.num_full() == 0) continue;
      const std::int32_t first = std::max(stretch.first, stretch.full_first);
      add(PlanSegmentKind::full, first, first + stretch.num_full());
      add(PlanSegmentKind::bitmap, first + stretch.num_full(), first);
    }
  }
  void add(const AttentionPlan& plan, const WorkItem& item) {
    for (std::int64_t s = item.first_segment; s < item.first_segment + item.num_segments; ++s) {
      const PlanSegment& segment = plan.segments[static_cast<std::size_t>(s)];
      std::vector<std::int64_t>& changes = changes_[static_cast<std::size_t>(segment.kind)];
      const std::int64_t first = segment.first_tile + std::int64_t{item.step} * segment.step_first;
      const std::int64_t end = segment.end_tile + std::int64_t{item.step} * segment.step_end;
      ++changes[static_cast<std::size_t>(first)];
      --changes[static_cast<std::size_t>(end)];
    }
  }
  /// Calls visit(work) for each key tile.
  template <class Visit>
  void finish(std::int64_t tile_cells, Visit&& visit) const {
    PlanWork work;
    for (std::size_t tile = 0; tile + 1 < changes_[0].size(); ++tile) {
      for (std::size_t kind = 0; kind < changes_.size(); ++kind) {
        work.steps[kind].tiles += changes_[kind][tile];
        work.steps[kind].cells = work.steps[kind].tiles * tile_cells;
      }
      visit(work);
    }
  }

 private:
  std::array<std::vector<std::int64_t>, 5> changes_;
};

std::vector<double> backward_items(const AttentionPlan& plan, const TileCosts& costs,
                                   bool overlaps_masks, PlanWork& total) {
  const AttentionShape& shape = plan.shape;
  const std::vector<FormulaElement> elements =
      plan.is_parametric() ? formula_elements(plan) : std::vector<FormulaElement>();
  // Items by (batch element, head): their order in the plan does not matter here.
  std::vector<std::vector<std::int32_t>> items_of_pair(
      static_cast<std::size_t>(shape.batch * shape.heads_q));
  for (std::size_t i = 0; i < plan.items.size(); ++i) {
    const WorkItem& item = plan.items[i];
    if (item.first_tile > 0) continue;
    items_of_pair[static_cast<std::size_t>(item.batch * std::int64_t{shape.heads_q} + item.head)]
        .push_back(static_cast<std::int32_t>(i));
  }
  const std::int64_t tile_cells =
      std::int64_t{plan.heads_per_tile} * plan.tile.block_q * plan.tile.block_kv;
  std::vector<double> item_us;
  KeyTileCounts counts;
  for (std::size_t pair = 0; pair < items_of_pair.size(); ++pair) {
    const auto b = static_cast<std::int64_t>(pair) / shape.heads_q;
    counts.begin(ceil_div(shape.kv_len(b), plan.tile.block_kv));
    for (const std::int32_t i : items_of_pair[pair]) {
      counts.add(plan, plan.items[static_cast<std::size_t>(i)]);
    }
    const std::int64_t head_in_group = static_cast<std::int64_t>(pair) % shape.group_size();
    if (plan.is_parametric() && head_in_group % plan.heads_per_tile == 0) {
      const FormulaElement& element = elements[static_cast<std::size_t>(b)];
      for (std::int64_t i = 0; i < ceil_div(element.num_rows, plan.tile.block_q); ++i) {
        counts.add(walk_of(element, plan.tile, i));
      }
    }
    counts.finish(tile_cells, [&](const PlanWork& work) {
      add(total, work);
      item_us.push_back(work_us(work, costs, overlaps_masks));
    });
  }
  std::sort(item_us.begin(), item_us.end(), std::greater<>());
  return item_us;
}

/// Moving rows of keys and values, each read and written.
double move_us(const AttentionPlan& plan, const DeviceProfile& profile) {
  constexpr double kLaunchUs = 3;
  if (profile.backend == Backend::cpu || plan.counts.moved_keys == 0) return 0;
  const AttentionShape& shape = plan.shape;
  const std::int64_t key_bytes = std::int64_t{shape.head_dim} * size_bytes(shape.k_dtype) +
                                 std::int64_t{shape.head_dim_v} * size_bytes(shape.v_dtype);
  return kLaunchUs +
         2 * static_cast<double>(plan.counts.moved_keys * key_bytes) / profile.memory_bytes_per_us;
}

void slow_down(Schedule& schedule, double factor) {
  schedule.makespan_us *= factor;
  schedule.busy_us *= factor;
  schedule.longest_item_us *= factor;
}

/// Every tensor once, and the plan. Backward reads and writes twice as many, and adds to a float32
/// gradient of q.
std::int64_t memory_bytes(const AttentionPlan& plan, Direction direction) {
  const AttentionShape& shape = plan.shape;
  const std::int64_t in_q = std::int64_t{shape.head_dim} * size_bytes(shape.q_dtype);
  const std::int64_t in_out = std::int64_t{shape.head_dim_v} * size_bytes(shape.out_dtype);
  const std::int64_t in_kv = std::int64_t{shape.head_dim} * size_bytes(shape.k_dtype) +
                             std::int64_t{shape.head_dim_v} * size_bytes(shape.v_dtype);
  const std::int64_t lse = 4;
  const std::int64_t bias = plan.score.kind == ScoreKind::key_bias ? 4 : 0;
  const bool is_forward = direction == Direction::forward;
  const std::int64_t per_query =
      is_forward ? in_q + in_out + lse
                 : 2 * in_q + 2 * in_out + 2 * lse + 8 * std::int64_t{shape.head_dim};
  const std::int64_t per_key = (is_forward ? 1 : 2) * (in_kv + bias);
  std::int64_t bytes = plan.size_bytes();
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    bytes +=
        shape.q_len(b) * shape.heads_q * per_query + shape.kv_len(b) * shape.heads_kv * per_key;
  }
  return bytes;
}

}  // namespace

std::int64_t PlanWork::tiles() const {
  std::int64_t sum = 0;
  for (const StepWork& each : steps) sum += each.tiles;
  return sum;
}

std::int64_t PlanWork::cells() const {
  std::int64_t sum = 0;
  for (const StepWork& each : steps) sum += each.cells;
  return sum;
}

Result<PlanEstimate> estimate_plan(const AttentionPlan& plan, const DeviceProfile& profile,
                                   Direction direction) {
  FDMA_TRY(const KernelCosts kernel,
           kernel_costs(profile, direction, plan.shape.k_dtype,
                        (plan.shape.head_dim + plan.shape.head_dim_v) / 2.0));
  const BlockShape tile{plan.heads_per_tile * plan.tile.block_q, plan.tile.block_kv};
  FDMA_TRY(const TileCosts costs, costs_of_tile(kernel, tile, profile.name));
  if (!plan.gather_lists.empty() && !costs.can_gather()) {
    return Error{ErrorCode::invalid_argument,
                 fmt::format("plan: has gather lists, but the {} kernel of device profile '{}' "
                             "does not gather; make it with columns = scan",
                             to_string(direction), profile.name)};
  }
  if (!plan.key_orders.empty() && direction == Direction::backward) {
    return Error{ErrorCode::invalid_argument,
                 "plan: has key orders, which backward kernels do not read; make it with columns = "
                 "scan"};
  }
  PlanEstimate estimate;
  const std::vector<double> item_us =
      direction == Direction::forward
          ? forward_items(plan, profile, costs, kernel.overlaps_masks, estimate.work)
          : backward_items(plan, costs, kernel.overlaps_masks, estimate.work);
  estimate.schedule = simulate_schedule(item_us, profile.num_workers, kernel.ahead_us);
  slow_down(estimate.schedule, 1 + kernel.sustained_slowdown *
                                       logarithmic_share(estimate.schedule.makespan_us,
                                                         profile.burst_us, profile.sustained_us));
  estimate.launch_us = kernel.launch_us;
  estimate.memory_bytes = memory_bytes(plan, direction);
  estimate.memory_us = static_cast<double>(estimate.memory_bytes) / profile.memory_bytes_per_us;
  if (direction == Direction::forward) {
    estimate.combine_us = combine_tiles(plan) * (costs.full.tile_us + costs.full.compute_us);
  }
  estimate.move_us = move_us(plan, profile);
  estimate.time_us = estimate.launch_us + estimate.move_us +
                     std::max(estimate.schedule.makespan_us, estimate.memory_us) +
                     estimate.combine_us;
  return estimate;
}

}  // namespace fdma
