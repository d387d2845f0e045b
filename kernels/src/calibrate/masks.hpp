// The synthetic masks of calibration on any backend.
#pragma once

#include <vector>

#include "fdma/formats/attention_shape.hpp"
#include "fdma/formats/block_mask.hpp"
#include "fdma/kernels/plan.hpp"

namespace fdma {

/// A mask to be timed, with one batch element and one head, which all heads share.
struct CalibrationMask {
  BlockMask mask;
  ColumnMode columns = ColumnMode::scan;
};

/// Full rows of 1, 4, many and very many tiles; partial tiles of every kind with most and with few
/// keys live; column tiles again as kv index lists. Every tile row of a mask costs about the same.
std::vector<CalibrationMask> calibration_masks(BlockShape tile);

/// Masks for workers that make masks beside their computation, in tiles of 128 x 128 and tile rows
/// of equal cost. There are full rows of 4, 8, 16 and 64 tiles. For each kind of partial tile
/// (bitmap, rows, columns; bitmaps both distinct and shared) one mask has every fourth tile
/// partial, most of these of the kind, and the others full; another has all tiles partial.
struct OverlapMask {
  BlockMask mask;
  PlanSegmentKind kind = PlanSegmentKind::full;
  bool is_all = false;  ///< every tile is of that kind
};
std::vector<OverlapMask> overlap_masks();

/// Masks of scattered keys for ColumnMode::gather, in tiles of 128 x 128 and tile rows whose lists
/// have the same number of entries. There are lists of few and of many index tiles, whose last ones
/// have 32, 64, 96 and 128 keys. Each exists once with keys that all rows of a tile see, and once
/// with a fourth of the keys seen by some rows only, so that the list ends with index tiles that
/// need masks.
std::vector<OverlapMask> gather_masks();

/// The number of tile rows of each overlap and gather mask is a multiple of this.
inline constexpr std::int64_t kOverlapTileRows = 32;

}  // namespace fdma
