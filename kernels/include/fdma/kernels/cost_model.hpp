// CostModel: what the work of one kernel costs, at one head size and in one direction. The planner
// compares ways to run a mask by it, and the estimates predict times by it.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "fdma/base/result.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/formats/segment_mask.hpp"
#include "fdma/kernels/device_profile.hpp"
#include "fdma/kernels/direction.hpp"
#include "fdma/kernels/plan_arrays.hpp"

namespace fdma {

/// Steps of one kind: tiles or index tiles visited, and cells computed in them.
struct StepWork {
  std::int64_t tiles = 0;
  std::int64_t cells = 0;
  friend bool operator==(const StepWork&, const StepWork&) = default;
};

/// What a plan, or one of its work tiles, computes, by PlanSegmentKind.
struct PlanWork {
  std::array<StepWork, 5> steps;

  StepWork& of(PlanSegmentKind kind) { return steps[static_cast<std::size_t>(kind)]; }
  const StepWork& of(PlanSegmentKind kind) const { return steps[static_cast<std::size_t>(kind)]; }
  std::int64_t tiles() const;
  std::int64_t cells() const;
  friend bool operator==(const PlanWork&, const PlanWork&) = default;
};

/// Microseconds that one worker spends on tiles: on finding their keys and masks, and on computing
/// them. They add up unless the kernel does both at once (KernelCosts::overlaps_masks).
struct WorkCost {
  double masks_us = 0;
  double compute_us = 0;

  WorkCost& operator+=(const WorkCost& other) {
    masks_us += other.masks_us;
    compute_us += other.compute_us;
    return *this;
  }
  friend WorkCost operator+(WorkCost a, const WorkCost& b) { return a += b; }
  friend WorkCost operator-(WorkCost a, const WorkCost& b) {
    a.masks_us -= b.masks_us;
    a.compute_us -= b.compute_us;
    return a;
  }
  friend bool operator==(const WorkCost&, const WorkCost&) = default;
};

/// Costs of one kernel.
///
/// Example     CostModel costs = *cost_model(*shipped_profile("h200"), shape, Direction::forward);
///             costs.tile_us(PlanSegmentKind::full) == 1.345 for bfloat16 and head size 128
/// Units       microseconds: of one worker while all are busy for tiles and work tiles; of the call
///             for combining, moving keys and making lists, for which all workers wait
/// Invariants  none of its costs is negative
struct CostModel {
  std::string profile;           ///< its name; empty: a backend without a profile
  std::int32_t num_workers = 1;  ///< of the profile
  KernelCosts kernel;            ///< of the head size, with all tile shapes of the profile
  TileCosts tile;                ///< of the tile that was asked for
  /// False where the profile lacks that tile: `tile` is then its first one, scaled by its sides.
  bool has_tile = true;
  /// Columns of a tile as a plan walks it: its keys, in a backward plan its queries. Where this
  /// file says keys, it means them.
  std::int32_t tile_columns = 128;
  bool skips_dead_keys = false;  ///< as in DeviceProfile
  std::int64_t gather_step = 1;  ///< the keys of a kv index list are computed in multiples of this
  double near_bytes = 0;         ///< as in DeviceProfile, and far_bytes
  double far_bytes = 0;
  double memory_bytes_per_us = 0;  ///< as in DeviceProfile; 0 without one

  bool can_gather() const { return tile.can_gather(); }
  /// Tiles of a kind in which `keys` keys are computed for all rows of a tile.
  WorkCost tiles(PlanSegmentKind kind, double num_tiles, double keys) const;
  /// A kv index list of `num_entries` keys.
  WorkCost index_list(std::int64_t num_entries) const;
  double us(const WorkCost& cost) const;
  /// One whole tile or index tile by itself.
  double tile_us(PlanSegmentKind kind) const;
  /// One of the entries of a full index tile.
  double entry_us() const;
  /// A work tile; `is_split`: of a split row.
  double work_tile_us(const WorkCost& cost, bool is_split = false) const {
    return tile.item_us + (is_split ? tile.split_us : 0) + us(cost);
  }
  double work_tile_us(const PlanWork& work, bool is_split = false) const;

  /// What L2 misses add to a work tile that reads `num_keys` keys, where a worker passes through
  /// `bytes` of keys and values before it is back at the same ones.
  double l2_misses_us(double bytes, double num_keys) const;
  /// Combining partial results of `num_rows` query rows in all; 0 without any.
  double combine_us(double num_rows) const {
    return num_rows > 0 ? kernel.combine_us + num_rows * kernel.combine_row_us : 0;
  }
  /// Copying `num_keys` keys of kv permutations; 0 without any, or where they are read in place.
  double move_us(double num_keys) const {
    return num_keys > 0 ? kernel.move_us + num_keys * kernel.moved_key_us : 0;
  }
  /// Reading and writing `bytes` of main memory in a kernel of its own; 0 without a profile.
  double memory_us(std::int64_t bytes) const {
    return memory_bytes_per_us > 0 ? static_cast<double>(bytes) / memory_bytes_per_us : 0;
  }
  /// Making kv index lists on the device; 0 without any.
  double lists_us(double num_lists, double num_entries) const {
    return num_lists > 0 ? kernel.list_launch_us + num_lists * kernel.list_us +
                               num_entries * kernel.list_entry_us
                         : 0;
  }
};

/// The costs of `profile` for tensors of `shape`, interpolated as kernel_costs does. `tile` is the
/// number of rows that are computed together, of one head or of several, and of keys; {0, 0}: the
/// first tile of the profile.
///
/// Errors      those of kernel_costs
Result<CostModel> cost_model(const DeviceProfile& profile, const AttentionShape& shape,
                             Direction direction, BlockShape tile = {0, 0},
                             const ScoreSpec& score = {});

/// The costs of a backend that names no profile (BackendTraits::profile).
CostModel cost_model_without_profile(BlockShape tile, Direction direction);

/// The number of keys in multiples of which a kernel computes a kv index list, in tiles of
/// `block_kv` keys. 1: a device that skips dead keys.
std::int64_t gather_step(const AttentionShape& shape, const ScoreSpec& score, bool skips_dead_keys,
                         std::int32_t block_kv);

/// The kind of a plan's segment that has the tiles of a mask's segment.
PlanSegmentKind plan_kind(SegmentKind kind);

}  // namespace fdma
