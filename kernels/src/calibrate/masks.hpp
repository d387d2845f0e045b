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

/// Masks for workers that find masks beside their computation, in tiles of 128 x 128 and tile rows
/// that cost the same: full rows of 4, 8, 16 and 64 tiles; of each kind of partial tile (bitmap,
/// rows, columns; bitmaps both distinct and shared) one mask with every fourth tile partial, most
/// of these of the kind, the others full, and one with all.
struct OverlapMask {
  BlockMask mask;
  PlanSegmentKind kind = PlanSegmentKind::full;
  bool is_all = false;  ///< every tile is of that kind
};
std::vector<OverlapMask> overlap_masks();

/// Masks of scattered keys for ColumnMode::gather, in tiles of 128 x 128 and tile rows whose lists
/// have the same number of entries: lists of few and of many chunks with last ones of 32, 64, 96
/// and 128 keys, once of keys that all rows of a tile see and once with a fourth of them that some
/// rows see, which end a list as chunks that need masks.
std::vector<OverlapMask> gather_masks();

/// Each overlap and gather mask has so many tile rows, or a multiple of them.
inline constexpr std::int64_t kOverlapTileRows = 32;

}  // namespace fdma
