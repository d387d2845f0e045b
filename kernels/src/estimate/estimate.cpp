// The savings report. Counts come from the mask in the tiles of the plan, times from the plan. It
// reports the same for a mask that allows everything and for the other ways to run this mask.
//
// The device's profile gives the costs of tiles and the backend whose plans run there. Calls that
// the kernels of that backend do not compute (an element type, backward) are predicted with plans
// of the CPU backend, because only tiles and their order matter here. The report costs no more than
// the plans do, because masks that differ by a constant step are counted in closed form.
#include "fdma/kernels/estimate.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "fdma/formats/convert.hpp"
#include "fdma/formats/mask_statistics.hpp"
#include "plan/full_mask.hpp"
#include "plan/pattern_rows.hpp"
#include "plan/query_passes.hpp"

namespace fdma {
namespace {

/// Number of existing cells in the tiles that are not empty.
std::int64_t live_tile_cells(const SegmentMask& mask) {
  std::int64_t cells = 0;
  for (const TileRun& run : mask.runs) {
    for (std::int64_t s = run.first_segment; s < run.first_segment + run.num_segments; ++s) {
      const TileSegment& segment = mask.segments[static_cast<std::size_t>(s)];
      for (std::int32_t i = 0; i < run.num_rows; ++i) {
        const std::int32_t row = run.first_row + i * run.row_stride;
        const std::int64_t rows = std::min<std::int64_t>(
            mask.block.block_q, mask.q_len - std::int64_t{row} * mask.block.block_q);
        const std::int32_t first = segment.first_tile + i * segment.step_first;
        const std::int32_t end = segment.end_tile + i * segment.step_end;
        std::int64_t num_tiles = end - first;
        bool has_last = num_tiles > 0;
        if (segment.kind == SegmentKind::pattern) {
          const PatternRow tiles = mask.pattern_row(segment.data_index, row);
          const std::int64_t before_end = pattern_tiles_before(tiles, end);
          num_tiles = before_end - pattern_tiles_before(tiles, first);
          has_last = before_end > pattern_tiles_before(tiles, end - 1);
        }
        const std::int64_t missing =
            std::max<std::int64_t>(std::int64_t{end} * mask.block.block_kv - mask.kv_len, 0);
        cells += rows * (num_tiles * mask.block.block_kv - (has_last ? missing : 0));
      }
    }
  }
  return cells;
}

/// Number of times that each group of the mask occurs among the (batch element, query head) pairs
/// of `shape`.
std::vector<std::int64_t> group_uses(const BlockMask& mask, const AttentionShape& shape) {
  std::vector<std::int64_t> uses(static_cast<std::size_t>(mask.num_groups()));
  const std::int64_t per_batch = mask.shape.num_batches == 1 ? shape.batch : 1;
  const std::int64_t per_head = mask.shape.num_heads == 1 ? shape.heads_q : 1;
  for (const std::int32_t group : mask.group_of) {
    uses[static_cast<std::size_t>(group)] += per_batch * per_head;
  }
  return uses;
}

void count_cells(const BlockMask& canonical, SavingsReport& report) {
  const auto& groups = std::get<std::vector<SegmentMask>>(canonical.groups);
  const std::vector<std::int64_t> uses = group_uses(canonical, report.shape);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const TileCounts tiles = count_tiles(groups[g]);
    report.allowed_pairs += uses[g] * tiles.allowed_pairs;
    report.full_tiles += uses[g] * tiles.full;
    report.partial_tiles += uses[g] * tiles.partial;
    report.empty_tiles += uses[g] * tiles.empty;
    report.partial_dead_cells += uses[g] * (live_tile_cells(groups[g]) - tiles.allowed_pairs);
    report.total_pairs += uses[g] * groups[g].q_len * groups[g].kv_len;
  }
}

void count_formats(const BlockMask& mask, bool count_all, SavingsReport& report) {
  const MaskStatistics statistics = measure(mask, count_all);
  for (std::size_t i = 0; i < statistics.bytes.size(); ++i) {
    FormatSize size;
    size.format = static_cast<MaskFormat>(i);
    size.bytes = statistics.bytes[i];
    if (!size.bytes) {
      size.reason = size.format == MaskFormat::parametric
                        ? "the mask has no such closed form"
                        : fmt::format("more than {} tiles would have to be drawn", kMaxTilesDrawn);
    }
    report.formats.push_back(std::move(size));
  }
  const FormatSize* best = &report.formats.front();
  for (const FormatSize& size : report.formats) {
    if (size.bytes && (!best->bytes || *size.bytes < *best->bytes)) best = &size;
  }
  report.best_format = best->format;
  for (std::int64_t b = 0; b < mask.shape.num_batches; ++b) {
    const std::int64_t q_len = mask.shape.q_len(b);
    const std::int64_t kv_len = mask.shape.kv_len(b);
    report.dense_bit_bytes += mask.shape.num_heads * q_len * ceil_div(kv_len, 8);
    report.dense_bool_bytes += mask.shape.num_heads * q_len * kv_len;
    report.dense_float_bytes += 4 * mask.shape.num_heads * q_len * kv_len;
  }
}

bool has_columns(const BlockMask& canonical) {
  for (const SegmentMask& group : std::get<std::vector<SegmentMask>>(canonical.groups)) {
    if (!group.column_offsets.empty()) return true;
  }
  return false;
}

/// The mask as segments in `tile`, or the mask itself if it already is.
Result<BlockMask> canonical_form_of(const BlockMask& mask, BlockShape tile) {
  if (mask.format() == MaskFormat::segment && mask.block == tile) return mask;
  return convert(mask, MaskFormat::segment, tile);
}

class Estimator {
 public:
  Estimator(const BlockMask& mask, const AttentionShape& shape, const DeviceProfile& profile,
            const EstimateOptions& options)
      : mask_(mask), shape_(shape), profile_(profile), options_(options) {
    if (options.num_workers > 0) profile_.num_workers = options.num_workers;
    shared_profile_ = std::make_shared<const DeviceProfile>(profile_);
  }

  Result<SavingsReport> run() {
    FDMA_TRY_VOID(validate(shape_));
    FDMA_TRY_VOID(validate(profile_));
    FDMA_TRY(kernel_,
             kernel_costs(profile_, options_.direction, shape_.k_dtype,
                          head_dim_of_costs(shape_, options_.direction, profile_.backend)));
    SavingsReport report;
    report.device = profile_.name;
    report.is_provisional = profile_.is_provisional || kernel_.is_provisional;
    report.is_assumed = kernel_.is_assumed;
    report.num_workers = profile_.num_workers;
    report.direction = options_.direction;
    report.shape = shape_;
    report.tile = options_.tile == BlockShape{0, 0} ? kernel_.tiles.front().tile : options_.tile;
    report.columns = options_.columns;
    report.score = options_.score;
    const bool may_gather =
        std::all_of(kernel_.tiles.begin(), kernel_.tiles.end(),
                    [&](const TileCosts& costs) { return chooses_columns(costs); });
    if (!may_gather && report.columns == ColumnMode::automatic) report.columns = ColumnMode::scan;
    FDMA_TRY_VOID(estimate_masked(report));
    FDMA_TRY_VOID(estimate_dense(report));
    count_formats(mask_, options_.count_all, report);
    if (options_.compare) FDMA_TRY_VOID(compare(report));
    return report;
  }

 private:
  Result<AttentionPlan> plan_of(const BlockMask& mask, BlockShape tile, ColumnMode columns) const {
    PlanOptions options;
    options.tile = tile;
    options.columns = columns;
    options.direction = options_.direction;
    options.backend = profile_.backend;
    options.profile = shared_profile_;
    Result<AttentionPlan> plan = make_plan(mask, shape_, options_.score, options);
    if (plan || plan.error().code != ErrorCode::unsupported) return plan;
    // The tiles of a shape that the backend does not compute are those of the CPU.
    options.backend = Backend::cpu;
    return make_plan(mask, shape_, options_.score, options);
  }

  Result<void> estimate_masked(SavingsReport& report) {
    FDMA_TRY(const BlockMask canonical, canonical_form_of(mask_, report.tile));
    FDMA_TRY(const AttentionPlan plan, plan_of(canonical, report.tile, report.columns));
    FDMA_TRY(report.masked, estimate_plan(plan, profile_));
    report.counts = plan.counts;
    report.choices = plan.report;
    report.plan_bytes = plan.size_bytes();
    count_cells(canonical, report);
    const auto computed = static_cast<double>(report.masked.work.cells());
    if (computed > 0) {
      report.wasted_share = std::max(0.0, 1 - static_cast<double>(report.allowed_pairs) / computed);
    }
    report.flops =
        attention_flops(shape_, options_.direction, static_cast<double>(report.allowed_pairs));
    report.dense_flops =
        attention_flops(shape_, options_.direction, static_cast<double>(report.total_pairs));
    return {};
  }

  Result<void> estimate_dense(SavingsReport& report) {
    const BlockShape tile = kernel_.tiles.front().tile;
    FDMA_TRY(const AttentionPlan plan, plan_of(full_mask(shape_, tile), tile, ColumnMode::scan));
    FDMA_TRY(report.dense, estimate_plan(plan, profile_));
    if (report.masked.time_us > 0) report.speedup = report.dense.time_us / report.masked.time_us;
    return {};
  }

  Result<void> compare(SavingsReport& report) {
    for (const TileCosts& costs : kernel_.tiles) {
      FDMA_TRY(const BlockMask canonical, canonical_form_of(mask_, costs.tile));
      if (!has_columns(canonical)) {
        FDMA_TRY_VOID(add_candidate(canonical, costs, ColumnMode::automatic, report));
        continue;
      }
      FDMA_TRY_VOID(add_candidate(canonical, costs, ColumnMode::scan, report));
      FDMA_TRY_VOID(add_candidate(canonical, costs, ColumnMode::gather, report));
      FDMA_TRY_VOID(add_candidate(canonical, costs, ColumnMode::reorder, report));
    }
    std::stable_sort(report.candidates.begin(), report.candidates.end(),
                     [](const Candidate& a, const Candidate& b) {
                       if (!a.time_us || !b.time_us) return a.time_us.has_value();
                       return *a.time_us < *b.time_us;
                     });
    return {};
  }

  Result<void> add_candidate(const BlockMask& canonical, const TileCosts& costs, ColumnMode columns,
                             SavingsReport& report) {
    Candidate candidate{costs.tile, columns, {}, {}};
    if (columns == ColumnMode::gather) candidate.reason = why_not_gather(canonical, costs);
    if (columns == ColumnMode::reorder) candidate.reason = why_not_permute(costs);
    if (candidate.reason.empty()) {
      const bool is_scanned = columns == ColumnMode::automatic && !chooses_columns(costs);
      Result<AttentionPlan> plan =
          plan_of(canonical, costs.tile, is_scanned ? ColumnMode::scan : columns);
      if (!plan) {
        candidate.reason = plan.error().message;
      } else {
        FDMA_TRY(const PlanEstimate estimate, estimate_plan(*plan, profile_));
        candidate.time_us = estimate.time_us;
      }
    }
    report.candidates.push_back(std::move(candidate));
    return {};
  }

  /// Empty if the kv index lists of the mask can be built. Each query interval of a key has an
  /// entry in every tile row that it meets.
  std::string why_not_gather(const BlockMask& canonical, const TileCosts& costs) const {
    if (needs_places()) return why_in_place();
    if (!costs.can_gather()) return "the kernel does not gather";
    std::int64_t entries = 0;
    for (const SegmentMask& group : std::get<std::vector<SegmentMask>>(canonical.groups)) {
      for (const Interval& rows : group.column_intervals) {
        entries += (rows.end - 1) / costs.tile.block_q - rows.begin / costs.tile.block_q + 1;
      }
    }
    const std::int64_t bytes = entries * static_cast<std::int64_t>(sizeof(KvIndexEntry));
    if (bytes <= options_.max_kv_index_bytes) return {};
    return fmt::format("kv index lists would take {} bytes", bytes);
  }

  /// A kv permutation gathers the keys that it leaves scattered.
  std::string why_not_permute(const TileCosts& costs) const {
    if (needs_places()) return why_in_place();
    if (chooses_columns(costs)) return "";
    return options_.direction == Direction::backward ? "backward kernels do not reorder keys"
                                                     : "the kernel does not gather";
  }

  /// Whether a plan may do other than scan. Backward plans over kv worklists decide themselves.
  bool chooses_columns(const TileCosts& costs) const {
    if (needs_places()) return false;
    if (options_.direction == Direction::backward) {
      return profile_.backend.traits().has_kv_worklists;
    }
    return costs.can_gather();
  }

  /// Whether plans for the score have tiles in the order of the keys alone.
  bool needs_places() const { return place_parts() != ScoreSpec{}; }
  std::string why_in_place() const {
    return fmt::format("the kernel computes {} over tiles in the order of the keys",
                       to_string(place_parts()));
  }
  ScoreSpec place_parts() const {
    return common_parts(options_.score, profile_.backend.traits().place_score);
  }

  const BlockMask& mask_;
  const AttentionShape& shape_;
  DeviceProfile profile_;
  std::shared_ptr<const DeviceProfile> shared_profile_;  // for the plans
  const EstimateOptions& options_;
  KernelCosts kernel_;
};

}  // namespace

double attention_flops(const AttentionShape& shape, Direction direction, double pairs) {
  const double per_pair = direction == Direction::forward
                              ? 2.0 * (shape.head_dim + shape.head_dim_v)
                              : 6.0 * shape.head_dim + 4.0 * shape.head_dim_v;
  return per_pair * pairs;
}

Result<SavingsReport> estimate(const BlockMask& mask, const AttentionShape& shape,
                               const DeviceProfile& profile, const EstimateOptions& options) {
  return Estimator(mask, shape, profile, options).run();
}

}  // namespace fdma
