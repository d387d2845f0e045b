// Chooses how each group of a mask is computed, and decides what concerns all groups together:
// whether keys are permuted, which costs a launch, and whether kv index lists stay within their
// bytes.
//
// A kv permutation gives tiles of keys that are live together. The few keys that it leaves
// scattered are gathered, too, so that rows of both kinds of tiles cost least. For learned top-k of
// 131,072 keys, w = 2,048, that is 17.4 full tiles a row, against 18.5 with lists alone and 521
// without both.
#include "plan/groups.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <string>
#include <utility>

#include "fdma/base/parallel.hpp"
#include "fdma/formats/convert.hpp"
#include "plan/kv_index_lists.hpp"
#include "plan/regions.hpp"

namespace fdma {
namespace {

// What the work tiles of a group share.
struct GroupUse {
  std::int64_t num_work_tiles = 0;  // of each tile row, of all batch elements and heads
  std::int64_t num_kv_heads = 0;    // of all batch elements, whose query heads have this mask
  bool shares_kv_head = false;      // with another group: then its keys cannot be permuted
};

std::vector<GroupUse> group_uses(const BlockMask& mask, const AttentionShape& shape,
                                 std::int32_t heads_per_tile) {
  std::vector<GroupUse> uses(static_cast<std::size_t>(mask.num_groups()));
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    for (std::int64_t kv = 0; kv < shape.heads_kv; ++kv) {
      const std::int64_t first_head = kv * shape.group_size();
      const std::int32_t first = group_of(mask, b, first_head);
      ++uses[static_cast<std::size_t>(first)].num_kv_heads;
      for (std::int32_t h = 0; h < shape.group_size(); h += heads_per_tile) {
        ++uses[static_cast<std::size_t>(group_of(mask, b, first_head + h))].num_work_tiles;
      }
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

Ways ways_of(const PlanHeader& header, const CostModel& costs, ColumnMode columns) {
  constexpr ColumnMode kScan = ColumnMode::scan;
  const bool is_automatic = columns == ColumnMode::automatic;
  if (header.is_backward()) return {kScan, kScan};
  const BackendTraits& traits = header.backend.traits();
  const bool can_gather =
      costs.can_gather() &&
      std::max(header.shape.head_dim, header.shape.head_dim_v) <= traits.max_gather_head_dim;
  const ColumnMode ordered = can_gather ? ColumnMode::automatic : kScan;
  if (columns == ColumnMode::reorder) return {kScan, ordered, true, true};
  if (!is_automatic) return {columns, kScan};
  return {ordered, ordered, traits.reorders_keys};
}

class GroupsPlanner {
 public:
  GroupsPlanner(const BlockMask& mask, const PlanOptions& options, const CostModel& costs,
                std::int32_t num_workers, bool keeps_patterns, PlanHeader& header,
                SegmentPlan& plan)
      : mask_(mask),
        keeps_patterns_(keeps_patterns),
        header_(header),
        plan_(plan),
        costs_(costs),
        num_workers_(num_workers),
        least_gains_(header.backend.traits().least_gains),
        ways_(ways_of(header, costs, options.columns)),
        uses_(group_uses(mask, header.shape, header.heads_per_tile)),
        columns_(options.columns),
        max_kv_index_bytes_(options.columns == ColumnMode::automatic
                                ? options.max_kv_index_bytes
                                : std::numeric_limits<std::int64_t>::max()) {}

  Result<std::vector<PlannedGroup>> run() {
    std::vector<GroupChoice> choices;
    const auto num_groups = static_cast<std::size_t>(mask_.num_groups());
    const auto num_at_once = static_cast<std::size_t>(max_concurrency());
    for (std::size_t g = 0; g < num_groups; g += num_at_once) {
      const std::size_t first = choices.size();
      choices.resize(first + std::min(num_at_once, num_groups - g));
      parallel_for(first, choices.size(), [&](std::size_t i) {
        const std::size_t group = g + i - first;
        choices[i] = choose(group_in_tiles(static_cast<std::int64_t>(group)), ways_,
                            ways_.reorders && !uses_[group].shares_kv_head);
      });
      for (std::size_t i = first; i < choices.size(); ++i) {
        considered_.add(choices[i], uses_[g + i - first]);
        considered_.add_order(choices[i], uses_[g + i - first]);
      }
      if (ways_.reorders && !ways_.is_asked_for) continue;  // all groups are weighed together
      for (GroupChoice& choice : choices) FDMA_TRY_VOID(append(choice));
      choices.clear();
    }
    weigh_permutations(choices);
    if (std::any_of(choices.begin(), choices.end(),
                    [](const GroupChoice& each) { return each.has_permutation(); })) {
      considered_.forget_orders();  // those that do not pay by themselves are dropped
      for (std::size_t g = 0; g < choices.size(); ++g) considered_.add_order(choices[g], uses_[g]);
    }
    reserve(choices);
    for (GroupChoice& choice : choices) FDMA_TRY_VOID(append(choice));
    set_permutations();
    if (!header_.is_backward()) header_.report.decisions.push_back(decision());
    return std::move(planned_);
  }

 private:
  // A transposed mask is already in tiles of the plan.
  SegmentMask group_in_tiles(std::int64_t index) const {
    if (!header_.is_backward()) {
      SegmentMask group = segment_of_group(mask_, index, header_.mask_tile());
      return keeps_patterns_ ? std::move(group) : expand_patterns(group);
    }
    return std::get<std::vector<SegmentMask>>(mask_.groups)[static_cast<std::size_t>(index)];
  }

  GroupChoice choose(SegmentMask mask, const Ways& ways, bool can_reorder) const {
    GroupChoice group;
    group.mask = std::move(mask);
    const bool is_automatic = ways.tiles == ColumnMode::automatic;
    const bool is_hopeless = is_automatic && !may_gain(group.mask, costs_, least_gains_.mask);
    group.was_weighed = !is_hopeless;
    group.regions = regions_of(group.mask, is_hopeless ? ColumnMode::scan : ways.tiles);
    for (const RowRegions& row : group.regions.rows) {
      group.scan_us += row.tiles_us;
      group.list_us += row.us;
    }
    // Another kernel runs a plan with lists, and its tiles may take longer.
    if (is_automatic && !is_hopeless && group.list_us >= (1 - least_gains_.mask) * group.scan_us) {
      group.regions = regions_of(group.mask, ColumnMode::scan);
    }
    if (!can_reorder || is_hopeless || group.mask.column_offsets.empty()) return group;
    group.ordered = permute_by_live_range(group.mask);
    group.permuted_regions = regions_of(group.ordered.mask, ways.ordered);
    group.is_permuted.resize(group.regions.rows.size());
    bool is_any = false;
    for (std::size_t row = 0; row < group.is_permuted.size(); ++row) {
      const double us = group.regions.rows[row].us;
      const double saved_us = us - group.permuted_regions.rows[row].us;
      const bool is_better = saved_us > least_gains_.row * us;
      group.is_permuted[row] = ways.is_asked_for || is_better;
      if (is_better) group.gain_us += saved_us;
      is_any |= group.is_permuted[row];
    }
    if (!is_any) group.drop_permutation();
    return group;
  }

  Regions regions_of(const SegmentMask& mask, ColumnMode mode) const {
    return choose_regions(mask, mode, costs_, least_gains_.row);
  }

  // Keys are permuted if all work tiles together gain more than moving the keys costs, for which
  // all workers wait.
  void weigh_permutations(std::vector<GroupChoice>& groups) const {
    const auto work_tiles_of_kv_head =
        static_cast<double>(ceil_div(header_.shape.group_size(), header_.heads_per_tile));
    double gain_us = 0, num_keys = 0;
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const auto keys = static_cast<double>(groups[g].ordered.keys.size());
      const double gain_of_kv_head_us = groups[g].gain_us * work_tiles_of_kv_head;
      if (gain_of_kv_head_us <= num_workers_ * costs_.kernel.moved_key_us * keys) {
        groups[g].drop_permutation();
      }
      if (!groups[g].has_permutation()) continue;
      const auto num_kv_heads = static_cast<double>(uses_[g].num_kv_heads);
      gain_us += gain_of_kv_head_us * num_kv_heads;
      num_keys += keys * num_kv_heads;
    }
    if (gain_us > num_workers_ * costs_.move_us(num_keys)) return;
    for (GroupChoice& group : groups) group.drop_permutation();
  }

  // Lists may be most of a plan: they are not to be moved while more of them come.
  void reserve(const std::vector<GroupChoice>& choices) {
    std::int64_t bytes = 0, num_entries = 0;
    for (const GroupChoice& choice : choices) {
      const std::int64_t of_group = gather_bytes(choice);
      if (of_group == 0 || bytes + of_group > max_kv_index_bytes_) continue;
      bytes += of_group;
      num_entries += of_group / static_cast<std::int64_t>(sizeof(KvIndexEntry)) +
                     std::ssize(choice.regions.rows) * kKvIndexAlignment;
    }
    if (num_entries > 0) reserve_entries(plan_.kv_index_entries, num_entries);
  }

  Result<void> append(GroupChoice& choice) {
    const std::int64_t bytes = gather_bytes(choice);
    if (bytes > 0 && gather_bytes_ + bytes > max_kv_index_bytes_) {
      considered_.exceeds_bytes = true;
      choice = choose(std::move(choice.mask), {ColumnMode::scan, ColumnMode::scan}, false);
    } else {
      if (bytes > 0 && choice.mask.has_patterns()) {  // kv index lists name single tiles
        choice = choose(expand_patterns(choice.mask), ways_, false);
      }
      gather_bytes_ += bytes;
      considered_.num_with_lists += bytes > 0 ? 1 : 0;
    }
    considered_.num_permuted += choice.has_permutation() ? 1 : 0;
    FDMA_TRY(PlannedGroup group, append_group(choice, header_, plan_));
    planned_.push_back(std::move(group));
    return {};
  }

  // What was considered, and what was taken for most groups.
  PlanDecision decision() const {
    const Considered& seen = considered_;
    const double reorder_us =
        seen.ordered_us / num_workers_ + costs_.move_us(seen.num_ordered_keys);
    const auto cost = [&](double us) { return std::optional<double>(us / num_workers_); };
    PlanDecision made{"columns", {}, 0, {}};
    if (columns_ != ColumnMode::automatic) {
      const bool is_reorder = columns_ == ColumnMode::reorder;
      made.alternatives = {
          {std::string(to_string(columns_)),
           is_reorder && seen.num_ordered > 0 ? std::optional(reorder_us) : cost(seen.list_us),
           "asked for"}};
      return made;
    }
    made.alternatives = {{"scan", cost(seen.scan_us), {}}, {"gather", cost(seen.list_us), {}}};
    PlanAlternative& gather = made.alternatives.back();
    if (ways_.tiles == ColumnMode::scan) {
      gather = {"gather", {}, "the kernel does not gather"};
    } else if (seen.num_weighed == 0) {
      gather = {
          "gather", {}, fmt::format("cannot gain {:g} % of the mask", 100 * least_gains_.mask)};
    } else if (seen.exceeds_bytes) {
      gather.reason = "lists exceed max_kv_index_bytes";
    }
    if (ways_.reorders) {
      made.alternatives.push_back(
          seen.num_ordered > 0
              ? PlanAlternative{"reorder", reorder_us, {}}
              : PlanAlternative{"reorder", {}, "no keys with query intervals of their own"});
    }
    made.taken = seen.num_permuted > 0 ? 2 : seen.num_with_lists > 0 ? 1 : 0;
    const std::int64_t num_alike = made.taken == 2   ? seen.num_permuted
                                   : made.taken == 1 ? seen.num_with_lists
                                                     : mask_.num_groups();
    if (num_alike < mask_.num_groups()) {
      made.alternatives[made.taken].reason =
          fmt::format("for {} of {} masks", num_alike, mask_.num_groups());
    }
    made.rule = fmt::format("gains at least {:g} % of a row, lists {:g} % of the mask",
                            100 * least_gains_.row, 100 * least_gains_.mask);
    return made;
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

  // Sums over all work tiles of what each way costs one worker.
  struct Considered {
    double scan_us = 0, list_us = 0, ordered_us = 0, num_ordered_keys = 0;
    std::int64_t num_weighed = 0, num_ordered = 0;      // groups
    std::int64_t num_with_lists = 0, num_permuted = 0;  // groups, as taken
    bool exceeds_bytes = false;

    void add(const GroupChoice& group, const GroupUse& use) {
      const auto times = static_cast<double>(use.num_work_tiles);
      scan_us += times * group.scan_us;
      list_us += times * group.list_us;
      num_weighed += group.was_weighed ? 1 : 0;
    }
    void forget_orders() {
      ordered_us = num_ordered_keys = 0;
      num_ordered = 0;
    }
    void add_order(const GroupChoice& group, const GroupUse& use) {
      double us = 0;
      for (std::size_t row = 0; row < group.regions.rows.size(); ++row) {
        const bool is_permuted = group.has_permutation() && group.is_permuted[row];
        us += (is_permuted ? group.permuted_regions : group.regions).rows[row].us;
      }
      ordered_us += static_cast<double>(use.num_work_tiles) * us;
      if (!group.has_permutation()) return;
      ++num_ordered;
      num_ordered_keys +=
          static_cast<double>(group.ordered.keys.size()) * static_cast<double>(use.num_kv_heads);
    }
  };

  const BlockMask& mask_;
  bool keeps_patterns_;
  PlanHeader& header_;
  SegmentPlan& plan_;
  const CostModel& costs_;
  std::int32_t num_workers_;
  LeastGains least_gains_;
  Ways ways_;
  std::vector<GroupUse> uses_;
  ColumnMode columns_;
  Considered considered_;
  std::int64_t max_kv_index_bytes_;
  std::int64_t gather_bytes_ = 0;
  std::vector<PlannedGroup> planned_;
};

}  // namespace

std::int32_t group_of(const BlockMask& mask, std::int64_t b, std::int64_t h) {
  return mask.group(mask.shape.num_batches == 1 ? 0 : b, mask.shape.num_heads == 1 ? 0 : h);
}

Result<std::vector<PlannedGroup>> plan_groups(const BlockMask& mask, const PlanOptions& options,
                                              const CostModel& costs, std::int32_t num_workers,
                                              PlanHeader& header, SegmentPlan& plan) {
  const PlanHeader header_before = header;
  FDMA_TRY(std::vector<PlannedGroup> groups,
           GroupsPlanner(mask, options, costs, num_workers, true, header, plan).run());
  if (plan.kv_index_lists.empty() || plan.patterns.empty())
    return Result<std::vector<PlannedGroup>>(std::move(groups));
  // Some groups gather. Kernels that do know no patterns, so those of the others are written out.
  header = header_before;
  plan = SegmentPlan();
  return GroupsPlanner(mask, options, costs, num_workers, false, header, plan).run();
}

}  // namespace fdma
