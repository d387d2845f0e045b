// A window of a column table.
#pragma once

#include <span>

#include "algebra/reblock.hpp"
#include "fdma/formats/column_intervals.hpp"

namespace fdma {

/// The query intervals of the keys of a window, cut to its query rows and relative to its corner.
/// Cost: O(keys + intervals) of the window.
ColumnIntervals column_window(std::span<const std::int64_t> offsets,
                              std::span<const Interval> intervals, const CellWindow& window);

}  // namespace fdma
