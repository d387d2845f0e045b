// Chooses how each group of a mask is computed, and decides what concerns all groups together:
// whether keys are permuted, which costs a launch, and whether kv index lists stay within their
// bytes.
//
// A kv permutation gives tiles of keys that are live together. The few keys that it leaves
// scattered are gathered, too, so that rows of both kinds of tiles cost least. For learned top-k of
// 131,072 keys, w = 2,048, that is 17.4 full tiles a row, against 18.5 with lists alone and 521
// without both.
#include "plan/groups.hpp"

#include <algorithm>
#include <limits>
#include <utility>

#include "fdma/formats/convert.hpp"
#include "plan/regions.hpp"

namespace fdma {
namespace {

// What the work tiles of a group share.
struct GroupUse {
  std::int64_t num_kv_heads = 0;  // of all batch elements, whose query heads have this mask
  bool shares_kv_head = false;    // with another group: then its keys cannot be permuted
};

std::vector<GroupUse> group_uses(const BlockMask& mask, const AttentionShape& shape) {
  std::vector<GroupUse> uses(static_cast<std::size_t>(mask.num_groups()));
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t kv = 0; kv < shape.heads_kv; ++kv) {
      const std::int64_t first_head = kv * shape.group_size();
      const std::int32_t first = group_of(mask, b, first_head);
      ++uses[static_cast<std::size_t>(first)].num_kv_heads;
      for (std::int64_t h = first_head + 1; h < first_head + shape.group_size(); ++h) {
        const std::int32_t other = group_of(mask, b, h);
        if (other == first) continue;
        uses[static_cast<std::size_t>(first)].shares_kv_head = true;
        uses[static_cast<std::size_t>(other)].shares_kv_head = true;
      }
    }
  }
  return uses;
}

// What a plan's options ask for.
struct Ways {
  ColumnMode tiles;           // for keys in the order of the tensors
  ColumnMode ordered;         // for permuted keys
  bool reorders = false;      // where a group's heads can be permuted
  bool is_asked_for = false;  // permute whatever it gains
};

Ways ways_of(const PlanHeader& header, ColumnMode columns) {
  constexpr ColumnMode kScan = ColumnMode::scan;
  const bool is_automatic = columns == ColumnMode::automatic;
  if (header.is_backward()) return {kScan, kScan};
  const BackendTraits& traits = header.backend.traits();
  const bool can_gather =
      std::max(header.shape.head_dim, header.shape.head_dim_v) <= traits.max_gather_head_dim;
  const ColumnMode ordered = can_gather ? ColumnMode::automatic : kScan;
  if (columns == ColumnMode::reorder) return {kScan, ordered, true, true};
  if (!is_automatic) return {columns, kScan};
  return {ordered, ordered, traits.reorders_keys};
}

class GroupsPlanner {
 public:
  GroupsPlanner(const BlockMask& mask, const PlanOptions& options, PlanHeader& header,
                SegmentPlan& plan)
      : mask_(mask),
        header_(header),
        plan_(plan),
        costs_(header.backend.traits().costs),
        ways_(ways_of(header, options.columns)),
        uses_(group_uses(mask, header.shape)),
        max_kv_index_bytes_(options.columns == ColumnMode::automatic
                                ? options.max_kv_index_bytes
                                : std::numeric_limits<std::int64_t>::max()) {}

  Result<std::vector<PlannedGroup>> run() {
    std::vector<GroupChoice> choices;
    for (std::int64_t g = 0; g < mask_.num_groups(); ++g) {
      const bool can_reorder = ways_.reorders && !uses_[static_cast<std::size_t>(g)].shares_kv_head;
      choices.push_back(choose(group_in_tiles(g), ways_, can_reorder));
      if (ways_.reorders && !ways_.is_asked_for) continue;  // all groups are weighed together
      FDMA_TRY_VOID(append(choices.back()));
      choices.clear();
    }
    weigh_permutations(choices);
    for (GroupChoice& choice : choices) FDMA_TRY_VOID(append(choice));
    set_permutations();
    return std::move(planned_);
  }

 private:
  // A transposed mask is already in tiles of the plan.
  SegmentMask group_in_tiles(std::int64_t index) const {
    if (!header_.is_backward()) return segment_of_group(mask_, index, header_.mask_tile());
    return std::get<std::vector<SegmentMask>>(mask_.groups)[static_cast<std::size_t>(index)];
  }

  GroupChoice choose(SegmentMask mask, const Ways& ways, bool can_reorder) const {
    GroupChoice group;
    group.mask = std::move(mask);
    const bool is_automatic = ways.tiles == ColumnMode::automatic;
    const bool is_hopeless = is_automatic && !may_gain(group.mask, costs_);
    group.regions = choose_regions(group.mask, is_hopeless ? ColumnMode::scan : ways.tiles, costs_);
    if (is_automatic && !is_hopeless && !is_worth_gathering(group.regions)) {
      group.regions = choose_regions(group.mask, ColumnMode::scan, costs_);
    }
    if (!can_reorder || is_hopeless || group.mask.column_offsets.empty()) return group;
    group.ordered = permute_by_live_range(group.mask);
    group.permuted_regions = choose_regions(group.ordered.mask, ways.ordered, costs_);
    group.is_permuted.resize(group.regions.rows.size());
    bool is_any = false;
    for (std::size_t row = 0; row < group.is_permuted.size(); ++row) {
      const double cost = group.regions.rows[row].cost;
      const double saved = cost - group.permuted_regions.rows[row].cost;
      const bool is_better = saved > costs_.least_gain * cost;
      group.is_permuted[row] = ways.is_asked_for || is_better;
      if (is_better) group.gain += saved;
      is_any |= group.is_permuted[row];
    }
    if (!is_any) group.drop_permutation();
    return group;
  }

  // Another kernel runs a plan with lists, and its tiles may take longer.
  bool is_worth_gathering(const Regions& regions) const {
    double visited = 0, chosen = 0;
    for (const RowRegions& row : regions.rows) {
      visited += row.tiles_cost;
      chosen += row.cost;
    }
    return chosen < (1 - costs_.least_mask_gain) * visited;
  }

  // Keys are permuted if all work tiles together gain more than that costs.
  void weigh_permutations(std::vector<GroupChoice>& groups) const {
    const auto work_tiles_of_kv_head =
        static_cast<double>(ceil_div(header_.shape.group_size(), header_.heads_per_tile));
    double gain = -costs_.moving;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const double moved = costs_.permuted_key * static_cast<double>(groups[g].ordered.keys.size());
      const double of_kv_head = groups[g].gain * work_tiles_of_kv_head - moved;
      if (of_kv_head <= 0) groups[g].drop_permutation();
      if (groups[g].has_permutation())
        gain += of_kv_head * static_cast<double>(uses_[g].num_kv_heads);
    }
    if (gain > 0) return;
    for (GroupChoice& group : groups) group.drop_permutation();
  }

  Result<void> append(GroupChoice& choice) {
    const std::int64_t bytes = gather_bytes(choice);
    if (bytes > 0 && gather_bytes_ + bytes > max_kv_index_bytes_) {
      choice = choose(std::move(choice.mask), {ColumnMode::scan, ColumnMode::scan}, false);
    } else {
      gather_bytes_ += bytes;
    }
    FDMA_TRY(PlannedGroup group, append_group(choice, header_, plan_));
    planned_.push_back(std::move(group));
    return {};
  }

  static std::int64_t gather_bytes(const GroupChoice& choice) {
    std::int64_t entries = 0;
    for (std::size_t row = 0; row < choice.regions.rows.size(); ++row) {
      const bool is_permuted = choice.has_permutation() && choice.is_permuted[row];
      const Regions& regions = is_permuted ? choice.permuted_regions : choice.regions;
      entries += regions.rows[row].num_gathered;
    }
    return entries * static_cast<std::int64_t>(sizeof(KvIndexEntry));
  }

  // Sets the kv permutation of every (b, KV head).
  void set_permutations() {
    if (plan_.kv_permutations.empty()) return;
    const AttentionShape& shape = header_.shape;
    for (std::int64_t b = 0; b < shape.batch; ++b) {
      for (std::int64_t kv = 0; kv < shape.heads_kv; ++kv) {
        const std::int32_t group = group_of(mask_, b, kv * shape.group_size());
        const std::int32_t order = planned_[static_cast<std::size_t>(group)].order;
        plan_.permutation_of.push_back(order);
        if (order < 0) continue;
        header_.counts.moved_keys +=
            plan_.kv_permutations[static_cast<std::size_t>(order)].num_keys;
      }
    }
  }

  const BlockMask& mask_;
  PlanHeader& header_;
  SegmentPlan& plan_;
  RegionCosts costs_;
  Ways ways_;
  std::vector<GroupUse> uses_;
  std::int64_t max_kv_index_bytes_;
  std::int64_t gather_bytes_ = 0;
  std::vector<PlannedGroup> planned_;
};

}  // namespace

std::int32_t group_of(const BlockMask& mask, std::int64_t b, std::int64_t h) {
  return mask.group(mask.shape.num_batches == 1 ? 0 : b, mask.shape.num_heads == 1 ? 0 : h);
}

Result<std::vector<PlannedGroup>> plan_groups(const BlockMask& mask, const PlanOptions& options,
                                              PlanHeader& header, SegmentPlan& plan) {
  return GroupsPlanner(mask, options, header, plan).run();
}

}  // namespace fdma
