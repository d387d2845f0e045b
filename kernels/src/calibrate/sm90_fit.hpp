// Fits the costs of the GPU kernel to the times of the overlap and gather masks.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "fdma/kernels/device_profile.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// One call whose work tiles all cost the same, so that each worker gets the same number: its
/// share, and the time of the call.
struct EvenCall {
  double work_tiles = 0;
  std::array<double, 4> tiles{};  ///< by PlanSegmentKind, without gather
  double index_tiles = 0;         ///< index tiles
  double full_index_tiles = 0;    ///< keys that these compute, in tiles
  /// Every tile is partial and of one kind, so making masks may take longer than the computation.
  bool is_all_partial = false;
  double us = 0;

  double& of(PlanSegmentKind kind) { return tiles[static_cast<std::size_t>(kind)]; }
  double of(PlanSegmentKind kind) const { return tiles[static_cast<std::size_t>(kind)]; }
};

/// The share of the plan of each of `num_workers` workers, without us.
EvenCall even_call(const PlanHeader& header, const SegmentPlan& plan, int num_workers,
                   bool is_all_partial);

/// Costs of a call and of its tiles.
struct EvenCosts {
  double launch_us = 0;
  TileCosts tile;  ///< except for gather, tile_us is 0 where masks are always made in time
};

/// Computation, work tiles and the launch are fitted by non-negative least squares to the calls
/// with few partial tiles. The time of each kind's masks then follows from the calls that have only
/// that kind, if these take longer than their computation. Index tiles follow from the calls that
/// gather, for which `is_all_partial` is true. A kind that occurs in no call costs what bitmaps do,
/// or without these what full tiles do; index tiles cost nothing then.
EvenCosts fit_even_calls(const std::vector<EvenCall>& calls, BlockShape tile);

/// The slowdown of calls that last long.
struct Slowdown {
  double burst_us = 0;  ///< 0: calls do not become slower
  double sustained_us = 0;
  std::vector<double> shares;  ///< of each kernel, at sustained_us
};

/// A call of `us` microseconds, which takes 1 + slowdown of its time at full clocks.
struct LongCall {
  std::size_t kernel = 0;  ///< a kernel, or anything else that slows down by a share of its own
  double us = 0;
  double slowdown = 0;
};

/// The burst with which slowdowns that grow with the logarithm fit best. `sustained_us` is that of
/// the longest call. Kernels that do not slow down get 0.
Slowdown fit_slowdown(const std::vector<LongCall>& calls, std::size_t num_kernels);

}  // namespace fdma
