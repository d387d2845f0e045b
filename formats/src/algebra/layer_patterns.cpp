#include "algebra/layer_patterns.hpp"

#include <algorithm>
#include <bit>
#include <limits>

namespace fdma {

std::uint64_t hash_of(std::uint64_t seed, std::span<const LayerTile> tiles) {
  std::uint64_t hash = seed;
  for (const LayerTile& tile : tiles) {
    const std::uint64_t field = std::uint64_t{tile.source} << 2 | (tile.is_last_row ? 1u : 0u) |
                                (tile.is_last_col ? 2u : 0u);
    hash = (std::rotl(hash, 29) ^ field) * 0x9E3779B97F4A7C15u;
  }
  return hash;
}

std::int32_t PatternCombinations::find(const LayerTiles& sources, std::int64_t row,
                                       std::int64_t col) {
  const std::uint64_t hash =
      hash_of(static_cast<std::uint64_t>(row) << 32 ^ static_cast<std::uint64_t>(col),
              std::span(sources.data(), layers_.size()));
  const std::int32_t found = index_.find(hash, [&](std::int32_t i) {
    const PatternCombination& known = combinations_[static_cast<std::size_t>(i)];
    return known.row == row && known.col == col && known.sources == sources;
  });
  if (found >= 0) return found;
  const auto index = static_cast<std::int32_t>(combinations_.size());
  PatternCombination combination{};
  combination.sources = sources;
  combination.row = row;
  combination.col = col;
  set_period(combination);
  combinations_.push_back(combination);
  index_.insert(hash, index);
  return index;
}

void PatternCombinations::set_period(PatternCombination& combination) const {
  combination.period = {0, 0, 0};
  combination.may_be_large = true;
  TileLattice lattice;
  std::int64_t most_of_one = 0;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    const TileSource source = combination.sources[l].source;
    if (source < kFirstPattern) continue;
    const TilePattern& p = layers_[l].parts->mask().patterns[source - kFirstPattern];
    const std::int64_t shift = std::int64_t{p.skew} * p.num_rows % p.num_cols;
    if (!lattice.restrict_to(TileLattice{p.num_rows, shift, p.num_cols})) return;
    most_of_one = std::max(most_of_one, std::int64_t{p.num_rows} * p.num_cols);
  }
  PatternPeriod period{1, 1, 0};
  if (combination.row < 0 && combination.col < 0) {
    const std::optional<PatternPeriod> both = period_of(lattice, most_tiles_ / lattice.num_cols);
    if (!both) return;
    period = *both;
  } else if (combination.row < 0) {
    const std::optional<Translation> down = lattice.along(0, 1);
    if (!down) return;
    period.num_rows = down->rows;
  } else if (combination.col < 0) {
    period.num_cols = lattice.num_cols;
  }
  constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max();
  if (period.num_rows > kMost || period.num_cols > kMost || period.size() > most_tiles_) return;
  combination.period = period;
  combination.may_be_large = period.size() > most_of_one;
}

LayerTiles PatternCombinations::tiles_at(const LayerTiles& sources, std::int64_t row,
                                         std::int64_t col) const {
  LayerTiles tiles = sources;
  for (std::size_t l = 0; l < layers_.size(); ++l) {
    if (tiles[l].source < kFirstPattern) continue;
    const TileLayer& layer = layers_[l];
    const TileSource source =
        layer.parts->tile_of_pattern(tiles[l].source, row - layer.row_shift, col - layer.col_shift);
    if (source == kFullTiles) {
      tiles[l].source = source;
    } else {
      tiles[l] = {source, false, false};
    }
  }
  return tiles;
}

}  // namespace fdma
