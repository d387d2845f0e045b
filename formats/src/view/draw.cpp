// A mask as text.
//
// One character stands for a rectangle of tiles. For each line of the drawing, full and other
// segments of its tile rows are added up over the characters. A segment touches a few characters at
// its ends and all characters between them, which a difference array adds in constant time. A
// character is full iff all its tiles are full, empty iff no segment touches it. Cost: O(segments
// of all tile rows + characters); a run of rows without segments costs O(1) a row.
#include "fdma/formats/draw.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "fdma/formats/convert.hpp"

namespace fdma {
namespace {

struct Ink {
  const char* full;
  const char* partial;
  const char* empty;
};
constexpr Ink kUnicode{"█", "▒", "·"};
constexpr Ink kAscii{"#", "+", "."};

// The number of tiles and of touching segments of each character of one line.
class Line {
 public:
  Line(std::int64_t num_cols, std::int64_t tiles_per_char)
      : num_cols_(num_cols),
        tiles_per_char_(tiles_per_char),
        full_tiles_(static_cast<std::size_t>(ceil_div(num_cols, tiles_per_char)) + 1),
        full_steps_(full_tiles_.size() + 1),
        touch_steps_(full_tiles_.size() + 1) {}

  void add(const TileSegment& segment) {
    const std::int64_t first = segment.first_tile, end = segment.end_tile;
    ++touch_steps_[static_cast<std::size_t>(first / tiles_per_char_)];
    --touch_steps_[static_cast<std::size_t>((end - 1) / tiles_per_char_) + 1];
    if (segment.kind != SegmentKind::full) return;
    const std::int64_t inner_first = ceil_div(first, tiles_per_char_);
    const std::int64_t inner_end = end / tiles_per_char_;
    if (inner_first > inner_end) {  // inside one character
      full_tiles_[static_cast<std::size_t>(inner_end)] += end - first;
      return;
    }
    ++full_steps_[static_cast<std::size_t>(inner_first)];
    --full_steps_[static_cast<std::size_t>(inner_end)];
    const std::int64_t before = inner_first * tiles_per_char_ - first;
    if (before > 0) full_tiles_[static_cast<std::size_t>(inner_first - 1)] += before;
    full_tiles_[static_cast<std::size_t>(inner_end)] += end - inner_end * tiles_per_char_;
  }

  // Appends the characters of `num_rows` tile rows and clears the counts.
  void flush(std::int64_t num_rows, const Ink& ink, std::string& out) {
    std::int64_t touches = 0, full_rows = 0;
    for (std::size_t c = 0; c + 1 < full_tiles_.size(); ++c) {
      touches += touch_steps_[c];
      full_rows += full_steps_[c];
      const std::int64_t tiles = std::min<std::int64_t>(
          tiles_per_char_, num_cols_ - static_cast<std::int64_t>(c) * tiles_per_char_);
      const bool is_full = full_rows * tiles_per_char_ + full_tiles_[c] == num_rows * tiles;
      out += touches == 0 ? ink.empty : is_full ? ink.full : ink.partial;
    }
    std::fill(full_tiles_.begin(), full_tiles_.end(), 0);
    std::fill(full_steps_.begin(), full_steps_.end(), 0);
    std::fill(touch_steps_.begin(), touch_steps_.end(), 0);
  }

 private:
  const std::int64_t num_cols_;
  const std::int64_t tiles_per_char_;
  std::vector<std::int64_t> full_tiles_;   // full tiles of characters that a segment covers in part
  std::vector<std::int64_t> full_steps_;   // differences of the tile rows that cover a character
  std::vector<std::int64_t> touch_steps_;  // differences of the segments that touch a character
};

// Tiles per character such that `tiles` of them fit into `limit` characters.
std::int64_t coarseness(std::int64_t tiles, int limit) {
  return std::max<std::int64_t>(1, ceil_div(tiles, std::max(1, limit)));
}

}  // namespace

std::string draw(const BlockMask& mask, std::int64_t group, const DrawOptions& options) {
  SegmentMask converted;
  const auto* stored = std::get_if<std::vector<SegmentMask>>(&mask.groups);
  if (stored == nullptr) converted = segment_of_group(mask, group, mask.block);
  const SegmentMask& segments =
      stored != nullptr ? (*stored)[static_cast<std::size_t>(group)] : converted;
  const Ink& ink = options.unicode ? kUnicode : kAscii;
  const std::int64_t num_rows = segments.num_tile_rows(), num_cols = segments.num_tile_cols();
  const std::int64_t cols_per_char = coarseness(num_cols, options.max_width);
  const std::int64_t rows_per_line = coarseness(num_rows, options.max_height);
  std::string out;
  Line line(num_cols, cols_per_char);
  for_each_tile_row(segments, [&](std::int32_t row, std::span<const TileSegment> in_row) {
    for (const TileSegment& segment : in_row) line.add(segment);
    const std::int64_t first = row / rows_per_line * rows_per_line;
    if (row + 1 < std::min(first + rows_per_line, num_rows)) return;
    line.flush(row + 1 - first, ink, out);
    out += '\n';
  });
  const TileCounts counts = count_tiles(segments);
  out += fmt::format(
      "{} full {}, {} partial {}, {} empty {}; {} x {} cells, blocks {} x {}, {} allowed pairs",
      ink.full, counts.full, ink.partial, counts.partial, ink.empty, counts.empty, segments.q_len,
      segments.kv_len, segments.block.block_q, segments.block.block_kv, counts.allowed_pairs);
  if (rows_per_line > 1 || cols_per_char > 1) {
    out += fmt::format("; a character is {} x {} tiles", rows_per_line, cols_per_char);
  }
  out += '\n';
  return out;
}

}  // namespace fdma
