// Patterns in a SegmentBuilder: reduced to their smallest periods and interned.
#include <cassert>
#include <vector>

#include "fdma/formats/segment_builder.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace fdma {
namespace {

// A pattern written out tile by tile.
struct WrittenPattern {
  std::int32_t num_rows;
  std::int32_t num_cols;
  std::int32_t skew;
  std::vector<std::int32_t> tiles;

  std::int32_t at(std::int32_t row, std::int32_t col) const {
    return tiles[static_cast<std::size_t>(row) * static_cast<std::size_t>(num_cols) +
                 static_cast<std::size_t>(col)];
  }
};

bool repeats_by_rows(const WrittenPattern& p, std::int32_t period) {
  const std::ptrdiff_t size = std::ptrdiff_t{period} * p.num_cols;
  return std::equal(p.tiles.begin() + size, p.tiles.end(), p.tiles.begin());
}

bool repeats_by_cols(const WrittenPattern& p, std::int32_t period) {
  for (std::int32_t row = 0; row < p.num_rows; ++row) {
    for (std::int32_t col = period; col < p.num_cols; ++col) {
      if (p.at(row, col) != p.at(row, col - period)) return false;
    }
  }
  return true;
}

// The smallest divisor of `length` for which `repeats` holds. If it holds for two divisors it holds
// for their greatest common one, so that primes can be divided out one after another.
template <class Repeats>
std::int32_t smallest_period(std::int32_t length, Repeats&& repeats) {
  std::int32_t period = length;
  std::int32_t rest = length;
  for (std::int32_t prime = 2; rest > 1; ++prime) {
    if (std::int64_t{prime} * prime > rest) prime = rest;
    while (rest % prime == 0) {
      rest /= prime;
      if (repeats(period / prime)) period /= prime;
    }
  }
  return period;
}

void reduce(WrittenPattern& p) {
  const std::int32_t num_cols =
      smallest_period(p.num_cols, [&](std::int32_t period) { return repeats_by_cols(p, period); });
  if (num_cols != p.num_cols) {
    std::vector<std::int32_t> tiles;
    tiles.reserve(static_cast<std::size_t>(p.num_rows) * static_cast<std::size_t>(num_cols));
    for (std::int32_t row = 0; row < p.num_rows; ++row) {
      for (std::int32_t col = 0; col < num_cols; ++col) tiles.push_back(p.at(row, col));
    }
    p.tiles = std::move(tiles);
    p.num_cols = num_cols;
    p.skew %= num_cols;
  }
  p.num_rows =
      smallest_period(p.num_rows, [&](std::int32_t period) { return repeats_by_rows(p, period); });
  p.tiles.resize(static_cast<std::size_t>(p.num_rows) * static_cast<std::size_t>(p.num_cols));
}

bool is_stored_as(const SegmentMask& mask, std::int32_t index, const WrittenPattern& p) {
  const TilePattern& stored = mask.patterns[static_cast<std::size_t>(index)];
  if (stored.num_rows != p.num_rows || stored.num_cols != p.num_cols || stored.skew != p.skew) {
    return false;
  }
  for (std::int32_t row = 0; row < p.num_rows; ++row) {
    const auto at = static_cast<std::size_t>(stored.first_row) + static_cast<std::size_t>(row);
    std::int64_t tile = mask.pattern_offsets[at];
    const std::int64_t end = mask.pattern_offsets[at + 1];
    for (std::int32_t col = 0; col < p.num_cols; ++col) {
      if (p.at(row, col) == kEmptyTile) continue;
      if (tile == end) return false;
      if (mask.pattern_tiles[static_cast<std::size_t>(tile)] != PatternTile{col, p.at(row, col)}) {
        return false;
      }
      ++tile;
    }
    if (tile != end) return false;
  }
  return true;
}

}  // namespace

SegmentBuilder::PatternContent SegmentBuilder::add_pattern(std::int32_t num_rows,
                                                           std::int32_t num_cols, std::int32_t skew,
                                                           std::span<const std::int32_t> tiles) {
  assert(num_rows > 0 && num_cols > 0 && skew >= 0 && skew < num_cols);
  assert(std::ssize(tiles) == std::int64_t{num_rows} * num_cols);
  WrittenPattern p{num_rows, num_cols, skew, {tiles.begin(), tiles.end()}};
  reduce(p);
  if (p.tiles.size() == 1) {
    const std::int32_t tile = p.tiles.front();
    if (tile == kEmptyTile) return {true, SegmentKind::full, 0};
    if (tile == kFullTile) return {false, SegmentKind::full, 0};
    return {false, SegmentKind::bitmap, tile};
  }
  const std::uint64_t hash = XXH3_64bits_withSeed(
      p.tiles.data(), p.tiles.size() * sizeof(std::int32_t),
      static_cast<std::uint64_t>(p.num_cols) << 32 | static_cast<std::uint32_t>(p.skew));
  const std::int32_t found =
      pattern_index_.find(hash, [&](std::int32_t index) { return is_stored_as(mask_, index, p); });
  if (found >= 0) return {false, SegmentKind::pattern, found};
  const auto index = static_cast<std::int32_t>(mask_.patterns.size());
  mask_.patterns.push_back({p.num_rows, p.num_cols, p.skew,
                            static_cast<std::int32_t>(mask_.pattern_offsets.size() - 1)});
  for (std::int32_t row = 0; row < p.num_rows; ++row) {
    for (std::int32_t col = 0; col < p.num_cols; ++col) {
      if (p.at(row, col) != kEmptyTile) mask_.pattern_tiles.push_back({col, p.at(row, col)});
    }
    mask_.pattern_offsets.push_back(static_cast<std::int64_t>(mask_.pattern_tiles.size()));
  }
  pattern_index_.insert(hash, index);
  return {false, SegmentKind::pattern, index};
}

}  // namespace fdma
