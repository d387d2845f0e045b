// What chunks of gathered keys cost on sm90, beside full tiles.
#pragma once

#include "fdma/kernels/device_profile.hpp"

namespace fdma {

/// Chunks that have all of their keys cost 1.1 full tiles, and five eighths of that however few
/// they have: as an exploratory kernel took for whole ones, and as lists of few keys show
/// (docs/performance.md). Calibration does not measure them.
constexpr StepCosts gather_costs(const StepCosts& full) {
  constexpr double kWhole = 1.1;
  constexpr double kChunk = 0.625;
  return {kWhole * kChunk * full.compute_us, kWhole * (1 - kChunk) * full.compute_us};
}

}  // namespace fdma
