// Runs of live rows of each key, in a tile whose cells are stored row by row. A kv index list has
// an entry for each run.
#pragma once

#include <cstdint>
#include <vector>

#include "fdma/formats/segment_mask.hpp"

namespace fdma {

/// Maximal runs of set bits down the columns of a tile: bit r * block_kv + c of `words`.
///
/// Example     keys 3 (rows 0 to 4 and row 9) and 7 (row 2) of a tile live: 3 runs, 2 keys
std::int64_t count_runs(const std::uint64_t* words, BlockShape block);
/// Columns with a set bit.
std::int64_t count_keys(const std::uint64_t* words, BlockShape block);

/// A run: rows [row_begin, row_end) of the tile see its key `column`.
struct CellRun {
  std::int32_t column;
  std::uint16_t row_begin;
  std::uint16_t row_end;
};
/// Appends the runs of a tile, by ascending row_end.
void append_runs(const std::uint64_t* words, BlockShape block, std::vector<CellRun>& runs);

/// Number of tiles that a row panel reaches into.
std::int64_t panel_tiles(const SegmentMask& mask, std::int64_t panel);
/// The cells of tile `tile` of a row panel, row by row. `words` has words_per_bitmap words.
void panel_cells(const SegmentMask& mask, std::int64_t panel, std::int64_t tile,
                 std::vector<std::uint64_t>& words);

}  // namespace fdma
