// Lattices of translations of tiles: by how many tile rows and tile columns a mask may be moved
// without a change.
#pragma once

#include <cstdint>
#include <optional>

namespace fdma {

/// A move by whole tiles.
struct Translation {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  friend bool operator==(const Translation&, const Translation&) = default;
};

/// A lattice of rank 2 in its Hermite basis: (0, num_cols) and (num_rows, shift).
///
/// Example     rows - cols divisible by 3: num_rows = 1, shift = 1, num_cols = 3
/// Invariants  num_rows > 0, 0 <= shift < num_cols
/// Cost        every member is O(log of the numbers)
/// Limits      tile rows and columns below 2^31
struct TileLattice {
  std::int64_t num_rows = 1;
  std::int64_t shift = 0;
  std::int64_t num_cols = 1;

  /// Keeps the translations for which row_factor * rows + col_factor * cols is a multiple of
  /// `modulus` > 0. False, and the lattice is unchanged, if a number of the result passes kMost.
  bool restrict_to(std::int64_t row_factor, std::int64_t col_factor, std::int64_t modulus);

  /// Keeps the translations that are in `other` too. False, as above.
  bool restrict_to(const TileLattice& other);

  bool contains(const Translation& move) const;

  /// The tile to which translations of the lattice move a tile: rows in [0, num_rows), columns in
  /// [0, num_cols). Equal results are equal classes.
  Translation reduce(std::int64_t row, std::int64_t col) const;

  /// The shortest translation with row_factor * rows + col_factor * cols = 0 and rows > 0, or
  /// rows = 0 and cols > 0. Nothing if it passes kMost. Not both factors are 0.
  std::optional<Translation> along(std::int64_t row_factor, std::int64_t col_factor) const;

  static constexpr std::int64_t kMost = std::int64_t{1} << 31;
  friend bool operator==(const TileLattice&, const TileLattice&) = default;
};

/// How tiles repeat in a TilePattern: translations (0, num_cols) and (num_rows, skew * num_rows).
struct PatternPeriod {
  std::int64_t num_rows = 1;
  std::int64_t num_cols = 1;
  std::int64_t skew = 0;
  friend bool operator==(const PatternPeriod&, const PatternPeriod&) = default;

  std::int64_t size() const { return num_rows * num_cols; }
  /// The column of the pattern at a tile, in [0, num_cols).
  std::int64_t column(std::int64_t row, std::int64_t col) const;
};

/// The pattern with fewest rows whose translations lie in the lattice, at most `most_rows` rows.
std::optional<PatternPeriod> period_of(const TileLattice& lattice, std::int64_t most_rows);

/// A pattern that repeats by `step` and in which `width` neighbouring tiles of a row differ in
/// their columns: the one with fewest columns. step.rows > 0.
PatternPeriod period_along(const Translation& step, std::int64_t width);

}  // namespace fdma
