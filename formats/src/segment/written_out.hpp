// Pattern segments written out as full and bitmap segments.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "fdma/formats/segment_mask.hpp"

namespace fdma {

/// Appends a segment of tile row `row`, whose steps are applied. A pattern segment is appended as
/// the full and bitmap segments that it stands for, neighbours with equal tiles joined.
inline void append_written_out(const SegmentMask& mask, std::int32_t row,
                               const TileSegment& segment, std::vector<TileSegment>& out) {
  if (segment.kind != SegmentKind::pattern) {
    out.push_back(segment);
    return;
  }
  mask.pattern_row(segment.data_index, row)
      .for_each_tile(
          segment.first_tile, segment.end_tile, [&](std::int32_t col, std::int32_t bitmap) {
            const auto kind = bitmap == kFullTile ? SegmentKind::full : SegmentKind::bitmap;
            const std::int32_t index = std::max(bitmap, 0);
            if (!out.empty() && out.back().end_tile == col && out.back().kind == kind &&
                out.back().data_index == index) {
              ++out.back().end_tile;
            } else {
              out.push_back({col, col + 1, 0, 0, kind, index});
            }
          });
}

}  // namespace fdma
