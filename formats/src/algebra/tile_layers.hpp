// Masks whose tiles are a function of a few tiles of other masks, computed in step.
//
// A layer is a mask laid over the result, moved by whole tiles. A set operation has two layers, a
// complement has one, a shift has one to four (a tile of the result overlaps up to four tiles of
// the mask).
//
// In a tile row each layer is a list of uniform segments, whose tiles hold the same cells
// (uniform_runs.hpp). All their borders together cut the row into segments whose tiles come from
// the same sources. One evaluation serves such a segment, and every later one with the same
// sources.
//
// Borders move linearly inside a run. While no two of them meet or cross, and segments with partial
// tiles keep their width, all rows have the same segments in other places, and are appended to the
// result at once. The number of such rows takes one division for each pair of neighbouring borders.
//
// Example     causal & window over 1M tokens, both in one run of 8184 tile rows: four borders with
//             steps 0 or 1, appended at once
//
// Segments of patterns are borders like any other; under them, tiles repeat (layer_patterns.hpp). One
// period of a combination of patterns is evaluated, and becomes a pattern of the result, or a plain
// segment if all of its tiles are equal. A combination is written out, tile by tile, as long as that
// takes fewer tiles than its period has.
// Example     complement of causal & k % 10 < 3 over 1M tokens: 5 tiles are evaluated in all under
//             the moving border of 8191 tile rows
//
// Where a source is ragged at its end, its last tile column and last tile row are separate
// segments.
#pragma once

#include <array>
#include <cstdint>
#include <span>

#include "fdma/formats/segment_mask.hpp"
#include "segment/uniform_runs.hpp"

namespace fdma {

inline constexpr std::size_t kMaxLayers = 4;

/// A mask laid over the result. Tile (row, col) of the result lies over its tile (row - row_shift,
/// col - col_shift). Outside the mask there is nothing.
struct TileLayer {
  UniformRuns* parts;
  std::int64_t row_shift = 0;
  std::int64_t col_shift = 0;
};

/// The tile of one layer that lies under a tile of the result.
struct LayerTile {
  TileSource source = kEmptyTiles;
  bool is_last_row = false;  ///< a full tile of the last, ragged tile row of its mask
  bool is_last_col = false;
  friend bool operator==(const LayerTile&, const LayerTile&) = default;
};

enum class TileClass : std::uint8_t { empty, partial, full };

/// How the cells of a tile of the result follow from those of its layers.
class TileFunction {
 public:
  virtual ~TileFunction() = default;
  /// The class, if the sources alone decide it; `partial` if the cells do.
  virtual TileClass classify(std::span<const LayerTile> tiles) const = 0;
  /// Writes the cells to words [words_per_bitmap], which are 0 on entry. Cells that do not exist
  /// are dropped afterwards.
  virtual void evaluate(std::span<const LayerTile> tiles, std::uint64_t* words) = 0;
};

/// The mask whose tiles are function(layers), canonical unless it has patterns. All masks have block
/// `block` and no column table. It has patterns only if layers keep theirs (UniformRuns). Cost:
/// O(runs * layers + distinct combinations of partial tiles * tile cells / 64 + periods of
/// combinations of patterns) while runs move in step, at worst O(segments of all tile rows).
SegmentMask combine_layers(std::int64_t q_len, std::int64_t kv_len, BlockShape block,
                           std::span<const TileLayer> layers, TileFunction& function);

}  // namespace fdma
