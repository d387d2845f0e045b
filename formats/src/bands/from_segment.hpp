// A segment mask as bands of query rows whose key intervals move linearly, where it is one.
#pragma once

#include <optional>

#include "fdma/formats/row_bands.hpp"
#include "fdma/formats/segment_mask.hpp"

namespace fdma {

/// The bands of a mask, or nothing if they are many more than its runs and the intervals of its row
/// panels: rows with many intervals, long runs of staircases, column tables. The answer says what
/// is cheaper, never what is true.
///
/// Cost: O(runs + segments + rows of distinct payloads), whatever the answer.
std::optional<RowBands> bands_from_segment(const SegmentMask& mask);

}  // namespace fdma
