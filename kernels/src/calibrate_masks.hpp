// The synthetic masks of calibration.
#pragma once

#include <vector>

#include "fdma/formats/attention_shape.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// A mask to be timed, of one batch element and one head that all heads share.
struct CalibrationMask {
  BlockMask mask;
  ColumnMode columns = ColumnMode::scan;
};

/// Full rows of 1, 4, many and very many tiles, a partial stretch of every kind with most and with
/// few keys alive, column tiles again as gather lists. Every tile row of a mask costs about the
/// same.
std::vector<CalibrationMask> calibration_masks(BlockShape tile);

}  // namespace fdma
