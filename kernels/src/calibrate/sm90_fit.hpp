// From the times of the overlap and gather masks to the costs of the GPU kernel.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "fdma/kernels/device_profile.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// One call whose items all cost the same, so that each worker gets as many: its share, and the
/// time of the call.
struct EvenCall {
  double items = 0;
  std::array<double, 4> tiles{};  ///< by PlanSegmentKind, without gather
  double chunks = 0;              ///< of gather lists
  double chunk_tiles = 0;         ///< tiles' worth of keys that they compute
  /// Every tile is partial and of one kind: the masks may take longer than the computation.
  bool is_all_partial = false;
  double us = 0;

  double& of(PlanSegmentKind kind) { return tiles[static_cast<std::size_t>(kind)]; }
  double of(PlanSegmentKind kind) const { return tiles[static_cast<std::size_t>(kind)]; }
};

/// What each of `num_workers` has of the plan; us: none.
EvenCall even_call(const AttentionPlan& plan, int num_workers, bool is_all_partial);

/// What a call and its tiles cost.
struct EvenCosts {
  double launch_us = 0;
  TileCosts tile;  ///< tile_us but of gather: 0 where masks are always found in time
};

/// Computation, items and the launch by least squares from the calls with few partial tiles, none
/// negative; then, of each kind, what its masks take by the calls that hold nothing else, if those
/// take longer than their computation; and chunks by the calls that gather, of which
/// `is_all_partial` is true. A kind that no call holds costs what bitmaps do, without them what
/// full tiles do; chunks then cost nothing.
EvenCosts fit_even_calls(const std::vector<EvenCall>& calls, BlockShape tile);

/// How much slower calls become by lasting long.
struct Slowdown {
  double burst_us = 0;  ///< 0: calls do not become slower
  double sustained_us = 0;
  std::vector<double> shares;  ///< of each kernel, at sustained_us
};

/// A call that lasts `us` takes 1 + slowdown of the time that it would at full clocks.
struct LongCall {
  std::size_t kernel = 0;  ///< or what else becomes slower by a share of its own
  double us = 0;
  double slowdown = 0;
};

/// The burst for which slowdowns that grow with the logarithm fit best; `sustained_us` is the
/// longest call's. Kernels that do not become slower get 0.
Slowdown fit_slowdown(const std::vector<LongCall>& calls, std::size_t num_kernels);

}  // namespace fdma
