// Combinations of layers (tile_layers.hpp) in which patterns take part.
//
// Each pattern repeats by a lattice of translations; a combination repeats by what their lattices
// share. In a ragged tile row or column it repeats in one direction only.
//
// Example     `k % 10 < 3` over `(q - k) % 3 == 0`, blocks of 128: lattices with 5 columns, and with
//             3 columns and a shift of 1; together 15 columns, 3 rows
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "algebra/tile_layers.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "fdma/formats/tile_lattice.hpp"

namespace fdma {

using LayerTiles = std::array<LayerTile, kMaxLayers>;

/// What the tiles between two borders of a tile row are. Tiles of a `mixed` run come from patterns,
/// and what they become is not decided yet.
enum class RunKind : std::uint8_t { empty, partial, full, pattern, mixed };

struct PatternCombination {
  LayerTiles sources;
  std::int64_t row;  ///< the only tile row or column in which it stands, or -1
  std::int64_t col;
  PatternPeriod period;  ///< no rows: too large to be stored
  bool may_be_large;     ///< its period is larger than that of each pattern in it
  bool is_stored = false;
  std::int64_t num_written = 0;  ///< tiles that were written out before it was stored
  // If it is stored:
  RunKind kind = RunKind::empty;
  std::int32_t tile = -1;  ///< index of the pattern or cached tile
};

class PatternCombinations {
 public:
  /// Periods of at most `most_tiles` tiles are stored.
  PatternCombinations(std::span<const TileLayer> layers, std::int64_t most_tiles)
      : layers_(layers), most_tiles_(most_tiles) {}

  /// The index of a combination; `row` and `col` as in PatternCombination.
  std::int32_t find(const LayerTiles& sources, std::int64_t row, std::int64_t col);
  PatternCombination& operator[](std::int32_t index) {
    return combinations_[static_cast<std::size_t>(index)];
  }

  /// The tiles under tile (row, col) of the result: patterns become their tiles there.
  LayerTiles tiles_at(const LayerTiles& sources, std::int64_t row, std::int64_t col) const;

 private:
  void set_period(PatternCombination& combination) const;

  const std::span<const TileLayer> layers_;
  const std::int64_t most_tiles_;
  std::vector<PatternCombination> combinations_;
  DataIndex index_;
};

/// A hash of the sources of a tile.
std::uint64_t hash_of(std::uint64_t seed, std::span<const LayerTile> tiles);

}  // namespace fdma
