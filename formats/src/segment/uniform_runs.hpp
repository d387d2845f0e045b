// Divides the tile rows of a segment mask into parts whose tiles all hold the same cells.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/formats/segment_mask.hpp"

namespace fdma {

/// The source of a tile's cells: kEmptyTiles, kFullTiles, or a number from kFirstPartial on, which
/// stands for a bitmap or for one tile of a row panel. Equal numbers mean equal cells. From
/// kFirstPattern on, a source is a pattern, and its tiles depend on their place.
using TileSource = std::uint32_t;
inline constexpr TileSource kEmptyTiles = 0;
inline constexpr TileSource kFullTiles = 1;
inline constexpr TileSource kFirstPartial = 2;
inline constexpr TileSource kFirstPattern = TileSource{1} << 31;

/// Tiles [first, end) of one tile row, and how the bounds move from one row of the run to the next.
struct UniformRun {
  std::int64_t first;
  std::int64_t end;
  std::int64_t step_first;
  std::int64_t step_end;
  TileSource source;
};

/// Divides segments into uniform parts. A row panel is divided at the tiles in which a key interval
/// begins or ends. A pattern segment is one part, or written out row by row as its tiles. Masks
/// with a column table have no such parts and must not be passed.
///
/// Cost: the segments of the row; the first visit of a panel reads its intervals.
class UniformRuns {
 public:
  enum class Patterns { written_out, kept };
  explicit UniformRuns(const SegmentMask& mask, Patterns patterns = Patterns::written_out);

  /// Replaces `parts` by those of tile row `row`. Returns the number of rows left in its run,
  /// including this one, or 1 if patterns of the row were written out.
  std::int64_t parts_of(std::int32_t row, std::vector<UniformRun>& parts);

  /// The bitmap of a partial source: stored, or written to `scratch` [words_per_bitmap].
  const std::uint64_t* bitmap_of(TileSource source, std::uint64_t* scratch) const;

  /// The source of a pattern's tile at any place, also outside the mask. It is no pattern.
  TileSource tile_of_pattern(TileSource pattern, std::int64_t row, std::int64_t col) const;

  const SegmentMask& mask() const { return mask_; }

 private:
  struct PanelTiles {  // the tiles of a panel are tile_sources_ [first, first + count)
    std::int64_t first = 0;
    std::int64_t count = -1;
  };
  struct PanelTile {
    std::int32_t panel;
    std::int32_t tile;
  };
  const PanelTiles& tiles_of_panel(std::int32_t panel, std::int64_t num_tiles);

  const SegmentMask& mask_;
  const Patterns patterns_;
  const TileSource first_panel_source_;
  std::vector<PanelTiles> panels_;        // by panel index
  std::vector<TileSource> tile_sources_;  // of the tiles of all panels met so far
  std::vector<PanelTile> panel_tiles_;    // by source - first_panel_source_
  std::vector<char> differs_;             // of the current panel
  std::vector<TileSegment> written_out_;  // of the current pattern segment
};

}  // namespace fdma
