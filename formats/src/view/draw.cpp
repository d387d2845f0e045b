// A mask as text.
//
// One character stands for a rectangle of tiles. For each line of the drawing, full and other
// segments of its tile rows are added up over the characters. A segment touches a few characters at
// its ends and all characters between them, which a difference array adds in constant time. A
// character is full iff all its tiles are full, empty iff no segment touches it. A pattern segment
// touches a character where it has a tile that is not empty: those that hold a whole turn of the
// pattern row are alike, others are looked up one by one. Cost: O(segments of all tile rows +
// characters), and O(characters) for each row of a pattern that is wider than a character.
#include "fdma/formats/draw.hpp"

#include <fmt/format.h>

#include <algorithm>

#include "fdma/formats/convert.hpp"
#include "segment/pattern_bounds.hpp"
#include "segment/stored_rows.hpp"

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
  Line(const SegmentMask& mask, std::int64_t tiles_per_char)
      : mask_(mask),
        pattern_rows_(
            mask,
            [](const PatternTile& tile) {
              return tile.bitmap == kFullTile ? PatternTotals{1, 0, 0} : PatternTotals{0, 1, 0};
            }),
        num_cols_(mask.num_tile_cols()),
        tiles_per_char_(tiles_per_char),
        full_tiles_(static_cast<std::size_t>(ceil_div(num_cols_, tiles_per_char)) + 1),
        full_steps_(full_tiles_.size() + 1),
        touch_steps_(full_tiles_.size() + 1) {}

  void add(std::int64_t row, const TileSegment& segment) {
    if (segment.kind == SegmentKind::pattern) {
      add_pattern(row, segment);
      return;
    }
    touch(segment.first_tile, segment.end_tile);
    if (segment.kind == SegmentKind::full) fill(segment.first_tile, segment.end_tile);
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
  // A segment touches the characters of tiles [first, end).
  void touch(std::int64_t first, std::int64_t end) {
    ++touch_steps_[static_cast<std::size_t>(first / tiles_per_char_)];
    --touch_steps_[static_cast<std::size_t>((end - 1) / tiles_per_char_) + 1];
  }

  // Tiles [first, end) are full.
  void fill(std::int64_t first, std::int64_t end) {
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

  // A pattern row has empty or partial tiles, or is full. Where it has, a character with a whole
  // turn cannot be full.
  void add_pattern(std::int64_t row, const TileSegment& segment) {
    const TilePattern& pattern = mask_.patterns[static_cast<std::size_t>(segment.data_index)];
    const std::int64_t end = segment.end_tile;
    PatternRowWalk walk(mask_, pattern, row, segment.first_tile);
    PatternBound from = walk.bound();
    const PatternTotals& turn = pattern_rows_.before(from.whole_turn);
    if (turn.full == pattern.num_cols) {
      touch(segment.first_tile, end);
      fill(segment.first_tile, end);
      return;
    }
    if (turn.full + turn.partial == 0) return;
    for (std::int64_t first = segment.first_tile; first < end;) {
      const std::int64_t c = first / tiles_per_char_;
      const std::int64_t inner_end = end / tiles_per_char_ * tiles_per_char_;
      if (first == c * tiles_per_char_ && first < inner_end &&
          tiles_per_char_ >= pattern.num_cols) {
        touch(first, inner_end);
        walk.advance(inner_end - first);
        from = walk.bound();
        first = inner_end;
        continue;
      }
      const std::int64_t next = std::min((c + 1) * tiles_per_char_, end);
      walk.advance(next - first);
      const PatternBound to = walk.bound();
      const PatternTotals tiles = sum_between(pattern_rows_, from, to);
      if (tiles.full + tiles.partial > 0) touch(first, next);
      full_tiles_[static_cast<std::size_t>(c)] += tiles.full;
      from = to;
      first = next;
    }
  }

  const SegmentMask& mask_;
  const PatternRowSums<PatternTotals> pattern_rows_;
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
  Line line(segments, cols_per_char);
  for_each_stored_row(segments, [&](std::int32_t row, std::span<const TileSegment> in_row) {
    for (const TileSegment& segment : in_row) line.add(row, segment);
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
