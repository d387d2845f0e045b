// Converts a segment mask to bands of query rows whose key intervals move linearly, where possible.
#pragma once

#include <optional>

#include "fdma/formats/row_bands.hpp"
#include "fdma/formats/segment_mask.hpp"

namespace fdma {

/// The bands of a mask. The result is empty if there are many more bands than runs and intervals of
/// row panels: rows with many intervals, long runs of staircases, column tables. An empty result
/// means that bands are not cheaper, not that they cannot exist.
///
/// Cost: O(runs + segments + rows of distinct bitmaps and panels), whatever the result.
std::optional<RowBands> bands_from_segment(const SegmentMask& mask);

}  // namespace fdma
