// Counts the begins of runs of ones in bitmaps.
#pragma once

#include <cstdint>

#include "fdma/base/interval.hpp"

namespace fdma {

/// Key intervals of all rows of `num_tiles` tiles that lie one after another in `words` (bitmap
/// order, adjacent in the mask); any value above `limit` if there are more. Cost: about 0.1 us per
/// 128 x 128 tile.
std::int64_t count_row_starts(const std::uint64_t* words, std::int64_t num_tiles, BlockShape block,
                              std::int64_t limit);

/// Query intervals of all columns of one bitmap that begin below its first row: the true cells
/// under a false cell.
std::int64_t count_column_starts(const std::uint64_t* words, BlockShape block);

/// Number of ones of a & ~b.
std::int64_t count_and_not(const std::uint64_t* a, const std::uint64_t* b, std::int64_t num_words);

}  // namespace fdma
