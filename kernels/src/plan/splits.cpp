// Splits rows where work tiles are few and long. Workers take work tiles as they become free, so
// most of them idle while the last ones work. Splitting the keys of a row over several work tiles
// balances the load. It costs a little more for each work tile, and a kernel that combines the
// partial results. Both costs are predicted by the cost model:
//
//     time = makespan of the work tiles in their order + combining
//
// A worker is taken to take a work tile when it is free. KernelCosts::ahead_us was fitted on calls
// in which each worker takes many; with one or two for each worker it would give a second one to a
// worker while others idle.
//
// Every size of the largest part that is tried is longest / n for some n. Rows are cut into as few
// even parts as that size allows, so that short rows stay whole. The search ends where even a
// perfect schedule would not be better than the best one found, because finer parts only cost more.
//
// Example     132 workers of an H200, 4 rows of 1024 tiles: 1.4 ms; 33 parts of 31 or 32 tiles
//             each: 48 us, of which 3 us combine them.
// Not worth   512 rows of 64 tiles: 4 rounds against 3.88 rounds if they could be cut at will,
//             which gains less than the parts cost.
#include "plan/splits.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "fdma/kernels/estimate.hpp"
#include "plan/closed_form.hpp"
#include "plan/forms.hpp"
#include "plan/pattern_rows.hpp"

namespace fdma {
namespace {

/// Within this share of a perfect schedule, finer parts are not tried.
constexpr double kEnough = 0.01;
constexpr std::int64_t kMostPartialsPerWorker = 32;
// For closed-form plans, whose rows are all cut alike.
constexpr std::int32_t kLeastPartTiles = 4;  ///< of the longest row
/// Rounds of whole work tiles; with more rounds rows are not cut
constexpr std::int64_t kMostRounds = 8;

// The tiles of a segment of a work tile's row.
std::int64_t tiles_of(const PlanSegment& segment, const WorkTile& work_tile) {
  return segment.end_tile - segment.first_tile +
         std::int64_t{work_tile.step} * (segment.step_end - segment.step_first);
}

// The cost of the tiles of a work tile's whole row to one worker.
double row_us(const SegmentPlan& plan, const PatternSums<std::int64_t>& full_entries,
              const CostModel& costs, const WorkTile& work_tile) {
  WorkCost cost;
  const auto add_tiles = [&](PlanSegmentKind kind, std::int64_t num_tiles) {
    const auto tiles = static_cast<double>(num_tiles);
    cost += costs.tiles(kind, tiles, tiles * costs.tile_columns);
  };
  for (std::int32_t s = work_tile.first_segment;
       s < work_tile.first_segment + work_tile.num_segments; ++s) {
    const PlanSegment& segment = plan.segments[static_cast<std::size_t>(s)];
    if (segment.kind == PlanSegmentKind::permutation) continue;
    if (segment.kind == PlanSegmentKind::gather) {
      cost += costs.index_list(
          plan.kv_index_lists[static_cast<std::size_t>(segment.data_index)].num_entries);
      continue;
    }
    const std::int64_t tiles = tiles_of(segment, work_tile);
    if (segment.kind != PlanSegmentKind::pattern) {
      add_tiles(segment.kind, tiles);
      continue;
    }
    const std::int64_t first =
        segment.first_tile + std::int64_t{work_tile.step} * segment.step_first;
    const std::int64_t full = full_entries.of(
        plan.patterns[static_cast<std::size_t>(segment.data_index)], first, first + tiles);
    add_tiles(PlanSegmentKind::full, full);
    add_tiles(PlanSegmentKind::bitmap, tiles - full);
  }
  return costs.us(cost);
}

// The same for a tile row of a closed-form plan.
double row_us(const CostModel& costs, const ClosedFormWalk& walk) {
  const auto full = static_cast<double>(walk.tile_run(0).num_full()) + walk.tile_run(1).num_full();
  const double partial = walk.num_tiles() - full;
  return costs.us(costs.tiles(PlanSegmentKind::full, full, full * costs.tile_columns) +
                  costs.tiles(PlanSegmentKind::closed_form, partial, partial * costs.tile_columns));
}

// Existing query rows of the tile, of all its heads.
std::int64_t rows_of(const PlanHeader& header, std::int32_t batch, std::int32_t q_tile) {
  return std::min<std::int64_t>(
             header.tile.block_q,
             header.shape.q_len(batch) - std::int64_t{q_tile} * header.tile.block_q) *
         header.heads_per_tile;
}

struct Row {
  double us;  ///< of its tiles
  std::int32_t num_tiles;
  std::int64_t num_rows;  ///< queries
};

std::int32_t num_split_runs(std::int32_t num_tiles, std::int32_t largest) {
  return std::max(1, static_cast<std::int32_t>(ceil_div(num_tiles, largest)));
}

// A work tile with `split_run_tiles` tiles of a row that is cut into `split_runs` parts.
double split_run_us(const CostModel& costs, const Row& row, std::int32_t split_run_tiles,
                    std::int32_t split_runs) {
  const bool is_split = split_runs > 1;
  const double us = is_split ? row.us * split_run_tiles / row.num_tiles : row.us;
  return costs.work_tile_us(WorkCost{}, is_split) + us;
}

constexpr const char* kBusy = "workers are busy anyway";
constexpr const char* kFiner = "finer parts cost more than they gain";

// Whole rows against parts; `parts` says which parts, or why there is no cost.
PlanDecision split_decision(std::optional<double> whole_us, std::optional<double> split_us,
                            std::string parts, double least_gain) {
  return {"split",
          {{"whole rows", whole_us, {}}, {"parts of rows", split_us, std::move(parts)}},
          0,
          fmt::format("parts gain at least {:g} %", 100 * least_gain)};
}

struct Prediction {
  double us;          ///< makespan and combining
  double perfect_us;  ///< the same if work could be shared at will
};

// Cuts the rows of each group of heads in L2, longest first, into parts of at most `largest` tiles.
class Splitter {
 public:
  Splitter(const PlanHeader& header, const SegmentPlan& plan,
           std::span<const std::size_t> l2_groups, const CostModel& costs, std::int32_t num_workers)
      : l2_groups_(l2_groups),
        costs_(costs),
        num_workers_(num_workers),
        least_gain_(header.backend.traits().least_gains.split) {
    rows_.reserve(plan.work_tiles.size());
    PatternSums<std::int64_t> full_entries;
    add_full_entries(plan, full_entries);
    for (const WorkTile& work_tile : plan.work_tiles) {
      rows_.push_back({row_us(plan, full_entries, costs, work_tile), work_tile.num_tiles,
                       rows_of(header, work_tile.batch, work_tile.q_tile)});
      longest_ = std::max(longest_, work_tile.num_tiles);
    }
  }

  const std::vector<Row>& rows() const { return rows_; }

  /// The best size of the largest part, 0 if rows stay whole, and what was compared.
  std::int32_t best_size(PlanDecision& decision) {
    // Workers finish within the longest work tile of each other (Graham), so no more than that can
    // be gained.
    double sum_us = 0, longest_us = 0;
    for (const Row& row : rows_) {
      const double us = split_run_us(costs_, row, row.num_tiles, 1);
      sum_us += us;
      longest_us = std::max(longest_us, us);
    }
    if (longest_us <= least_gain_ * sum_us / num_workers_) {
      decision = split_decision({}, {}, kBusy, least_gain_);
      return 0;
    }
    const Prediction whole = *predict(longest_);
    double best_us = (1 - least_gain_) * whole.us;
    std::int32_t best = 0, size = longest_;
    if (whole.perfect_us > best_us) {
      decision = split_decision(whole.us, {}, kBusy, least_gain_);
      return 0;
    }
    std::optional<double> split_us;  // the least of those tried
    std::int32_t split_size = 0;
    // With many work tiles sizes change in steps of an eighth, because each trial takes longer.
    const std::int64_t coarse = static_cast<std::int64_t>(rows_.size()) > 8 * num_workers_ ? 8 : 64;
    for (std::int64_t n = 2; size > 1; n += 1 + n / coarse) {
      const auto next = static_cast<std::int32_t>(ceil_div(longest_, n));
      if (next == size) continue;
      size = next;
      const std::optional<Prediction> tried = predict(size);
      if (!tried || tried->perfect_us > best_us) break;
      if (!split_us || tried->us <= *split_us) {
        split_us = tried->us;
        split_size = size;
      }
      if (tried->us > best_us) continue;
      best = size;
      best_us = tried->us;
      if (best_us < (1 + kEnough) * tried->perfect_us) break;
    }
    decision = split_decision(whole.us, split_us,
                              split_us ? fmt::format("up to {} tiles each", split_size) : kFiner,
                              least_gain_);
    decision.taken = best == 0 ? 0 : 1;
    return best;
  }

 private:
  // Nothing if there would be too many partial results.
  std::optional<Prediction> predict(std::int32_t largest) {
    work_tiles_us_.clear();
    std::int64_t partials = 0, partial_rows = 0;
    double sum_us = 0;
    for (std::size_t s = 0; s + 1 < l2_groups_.size(); ++s) {
      const std::size_t first = work_tiles_us_.size();
      for (std::size_t i = l2_groups_[s]; i < l2_groups_[s + 1]; ++i) {
        const Row& row = rows_[i];
        const std::int32_t split_runs = num_split_runs(row.num_tiles, largest);
        for (std::int32_t p = 0; p < split_runs; ++p) {
          work_tiles_us_.push_back(split_run_us(
              costs_, row, split_run_of(row.num_tiles, split_runs, p).num_tiles, split_runs));
          sum_us += work_tiles_us_.back();
        }
        if (split_runs == 1) continue;
        partials += split_runs;
        partial_rows += row.num_rows * split_runs;
      }
      std::sort(work_tiles_us_.begin() + static_cast<std::ptrdiff_t>(first), work_tiles_us_.end(),
                std::greater<>());
    }
    if (partials > kMostPartialsPerWorker * num_workers_) return {};
    const double combine_us = costs_.combine_us(static_cast<double>(partial_rows));
    return Prediction{simulate_schedule(work_tiles_us_, num_workers_).makespan_us + combine_us,
                      sum_us / num_workers_ + combine_us};
  }

  std::span<const std::size_t> l2_groups_;
  const CostModel& costs_;
  std::int32_t num_workers_;
  double least_gain_;
  std::vector<Row> rows_;
  std::int32_t longest_ = 1;
  std::vector<double> work_tiles_us_;
};

// Work tiles where `heads` query heads share a tile.
std::int64_t num_packed(const AttentionShape& shape, std::int32_t tile_rows, std::int32_t heads) {
  std::int64_t num_work_tiles = 0;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    num_work_tiles += ceil_div(shape.q_len(b), tile_rows / heads) * shape.heads_kv *
                      ceil_div(shape.group_size(), heads);
  }
  return num_work_tiles;
}

// Whether the heads of every tile have the same mask.
bool heads_share_masks(const BlockMask& mask, const AttentionShape& shape, std::int32_t heads) {
  if (mask.shape.num_heads == 1) return true;
  for (std::int64_t b = 0; b < mask.shape.num_batches; ++b) {
    for (std::int64_t h = 0; h < shape.heads_q; ++h) {
      const std::int64_t first = h - h % shape.group_size() % heads;
      if (mask.group(b, h) != mask.group(b, first)) return false;
    }
  }
  return true;
}

}  // namespace

std::int32_t heads_per_tile_of_group(std::int32_t group_size) {
  std::int32_t heads = 1;
  while (heads < group_size && heads < kMaxHeadsPerTile) heads *= 2;
  return heads;
}

std::int32_t packed_heads(const BlockMask& mask, const AttentionShape& shape,
                          std::int32_t tile_rows) {
  const std::int32_t heads = heads_per_tile_of_group(shape.group_size());
  if (num_packed(shape, tile_rows, heads) * 10 > num_packed(shape, tile_rows, 1) * 9) return 1;
  return heads_share_masks(mask, shape, heads) ? heads : 1;
}

PlanDecision packing_decision(const BlockMask& mask, const PlanHeader& header,
                              const CostModel& costs, std::int32_t num_workers) {
  const AttentionShape& shape = header.shape;
  const std::int32_t tile_rows = header.heads_per_tile * header.tile.block_q;
  const std::int32_t heads = heads_per_tile_of_group(shape.group_size());
  const auto tiles =
      static_cast<double>(ceil_div(shape.max_kv_len(), std::int64_t{header.tile.block_kv}));
  const double row_us =
      costs.work_tile_us(costs.tiles(PlanSegmentKind::full, tiles, tiles * costs.tile_columns));
  const auto alternative = [&](std::int32_t each) {
    return PlanAlternative{
        fmt::format("{} head{}", each, each == 1 ? "" : "s"),
        static_cast<double>(num_packed(shape, tile_rows, each)) * row_us / num_workers,
        {}};
  };
  PlanDecision decision{"heads of a tile", {alternative(1)}, 0, {}};
  if (heads == 1) return decision;
  decision.alternatives.push_back(alternative(heads));
  decision.taken = header.heads_per_tile == 1 ? 0 : 1;
  decision.rule = "more heads gain at least 10 % under a full mask";
  if (!heads_share_masks(mask, shape, heads)) {
    decision.alternatives.back() = {decision.alternatives.back().name, {}, "their masks differ"};
  }
  return decision;
}

SplitRun split_run_of(std::int32_t num_tiles, std::int32_t num_split_runs, std::int32_t index) {
  const std::int32_t size = num_tiles / num_split_runs, larger = num_tiles % num_split_runs;
  return {index * size + std::min(index, larger), size + (index < larger ? 1 : 0)};
}

std::int64_t combined_rows(const PlanHeader& header, const ClosedFormPlan& plan) {
  if (plan.num_splits == 1) return 0;
  std::int64_t num_queries = 0;
  for (std::int64_t b = 0; b < header.shape.batch; ++b) num_queries += header.shape.q_len(b);
  return num_queries * header.shape.heads_q * plan.num_splits;
}

std::int64_t combined_rows(const PlanHeader& /*header*/, const KvWorklist& /*lists*/) { return 0; }

std::int64_t combined_rows(const PlanHeader& header, const SegmentPlan& plan) {
  std::int64_t rows = 0;
  for (const SplitRow& row : plan.split_rows) {
    rows += rows_of(header, row.batch, row.q_tile) * row.num_partials;
  }
  return rows;
}

double predicted_us(const PlanHeader& header, const ClosedFormPlan& plan, const CostModel& costs,
                    std::int32_t num_workers) {
  const std::vector<ClosedFormElement> elements = closed_form_elements(header, plan);
  std::vector<std::vector<Row>> rows(elements.size());
  for (std::size_t b = 0; b < elements.size(); ++b) {
    for (std::int64_t i = 0; i < ceil_div(elements[b].num_rows, header.tile.block_q); ++i) {
      const ClosedFormWalk walk = walk_of(elements[b], header.tile, i);
      rows[b].push_back({row_us(costs, walk), walk.num_tiles(), 0});
    }
  }
  std::vector<double> work_tiles_us;
  for (const WorkTile& work_tile : closed_form_work_tiles(header, plan, elements)) {
    const Row& row =
        rows[static_cast<std::size_t>(work_tile.batch)][static_cast<std::size_t>(work_tile.q_tile)];
    const bool is_split = work_tile.partial != kWholeRow;
    work_tiles_us.push_back(split_run_us(costs, {row.us, std::max(row.num_tiles, 1), 0},
                                         work_tile.num_tiles, is_split ? plan.num_splits : 1));
  }
  return simulate_schedule(work_tiles_us, num_workers).makespan_us +
         costs.combine_us(static_cast<double>(combined_rows(header, plan)));
}

double predicted_us(const PlanHeader& header, const SegmentPlan& plan, const CostModel& costs,
                    std::int32_t num_workers) {
  std::vector<double> work_tiles_us;
  work_tiles_us.reserve(plan.work_tiles.size());
  PatternSums<std::int64_t> full_entries;
  add_full_entries(plan, full_entries);
  for (const WorkTile& work_tile : plan.work_tiles) {
    std::int32_t of_row = 0;
    for (std::int32_t s = work_tile.first_segment;
         s < work_tile.first_segment + work_tile.num_segments; ++s) {
      of_row += static_cast<std::int32_t>(
          tiles_of(plan.segments[static_cast<std::size_t>(s)], work_tile));
    }
    const bool is_split = work_tile.partial != kWholeRow;
    work_tiles_us.push_back(split_run_us(costs,
                                         {row_us(plan, full_entries, costs, work_tile), of_row, 0},
                                         work_tile.num_tiles, is_split ? 2 : 1));
  }
  return simulate_schedule(work_tiles_us, num_workers).makespan_us +
         costs.combine_us(static_cast<double>(combined_rows(header, plan)));
}

PlanDecision split_closed_form(const PlanHeader& header, const CostModel& costs,
                               std::int32_t num_workers, ClosedFormPlan& plan) {
  const double least_gain = header.backend.traits().least_gains.split;
  std::int32_t longest = 0;
  double rows_us = 0;  // of one set of heads
  for (const ClosedFormElement& element : closed_form_elements(header, plan)) {
    for (std::int64_t i = 0; i < ceil_div(element.num_rows, header.tile.block_q); ++i) {
      const ClosedFormWalk walk = walk_of(element, header.tile, i);
      longest = std::max(longest, walk.num_tiles());
      rows_us += row_us(costs, walk);
    }
  }
  ClosedFormPlan tried = plan;
  tried.num_splits = plan.num_splits = 1;
  const std::int64_t num_work_tiles = count_work_tiles(header, tried);
  if (num_work_tiles == 0 || num_work_tiles >= kMostRounds * num_workers) {
    return split_decision({}, {}, kBusy, least_gain);
  }
  const std::int64_t most = std::min<std::int64_t>(
      longest / kLeastPartTiles, num_workers * kMostPartialsPerWorker / num_work_tiles);
  const double whole_us = predicted_us(header, tried, costs, num_workers);
  double best_us = whole_us * (1 - least_gain);
  std::optional<double> split_us;  // the least of those tried
  std::int32_t split_into = 1;
  const std::int64_t num_sets =
      header.shape.heads_kv * ceil_div(header.shape.group_size(), header.heads_per_tile);
  for (std::int32_t splits = 2; splits <= most; ++splits) {
    tried.num_splits = splits;
    const double perfect_us =
        (rows_us * static_cast<double>(num_sets) +
         costs.work_tile_us(WorkCost{}, true) * static_cast<double>(num_work_tiles * splits)) /
            num_workers +
        costs.combine_us(static_cast<double>(combined_rows(header, tried)));
    if (perfect_us >= best_us) break;
    const double us = predicted_us(header, tried, costs, num_workers);
    if (!split_us || us < *split_us) {
      split_us = us;
      split_into = splits;
    }
    if (us >= best_us) continue;
    best_us = us;
    plan.num_splits = splits;
  }
  PlanDecision decision = split_decision(
      whole_us, split_us, split_us ? fmt::format("{} of each", split_into) : kFiner, least_gain);
  decision.taken = plan.num_splits == 1 ? 0 : 1;
  return decision;
}

PlanDecision split_rows(const PlanHeader& header, std::span<const std::size_t> l2_groups,
                        const CostModel& costs, std::int32_t num_workers, SegmentPlan& plan) {
  Splitter splitter(header, plan, l2_groups, costs, num_workers);
  PlanDecision decision;
  const std::int32_t largest = splitter.best_size(decision);
  if (largest == 0) return decision;
  struct Ranked {
    double us;
    WorkTile work_tile;
  };
  std::vector<WorkTile> work_tiles;
  std::vector<Ranked> ranked;
  std::int32_t next_partial = 0;
  for (std::size_t s = 0; s + 1 < l2_groups.size(); ++s) {
    ranked.clear();
    for (std::size_t i = l2_groups[s]; i < l2_groups[s + 1]; ++i) {
      const WorkTile& row = plan.work_tiles[i];
      const std::int32_t split_runs = num_split_runs(row.num_tiles, largest);
      for (std::int32_t p = 0; p < split_runs; ++p) {
        const SplitRun split_run = split_run_of(row.num_tiles, split_runs, p);
        WorkTile work_tile = row;
        work_tile.first_tile = split_run.first_tile;
        work_tile.num_tiles = split_run.num_tiles;
        if (split_runs > 1) work_tile.partial = next_partial + p;
        ranked.push_back(
            {split_run_us(costs, splitter.rows()[i], split_run.num_tiles, split_runs), work_tile});
      }
      if (split_runs == 1) continue;
      plan.split_rows.push_back({row.batch, row.head, row.q_tile, next_partial, split_runs});
      next_partial += split_runs;
    }
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const Ranked& a, const Ranked& b) { return a.us > b.us; });
    for (const Ranked& each : ranked) work_tiles.push_back(each.work_tile);
  }
  plan.work_tiles = std::move(work_tiles);
  return decision;
}

std::int64_t num_partials(const PlanHeader& header, const ClosedFormPlan& plan) {
  if (plan.num_splits == 1) return 0;
  const std::int64_t sets = ceil_div(header.shape.group_size(), header.heads_per_tile);
  return header.shape.batch * ceil_div(header.shape.max_q_len(), header.tile.block_q) *
         header.shape.heads_kv * sets * plan.num_splits;
}

std::int64_t num_partials(const SegmentPlan& plan) {
  std::int64_t sum = 0;
  for (const SplitRow& row : plan.split_rows) sum += row.num_partials;
  return sum;
}

}  // namespace fdma
