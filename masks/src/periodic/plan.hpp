// Which tiles of a mask repeat, and the few that have to be evaluated.
//
// Idea. The cuts of a band (analysis.hpp) divide each of its tile rows: a cut covers the tiles that
// it may pass through, and between such tiles all cells lie on one side. A stretch is a part of a
// tile row in which every cut has one state: below, on it, above. All stretches of a band with the
// same states are a region, in which a translation of the lattice that does not move across a cut
// of the region (a cut whose state is "on it") maps tiles to equal tiles. So
//   plane    no cut: tiles repeat with the lattice
//   line     parallel cuts: tiles repeat by one translation along them
//   level    cuts on rows alone: tiles repeat along the tile row
//   single   cuts of different directions: no tile repeats
// Each class of tiles gets one slot, at its first tile in row-major order. Slots are what is
// evaluated.
//
// Cut rows    A cut on rows alone divides the band, and the parts are analyzed again, so that a
//             minimum which their rows decide has one form there.
// Edges       A ragged last tile row or column is a cut too.
// Cost        O(tile rows * cuts * log(cuts) + slots), and an analysis a band
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "fdma/formats/tile_lattice.hpp"
#include "fdma/masks/mask_ir.hpp"
#include "ir/range.hpp"
#include "lower/work_meter.hpp"
#include "periodic/analysis.hpp"

namespace fdma::periodic {

/// Tile rows with one structure. No cut on rows alone changes its state inside.
struct Band {
  std::int32_t first_row = 0;
  std::int32_t end_row = 0;
  Structure structure;
};

/// The bands of a mask from the top; nothing where analyze has nothing, or there are too many.
std::optional<std::vector<Band>> make_bands(const IrProgram& program, const TableRanges& tables,
                                            BlockShape block);

enum class RegionKind : std::uint8_t { plane, line, single };

/// Stretches of one band whose tiles repeat in one way. A level is a plane of one tile row.
struct Region {
  RegionKind kind = RegionKind::single;
  std::int32_t first_row = 0;  ///< the row of a level; that of the first track, kind single
  TileLattice lattice;         ///< plane
  Translation step;            ///< line, rows > 0
  std::optional<PatternPeriod> period;  ///< plane; line once the plan is complete
  std::int64_t num_tiles = 0;           ///< of all stretches
  bool is_decided = true;  ///< the first stretches are empty or full by the ranges of the program
  std::int32_t num_probed = 0;

  /// Slots of the tiles of one row class: slot i belongs to column class base + i; -1: none.
  struct Track {
    std::int64_t base = 0;
    std::vector<std::int32_t> slots;
    std::int64_t num_known = 0;
  };
  std::vector<Track> tracks;

  /// The row and column class of a tile.
  Translation reduce(std::int32_t row, std::int32_t col) const;
  /// The slot of a class, or -1.
  std::int32_t slot(const Translation& reduced) const;
};

/// Tiles [first, end) of a tile row.
struct Stretch {
  std::int32_t first;
  std::int32_t end;
  std::int32_t region;
};

/// A class of tiles: its first tile.
struct Slot {
  std::int32_t row;
  std::int32_t col;
};

class TilePlan {
 public:
  /// Nothing if the program has no bands, the plan would take more than `most_slots` slots, or the
  /// meter stops the work.
  static std::optional<TilePlan> make(const IrProgram& program, const TableRanges& tables,
                                      BlockShape block, std::int64_t most_slots, WorkMeter& meter);

  const std::vector<Region>& regions() const { return regions_; }
  /// Row-major.
  const std::vector<Slot>& slots() const { return slots_; }
  std::span<const Stretch> stretches(std::int32_t row) const {
    const auto at = static_cast<std::size_t>(row);
    return {stretches_.data() + offsets_[at],
            static_cast<std::size_t>(offsets_[at + 1] - offsets_[at])};
  }
  /// Tiles that ranges do not decide: about what box form evaluates.
  std::int64_t num_undecided() const;

 private:
  TilePlan() = default;
  friend class Planner;
  std::vector<Region> regions_;
  std::vector<Slot> slots_;
  std::vector<Stretch> stretches_;
  std::vector<std::int64_t> offsets_{0};
};

}  // namespace fdma::periodic
