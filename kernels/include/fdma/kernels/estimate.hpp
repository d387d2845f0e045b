// Estimates: the predicted cost of a mask on a device before anything runs, and what it saves.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "fdma/base/result.hpp"
#include "fdma/formats/attention_shape.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/cost_model.hpp"
#include "fdma/kernels/device_profile.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// Work tiles on workers that each take the next one when they are free.
struct Schedule {
  std::int32_t num_workers = 1;
  std::int64_t num_work_tiles = 0;
  double makespan_us = 0;  ///< until the last worker is done
  double busy_us = 0;      ///< sum over work tiles
  double longest_item_us = 0;
  /// Share of the workers' time in which they work; 1 is perfect, and also stands for no work.
  double balance() const;
};

/// Simulates work tiles that take `item_us` in this order. Each worker takes its next one
/// `ahead_us` before it is free (KernelCosts). Cost: O(work tiles * log(workers)).
///
/// Example     simulate_schedule(std::vector<double>{3, 2, 2}, 2).makespan_us == 4
/// Invariants  max(busy / workers, longest) <= makespan <= busy / workers + longest + ahead_us
Schedule simulate_schedule(std::span<const double> item_us, std::int32_t num_workers,
                           double ahead_us = 0);

/// The prediction for one plan.
struct PlanEstimate {
  PlanWork work;
  Schedule schedule;  ///< times at the clock that the call can keep
  double launch_us = 0;
  double memory_us = 0;   ///< main memory traffic while the work tiles run
  double combine_us = 0;  ///< combining split rows, after the work tiles
  double move_us = 0;     ///< applying kv permutations before the work tiles; 0 on a CPU
  /// Backward on a GPU, before and after the work tiles: zero fill of dq_accum and storing dq, and
  /// over kv worklists the same for dk and dv.
  double query_us = 0;
  double extra_us = 0;  ///< what BackwardExtras add to the work tiles
  /// launch_us + move_us + query_us + max(makespan + extra_us, memory_us) + combine_us
  double time_us = 0;
  /// time_us where calls follow one another without a pause and the power limit has already slowed
  /// the card down. Short calls take that much longer. On a CPU it is time_us.
  double sustained_time_us = 0;
  /// Read and written while the work tiles run: the tensors and the plan, but in a forward call only
  /// keys that some query sees; over kv worklists also what L2 misses read again. A bias of pairs is
  /// taken as one of q's type with elements of its own for each batch element and query head.
  std::int64_t memory_bytes = 0;

  bool is_memory_bound() const { return memory_us > schedule.makespan_us + extra_us; }
};

/// Options of a backward call that its plan does not hold (BackwardOptions).
struct BackwardExtras {
  bool is_deterministic = false;  ///< on a GPU, sums of dq wait for the dQ semaphore
  /// DeltaSource::corrected: a correction pass over the keys first
  bool corrects_delta = false;
};

/// Predicts the time of `plan` on a device, for the direction of the plan.
///
/// Errors      unsupported if the profile has no costs for dtype, direction or the plan's tile;
///             invalid_argument for kv index lists where the kernel does not gather
/// Cost        O(work tiles * (segments + log(workers)) + bitmaps)
Result<PlanEstimate> estimate_plan(const AttentionPlan& plan, const DeviceProfile& profile,
                                   const BackwardExtras& extras = {});

struct EstimateOptions {
  Direction direction = Direction::forward;
  /// {0, 0}: the first tile shape of the profile.
  BlockShape tile{0, 0};
  ColumnMode columns = ColumnMode::automatic;
  ScoreSpec score;
  /// Workers; 0: those of the profile.
  std::int32_t num_workers = 0;
  /// Also predicts every tile shape of the profile and every column mode.
  bool compare = true;
  /// Draws more than kMaxTilesDrawn tiles to find equal bitmaps where the size of a format needs
  /// it.
  bool count_all = false;
  /// kv index lists above this size are not built for a comparison.
  std::int64_t max_kv_index_bytes = std::int64_t{1} << 30;
};

/// One way to run the mask.
struct Candidate {
  BlockShape tile;
  ColumnMode columns = ColumnMode::automatic;
  std::optional<double> time_us;
  std::string reason;  ///< why there is no time
};

/// Bytes of the mask in one format.
struct FormatSize {
  MaskFormat format = MaskFormat::segment;
  std::optional<std::int64_t> bytes;
  std::string reason;  ///< why there are none
};

/// The result of `estimate`. Counts are over all batch elements and query heads.
struct SavingsReport {
  std::string device;
  bool is_provisional = true;
  bool is_assumed = false;  ///< of the kernel's costs (KernelCosts::is_assumed)
  std::int32_t num_workers = 1;
  Direction direction = Direction::forward;
  AttentionShape shape;
  BlockShape tile;
  ColumnMode columns = ColumnMode::automatic;
  ScoreSpec score;

  std::int64_t allowed_pairs = 0;  ///< true cells
  std::int64_t total_pairs = 0;
  std::int64_t full_tiles = 0, partial_tiles = 0, empty_tiles = 0;  ///< of the mask, in `tile`
  /// False cells that exist in partial tiles: the waste of tiles that cannot skip keys.
  std::int64_t partial_dead_cells = 0;
  PlanCounts counts;   ///< of the plan
  PlanReport choices;  ///< of the plan
  std::int64_t plan_bytes = 0;
  PlanEstimate masked;  ///< of the mask
  PlanEstimate dense;   ///< of every pair, at the same lengths, in the profile's first tile shape

  double flops = 0;        ///< of the allowed pairs
  double dense_flops = 0;  ///< of all pairs
  /// Share of the computed cells that the mask drops.
  double wasted_share = 0;
  double speedup = 1;  ///< dense.time_us / masked.time_us

  std::vector<FormatSize> formats;  ///< by MaskFormat
  /// A dense tensor over the batch elements and heads of the mask, with one bit, one byte or one
  /// float32 a cell.
  std::int64_t dense_bit_bytes = 0;
  std::int64_t dense_bool_bytes = 0;
  std::int64_t dense_float_bytes = 0;
  MaskFormat best_format = MaskFormat::segment;  ///< fewest bytes; ties by MaskFormat
  std::vector<Candidate> candidates;             ///< fastest first, those without a time last
};

/// FLOPs of `pairs` query-key pairs: forward 2 * (head_dim + head_dim_v) each, backward
/// 6 * head_dim + 4 * head_dim_v.
double attention_flops(const AttentionShape& shape, Direction direction, double pairs);

/// Predicts attention over `mask` with tensors of `shape` (the dtype of k chooses the kernel).
///
/// Errors      as make_plan and estimate_plan
/// Cost        that of the plans, which follows tiles and segments, not cells; 1M tokens of causal
///             attention with 32 heads take well below a second
Result<SavingsReport> estimate(const BlockMask& mask, const AttentionShape& shape,
                               const DeviceProfile& profile, const EstimateOptions& options = {});

}  // namespace fdma
