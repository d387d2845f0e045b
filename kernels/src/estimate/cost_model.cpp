// A CostModel takes the costs of a device profile at one head size. Tiles of another shape than
// those of the profile are scaled.
#include "fdma/kernels/cost_model.hpp"

#include <algorithm>

#include "estimate/profile_members.hpp"
#include "estimate/work_tile_counts.hpp"
#include "plan/query_passes.hpp"

namespace fdma {
namespace {

/// sm90: the last index tile of a list computes only the keys it has, in units of so many keys,
/// where the kernel can (kHasNarrowSteps).
constexpr std::int64_t kGatherUnit = 32;

const StepCosts& costs_of(const TileCosts& costs, PlanSegmentKind kind) {
  switch (kind) {
    case PlanSegmentKind::bitmap:
    case PlanSegmentKind::closed_form:  // other threads make its mask, as from a bitmap
      return costs.bitmap;
    case PlanSegmentKind::rows:
      return costs.rows;
    case PlanSegmentKind::columns:
      return costs.columns;
    case PlanSegmentKind::gather:
      return costs.gather;
    case PlanSegmentKind::full:
    case PlanSegmentKind::permutation:
    case PlanSegmentKind::pattern:  // its tiles count as full ones and ones with a bitmap
      break;
  }
  return costs.full;
}

/// `costs` for a tile of another shape: masks are found key by key, cells computed one by one, and
/// a work tile grows with its rows.
TileCosts scaled(TileCosts costs, BlockShape tile) {
  const double rows = static_cast<double>(tile.block_q) / costs.tile.block_q;
  const double keys = static_cast<double>(tile.block_kv) / costs.tile.block_kv;
  for (StepCosts* steps :
       {&costs.full, &costs.bitmap, &costs.rows, &costs.columns, &costs.gather}) {
    steps->tile_us *= keys;
    steps->compute_us *= rows * keys;
  }
  costs.item_us *= rows;
  costs.split_us *= rows;
  costs.tile = tile;
  return costs;
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

WorkCost CostModel::tiles(PlanSegmentKind kind, double num_tiles, double keys) const {
  const StepCosts& steps = costs_of(tile, kind);
  const double tiles_us = num_tiles * steps.tile_us;
  const double compute_us = keys / tile_columns * steps.compute_us;
  // The tile_us of an index tile is a cost of its computation.
  if (kind == PlanSegmentKind::gather) return {0, tiles_us + compute_us};
  return {tiles_us, compute_us};
}

WorkCost CostModel::index_list(std::int64_t num_entries) const {
  return tiles(PlanSegmentKind::gather,
               static_cast<double>(ceil_div(num_entries, std::int64_t{tile_columns})),
               static_cast<double>(ceil_div(num_entries, gather_step) * gather_step));
}

double CostModel::us(const WorkCost& cost) const {
  return kernel.overlaps_masks ? std::max(cost.masks_us, cost.compute_us)
                               : cost.masks_us + cost.compute_us;
}

double CostModel::tile_us(PlanSegmentKind kind) const { return us(tiles(kind, 1, tile_columns)); }

double CostModel::entry_us() const { return tile_us(PlanSegmentKind::gather) / tile_columns; }

double CostModel::work_tile_us(const PlanWork& work, bool is_split) const {
  WorkCost sum;
  const double tile_rows =
      static_cast<double>(tile.tile.block_q) * tile.tile.block_kv / tile_columns;
  for (std::size_t kind = 0; kind < work.steps.size(); ++kind) {
    const StepWork& steps = work.steps[kind];
    sum += tiles(static_cast<PlanSegmentKind>(kind), static_cast<double>(steps.tiles),
                 static_cast<double>(steps.cells) / tile_rows);
  }
  return work_tile_us(sum, is_split);
}

double CostModel::l2_misses_us(double bytes, double num_keys) const {
  return logarithmic_share(bytes, near_bytes, far_bytes) * num_keys * tile.far_key_us;
}

Result<CostModel> cost_model(const DeviceProfile& profile, const AttentionShape& shape,
                             Direction direction, BlockShape tile, const ScoreSpec& score) {
  CostModel model;
  FDMA_TRY(model.kernel, kernel_costs(profile, direction, shape.k_dtype,
                                      head_dim_of_costs(shape, direction, profile.backend)));
  double of_score = 0;
  for (const ScoreShare& each : kScoreShares) {
    if (score.*each.part) of_score += model.kernel.*each.share;
  }
  for (TileCosts& each : model.kernel.tiles) {
    for (const StepMember& step : kSteps) (each.*step.value).compute_us *= 1 + of_score;
  }
  model.profile = profile.name;
  model.num_workers = profile.num_workers;
  model.skips_dead_keys = profile.skips_dead_keys;
  model.near_bytes = profile.near_bytes;
  model.far_bytes = profile.far_bytes;
  model.memory_bytes_per_us = profile.memory_bytes_per_us;
  const std::vector<TileCosts>& shapes = model.kernel.tiles;
  const auto found = std::find_if(shapes.begin(), shapes.end(), [&](const TileCosts& each) {
    return each.tile == tile || tile == BlockShape{0, 0};
  });
  model.has_tile = found != shapes.end();
  model.tile = model.has_tile ? *found : scaled(shapes.front(), tile);
  model.tile_columns =
      direction == Direction::forward ? model.tile.tile.block_kv : model.tile.tile.block_q;
  model.gather_step = gather_step(shape, score, profile.skips_dead_keys, model.tile_columns);
  if (!profile.backend.traits().copies_permuted_keys) {
    model.kernel.move_us = model.kernel.moved_key_us = 0;
  }
  return model;
}

CostModel cost_model_without_profile(BlockShape tile, Direction direction) {
  CostModel model;
  model.tile_columns = direction == Direction::forward ? tile.block_kv : tile.block_q;
  model.tile.tile = tile;
  model.tile.full = model.tile.bitmap = model.tile.rows = model.tile.columns = {0, 1};
  model.tile.item_us = 1;
  model.gather_step = model.tile_columns;
  model.kernel.tiles = {model.tile};
  return model;
}

std::int64_t gather_step(const AttentionShape& shape, const ScoreSpec& score, bool skips_dead_keys,
                         std::int32_t block_kv) {
  if (skips_dead_keys) return 1;
  const std::int32_t head_dim = std::max(shape.head_dim, shape.head_dim_v);
  const bool has_tile_groups = !score.softcap && (head_dim <= 64 ? score.key_bias : head_dim > 96);
  return has_tile_groups && shape.k_dtype == DType::bfloat16 ? kGatherUnit : block_kv;
}

PlanSegmentKind plan_kind(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::full:
      return PlanSegmentKind::full;
    case SegmentKind::bitmap:
      return PlanSegmentKind::bitmap;
    case SegmentKind::rows:
      return PlanSegmentKind::rows;
    case SegmentKind::columns:
      return PlanSegmentKind::columns;
    case SegmentKind::pattern:
      return PlanSegmentKind::pattern;
  }
  return PlanSegmentKind::full;
}

}  // namespace fdma
