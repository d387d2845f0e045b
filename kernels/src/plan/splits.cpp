// Splits rows where work tiles are few and long. Workers take work tiles as they become free, so
// most of them idle while the last ones work. Splitting the keys of a row over several work tiles
// balances the load. It costs a little more for each work tile, and a kernel that combines the
// partial results. Both costs are predicted in full tiles (docs/performance.md: partial tiles cost
// 1.1, a work tile 0.9 beside its tiles):
//
//     time = makespan of the work tiles in their order + combining
//
// Every size of the largest part that is tried is longest / n for some n. Rows are cut into as few
// even parts as that size allows, so that short rows stay whole. The search ends where even a
// perfect schedule would not be better than the best one found, because finer parts only cost more.
//
// Example     132 workers, 4 rows of 1024 tiles: 1025 tiles of time; 33 parts of 31 or 32 tiles
//             each: 33.2 and 2.1 for combining.
// Not worth   512 rows of 64 tiles: 4 rounds of 64.9 against 3.88 rounds if they could be cut at
//             will, which gains less than the parts cost.
#include "plan/splits.hpp"

#include <algorithm>
#include <functional>
#include <optional>

#include "fdma/kernels/estimate.hpp"
#include "plan/closed_form.hpp"
#include "plan/forms.hpp"

namespace fdma {
namespace {

constexpr double kPartialTile = 1.1;
constexpr double kWholeWorkTile = 0.9;
constexpr double kSplitWorkTile = 1.2;  ///< a split work tile writes its result in float32
constexpr double kCombine = 2;          ///< launch and latency of combining: about 3 us
constexpr double kCombineRow = 1e-4;    ///< a query row of a partial result, read by all workers
constexpr double kLeastGain = 0.03;
/// Within this share of a perfect schedule, finer parts are not tried
constexpr double kEnough = 0.01;
constexpr std::int64_t kMostPartialsPerWorker = 32;
// For closed-form plans, whose rows are all cut alike.
constexpr std::int32_t kLeastPartTiles = 4;  ///< of the longest row
/// Rounds of whole work tiles; with more rounds rows are not cut
constexpr std::int64_t kMostRounds = 8;

// Cost of the tiles of a row in full tiles.
double tiles_cost(const SegmentPlan& plan, const WorkTile& work_tile) {
  double cost = 0;
  for (std::int32_t s = work_tile.first_segment;
       s < work_tile.first_segment + work_tile.num_segments; ++s) {
    const PlanSegment& segment = plan.segments[static_cast<std::size_t>(s)];
    const std::int64_t tiles =
        segment.end_tile - segment.first_tile +
        std::int64_t{work_tile.step} * (segment.step_end - segment.step_first);
    cost += static_cast<double>(tiles) * (segment.kind == PlanSegmentKind::full ? 1 : kPartialTile);
  }
  return std::max(cost, 1.0);  // a work tile without keys computes one tile of none
}

// Existing query rows of the tile, of all its heads.
std::int64_t rows_of(const PlanHeader& header, std::int32_t batch, std::int32_t q_tile) {
  return std::min<std::int64_t>(
             header.tile.block_q,
             header.shape.q_len(batch) - std::int64_t{q_tile} * header.tile.block_q) *
         header.heads_per_tile;
}

struct Row {
  double tiles;  ///< cost
  std::int32_t num_tiles;
  std::int64_t num_rows;  ///< queries
};

std::int32_t num_split_runs(std::int32_t num_tiles, std::int32_t largest) {
  return std::max(1, static_cast<std::int32_t>(ceil_div(num_tiles, largest)));
}

double split_run_cost(const Row& row, std::int32_t split_run_tiles, std::int32_t split_runs) {
  if (split_runs == 1) return row.tiles + kWholeWorkTile;
  return row.tiles * split_run_tiles / row.num_tiles + kSplitWorkTile;
}

struct Prediction {
  double time;          ///< makespan and combining
  double perfect_time;  ///< the same if work could be shared at will
};

// Cuts the rows of each group of heads in L2, longest first, into parts of at most `largest` tiles.
class Splitter {
 public:
  Splitter(const PlanHeader& header, const SegmentPlan& plan,
           std::span<const std::size_t> l2_groups, std::int32_t num_workers)
      : l2_groups_(l2_groups), num_workers_(num_workers) {
    rows_.reserve(plan.work_tiles.size());
    for (const WorkTile& work_tile : plan.work_tiles) {
      rows_.push_back({tiles_cost(plan, work_tile), work_tile.num_tiles,
                       rows_of(header, work_tile.batch, work_tile.q_tile)});
      longest_ = std::max(longest_, work_tile.num_tiles);
    }
  }

  const std::vector<Row>& rows() const { return rows_; }

  /// The best size of the largest part; 0 if rows stay whole.
  std::int32_t best_size() {
    // Workers finish within the longest work tile of each other (Graham), so no more than that can
    // be gained.
    double sum = 0, longest_cost = 0;
    for (const Row& row : rows_) {
      sum += row.tiles + kWholeWorkTile;
      longest_cost = std::max(longest_cost, row.tiles + kWholeWorkTile);
    }
    if (longest_cost <= kLeastGain * sum / num_workers_) return 0;
    const Prediction whole = *predict(longest_);
    double best_time = (1 - kLeastGain) * whole.time;
    std::int32_t best = 0, size = longest_;
    if (whole.perfect_time > best_time) return 0;
    // With many work tiles sizes change in steps of an eighth, because each trial takes longer.
    const std::int64_t coarse = static_cast<std::int64_t>(rows_.size()) > 8 * num_workers_ ? 8 : 64;
    for (std::int64_t n = 2; size > 1; n += 1 + n / coarse) {
      const auto next = static_cast<std::int32_t>(ceil_div(longest_, n));
      if (next == size) continue;
      size = next;
      const std::optional<Prediction> tried = predict(size);
      if (!tried || tried->perfect_time > best_time) break;
      if (tried->time > best_time) continue;
      best = size;
      best_time = tried->time;
      if (best_time < (1 + kEnough) * tried->perfect_time) break;
    }
    return best;
  }

 private:
  // Nothing if there would be too many partial results.
  std::optional<Prediction> predict(std::int32_t largest) {
    costs_.clear();
    double combine = 0;
    std::int64_t partials = 0;
    double sum = 0;
    for (std::size_t s = 0; s + 1 < l2_groups_.size(); ++s) {
      const std::size_t first = costs_.size();
      for (std::size_t i = l2_groups_[s]; i < l2_groups_[s + 1]; ++i) {
        const Row& row = rows_[i];
        const std::int32_t split_runs = num_split_runs(row.num_tiles, largest);
        for (std::int32_t p = 0; p < split_runs; ++p) {
          costs_.push_back(split_run_cost(row, split_run_of(row.num_tiles, split_runs, p).num_tiles,
                                          split_runs));
          sum += costs_.back();
        }
        if (split_runs == 1) continue;
        partials += split_runs;
        combine += kCombineRow * static_cast<double>(row.num_rows * split_runs);
      }
      std::sort(costs_.begin() + static_cast<std::ptrdiff_t>(first), costs_.end(),
                std::greater<>());
    }
    if (partials > kMostPartialsPerWorker * num_workers_) return {};
    if (partials > 0) combine += kCombine;
    return Prediction{simulate_schedule(costs_, num_workers_).makespan_us + combine,
                      sum / num_workers_ + combine};
  }

  std::span<const std::size_t> l2_groups_;
  std::int32_t num_workers_;
  std::vector<Row> rows_;
  std::int32_t longest_ = 1;
  std::vector<double> costs_;
};

}  // namespace

std::int32_t heads_per_tile_of_group(std::int32_t group_size) {
  std::int32_t heads = 1;
  while (heads < group_size && heads < kMaxHeadsPerTile) heads *= 2;
  return heads;
}

std::int32_t packed_heads(const BlockMask& mask, const AttentionShape& shape,
                          std::int32_t tile_rows) {
  const std::int32_t group = shape.group_size();
  const std::int32_t heads = heads_per_tile_of_group(group);
  std::int64_t num_work_tiles = 0, num_packed = 0;
  for (std::int64_t b = 0; b < shape.batch; ++b) {
    num_work_tiles += ceil_div(shape.q_len(b), tile_rows) * group;
    num_packed += ceil_div(shape.q_len(b), tile_rows / heads) * ceil_div(group, heads);
  }
  if (num_packed * 10 > num_work_tiles * 9) return 1;
  if (mask.shape.num_heads == 1) return heads;
  for (std::int64_t b = 0; b < mask.shape.num_batches; ++b) {
    for (std::int64_t h = 0; h < shape.heads_q; ++h) {
      const std::int64_t first = h - h % group % heads;
      if (mask.group(b, h) != mask.group(b, first)) return 1;
    }
  }
  return heads;
}

SplitRun split_run_of(std::int32_t num_tiles, std::int32_t num_split_runs, std::int32_t index) {
  const std::int32_t size = num_tiles / num_split_runs, larger = num_tiles % num_split_runs;
  return {index * size + std::min(index, larger), size + (index < larger ? 1 : 0)};
}

double combine_tiles(const PlanHeader& header, const ClosedFormPlan& plan) {
  if (plan.num_splits == 1) return 0;
  std::int64_t num_queries = 0;
  for (std::int64_t b = 0; b < header.shape.batch; ++b) num_queries += header.shape.q_len(b);
  return kCombine +
         kCombineRow * static_cast<double>(num_queries * header.shape.heads_q * plan.num_splits);
}

double combine_tiles(const PlanHeader& /*header*/, const KvWorklist& /*lists*/) { return 0; }

double combine_tiles(const PlanHeader& header, const SegmentPlan& plan) {
  double tiles = plan.split_rows.empty() ? 0 : kCombine;
  for (const SplitRow& row : plan.split_rows) {
    tiles += kCombineRow *
             static_cast<double>(rows_of(header, row.batch, row.q_tile) * row.num_partials);
  }
  return tiles;
}

double predicted_tiles(const PlanHeader& header, const ClosedFormPlan& plan,
                       std::int32_t num_workers) {
  std::vector<double> costs;
  for (const WorkTile& work_tile :
       closed_form_work_tiles(header, plan, closed_form_elements(header, plan))) {
    costs.push_back(std::max(work_tile.num_tiles, 1) +
                    (work_tile.partial == kWholeRow ? kWholeWorkTile : kSplitWorkTile));
  }
  return simulate_schedule(costs, num_workers).makespan_us + combine_tiles(header, plan);
}

double predicted_tiles(const PlanHeader& header, const SegmentPlan& plan,
                       std::int32_t num_workers) {
  std::vector<double> costs;
  costs.reserve(plan.work_tiles.size());
  for (const WorkTile& work_tile : plan.work_tiles) {
    if (work_tile.partial == kWholeRow) {
      costs.push_back(tiles_cost(plan, work_tile) + kWholeWorkTile);
      continue;
    }
    std::int64_t of_row = 0;
    for (std::int32_t s = work_tile.first_segment;
         s < work_tile.first_segment + work_tile.num_segments; ++s) {
      const PlanSegment& segment = plan.segments[static_cast<std::size_t>(s)];
      of_row += segment.end_tile - segment.first_tile +
                std::int64_t{work_tile.step} * (segment.step_end - segment.step_first);
    }
    costs.push_back(tiles_cost(plan, work_tile) * work_tile.num_tiles /
                        static_cast<double>(of_row) +
                    kSplitWorkTile);
  }
  return simulate_schedule(costs, num_workers).makespan_us + combine_tiles(header, plan);
}

std::int32_t closed_form_splits(const PlanHeader& header, const ClosedFormPlan& plan,
                                std::int32_t num_workers) {
  std::int32_t longest = 0;
  std::int64_t num_tiles = 0;  // of one set of heads
  for (const ClosedFormElement& element : closed_form_elements(header, plan)) {
    for (std::int64_t i = 0; i < ceil_div(element.num_rows, header.tile.block_q); ++i) {
      const std::int32_t of_row = walk_of(element, header.tile, i).num_tiles();
      longest = std::max(longest, of_row);
      num_tiles += of_row;
    }
  }
  ClosedFormPlan tried = plan;
  tried.num_splits = 1;
  const std::int64_t num_work_tiles = count_work_tiles(header, tried);
  if (num_work_tiles == 0 || num_work_tiles >= kMostRounds * num_workers) return 1;
  const std::int64_t most = std::min<std::int64_t>(
      longest / kLeastPartTiles, num_workers * kMostPartialsPerWorker / num_work_tiles);
  const double whole = predicted_tiles(header, tried, num_workers);
  double best = whole * (1 - kLeastGain);
  std::int32_t best_splits = 1;
  const std::int64_t num_sets =
      header.shape.heads_kv * ceil_div(header.shape.group_size(), header.heads_per_tile);
  for (std::int32_t splits = 2; splits <= most; ++splits) {
    tried.num_splits = splits;
    const double perfect = (static_cast<double>(num_tiles * num_sets) +
                            kSplitWorkTile * static_cast<double>(num_work_tiles * splits)) /
                               num_workers +
                           combine_tiles(header, tried);
    if (perfect >= best) break;
    const double predicted = predicted_tiles(header, tried, num_workers);
    if (predicted >= best) continue;
    best = predicted;
    best_splits = splits;
  }
  return best_splits;
}

void split_rows(const PlanHeader& header, std::span<const std::size_t> l2_groups,
                std::int32_t num_workers, SegmentPlan& plan) {
  Splitter splitter(header, plan, l2_groups, num_workers);
  const std::int32_t largest = splitter.best_size();
  if (largest == 0) return;
  struct Ranked {
    double cost;
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
            {split_run_cost(splitter.rows()[i], split_run.num_tiles, split_runs), work_tile});
      }
      if (split_runs == 1) continue;
      plan.split_rows.push_back({row.batch, row.head, row.q_tile, next_partial, split_runs});
      next_partial += split_runs;
    }
    std::stable_sort(ranked.begin(), ranked.end(),
                     [](const Ranked& a, const Ranked& b) { return a.cost > b.cost; });
    for (const Ranked& each : ranked) work_tiles.push_back(each.work_tile);
  }
  plan.work_tiles = std::move(work_tiles);
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
