#include "commands/segment_dump.hpp"

#include <fmt/format.h>

#include "cli/number_text.hpp"
#include "inputs/mask_operand.hpp"

namespace fdma::maskc {
namespace {

std::string_view kind_name(SegmentKind kind) {
  switch (kind) {
    case SegmentKind::full:
      return "full";
    case SegmentKind::bitmap:
      return "bitmap";
    case SegmentKind::rows:
      return "rows";
    case SegmentKind::columns:
      return "columns";
    case SegmentKind::pattern:
      return "pattern";
  }
  return "full";
}

std::string segment_text(const TileSegment& segment, bool moves) {
  std::string text(kind_name(segment.kind));
  if (segment.kind == SegmentKind::bitmap || segment.kind == SegmentKind::rows ||
      segment.kind == SegmentKind::pattern) {
    text += fmt::format(" {}", segment.data_index);
  }
  text += fmt::format(" tiles [{}, {})", segment.first_tile, segment.end_tile);
  if (moves) text += fmt::format(" step ({:+}, {:+})", segment.step_first, segment.step_end);
  return text;
}

void dump_group(const SegmentMask& mask, std::string& out) {
  for (const TileRun& run : mask.runs) {
    out += fmt::format("  run rows {}", run.first_row);
    if (run.num_rows > 1) {
      out += fmt::format("..{}", run.first_row + run.row_stride * (run.num_rows - 1));
      if (run.row_stride != 1) out += fmt::format(" by {}", run.row_stride);
    }
    out += run.num_segments == 0 ? ": empty" : ": ";
    for (std::int32_t s = 0; s < run.num_segments; ++s) {
      if (s > 0) out += "; ";
      out += segment_text(mask.segments[static_cast<std::size_t>(run.first_segment + s)],
                          run.num_rows > 1);
    }
    out += '\n';
  }
  out += fmt::format("  {}", plural(mask.num_bitmaps(), "bitmap"));
  if (mask.num_row_panels() > 0) {
    out += fmt::format(", {} of {}", plural(mask.num_row_panels(), "row panel"),
                       plural(static_cast<std::int64_t>(mask.row_intervals.size()), "interval"));
  }
  if (!mask.column_offsets.empty()) {
    out += fmt::format(", column table of {}",
                       plural(static_cast<std::int64_t>(mask.column_intervals.size()), "interval"));
  }
  if (mask.has_patterns()) {
    out += fmt::format(", {} of {}",
                       plural(static_cast<std::int64_t>(mask.patterns.size()), "pattern"),
                       plural(static_cast<std::int64_t>(mask.pattern_tiles.size()), "tile"));
  }
  out += '\n';
}

std::string pattern_text(const SegmentMask& mask, const TilePattern& pattern) {
  std::string text = fmt::format("{} x {} tiles", pattern.num_rows, pattern.num_cols);
  if (pattern.skew != 0) text += fmt::format(", skew {}", pattern.skew);
  for (std::int32_t row = 0; row < pattern.num_rows; ++row) {
    text += row == 0 ? ": " : " | ";
    const char* separator = "";
    for (const PatternTile& tile : mask.pattern_row_tiles(pattern, row)) {
      text += separator;
      text += tile.bitmap == kFullTile ? fmt::format("{}:full", tile.column)
                                       : fmt::format("{}:{}", tile.column, tile.bitmap);
      separator = " ";
    }
  }
  return text;
}

}  // namespace

std::string dump_segments(const BlockMask& mask) {
  std::string out =
      fmt::format("segments {}, blocks {} x {}, {}\n", lengths_text(mask.shape), mask.block.block_q,
                  mask.block.block_kv, plural(mask.num_groups(), "group"));
  const auto& groups = std::get<std::vector<SegmentMask>>(mask.groups);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    out += fmt::format("group {}: {} x {}, pairs", g, groups[g].q_len, groups[g].kv_len);
    for (std::int64_t b = 0; b < mask.shape.num_batches; ++b) {
      for (std::int64_t h = 0; h < mask.shape.num_heads; ++h) {
        if (mask.group(b, h) == static_cast<std::int32_t>(g)) out += fmt::format(" ({},{})", b, h);
      }
    }
    out += '\n';
    dump_group(groups[g], out);
    for (std::size_t p = 0; p < groups[g].patterns.size(); ++p) {
      out += fmt::format("  pattern {}: {}\n", p, pattern_text(groups[g], groups[g].patterns[p]));
    }
  }
  return out;
}

}  // namespace fdma::maskc
