// Patterns in other blocks.
//
// A mask with patterns is a mask without, together with each pattern where its segments lie. The
// segments of one pattern, as full segments, are a mask of their own; it is brought into the new
// blocks like any other. The pattern itself is periodic in the new blocks too: its translations are
// those of the old tiles that move whole new tiles. One period is gathered cell by cell. The two
// masks are intersected, and the union of all is the result. Cells that are not patterns and need a
// column table are given up here: such a mask is written out.
//
// Example     `causal & k % 10 < 3`, blocks of 128 to blocks of 64: causal tiles in blocks of 64,
//             and a pattern of 10 columns / 2 = 5 columns of 64 keys
#include <numeric>

#include "algebra/combine_segments.hpp"
#include "algebra/reblock.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "fdma/formats/tile_lattice.hpp"
#include "segment/bit_copy.hpp"
#include "segment/uniform_runs.hpp"

namespace fdma {
namespace {

constexpr std::int32_t kNoPattern = -1;

// The segments of one pattern as full segments, or those of no pattern as they are.
SegmentMask segments_of(const SegmentMask& mask, std::int32_t pattern) {
  SegmentMask result;
  result.q_len = mask.q_len;
  result.kv_len = mask.kv_len;
  result.block = mask.block;
  if (pattern == kNoPattern) {
    result.bitmaps = mask.bitmaps;
    result.row_offsets = mask.row_offsets;
    result.row_intervals = mask.row_intervals;
  }
  for (TileRun run : mask.runs) {
    const std::int64_t first = run.first_segment;
    run.first_segment = std::ssize(result.segments);
    for (std::int64_t s = first; s < first + run.num_segments; ++s) {
      TileSegment segment = mask.segments[static_cast<std::size_t>(s)];
      const bool is_pattern = segment.kind == SegmentKind::pattern;
      if (is_pattern ? segment.data_index != pattern : pattern != kNoPattern) continue;
      if (is_pattern) {
        segment.kind = SegmentKind::full;
        segment.data_index = 0;
      }
      result.segments.push_back(segment);
    }
    run.num_segments = static_cast<std::int32_t>(std::ssize(result.segments) - run.first_segment);
    result.runs.push_back(run);
  }
  return result;
}

// How a pattern repeats in blocks of another shape, in at most `most_tiles`.
std::optional<PatternPeriod> period_in(const TilePattern& p, BlockShape from, BlockShape to,
                                       std::int64_t most_tiles) {
  const std::int64_t rows = p.num_rows, cols = p.num_cols, shift = p.skew * rows % cols;
  TileLattice lattice;  // of tiles of `to`
  if (!lattice.restrict_to(to.block_q, 0, from.block_q * rows) ||
      !lattice.restrict_to(0, to.block_kv, from.block_kv) ||
      !lattice.restrict_to(-shift * to.block_q * from.block_kv, rows * to.block_kv * from.block_q,
                           rows * cols * from.block_q * from.block_kv)) {
    return std::nullopt;
  }
  return period_of(lattice, most_tiles / lattice.num_cols);
}

// A pattern of a mask over a whole window, in other blocks. Cells past the window may be true.
class PatternWindow {
 public:
  PatternWindow(const SegmentMask& mask, const CellWindow& window, BlockShape block)
      : parts_(mask, UniformRuns::Patterns::kept), window_(window), from_(mask.block) {
    result_.q_len = window.q_end - window.q_begin;
    result_.kv_len = window.kv_end - window.kv_begin;
    result_.block = block;
  }

  SegmentMask fill(std::int32_t pattern, const PatternPeriod& period) {
    pattern_ = kFirstPattern + static_cast<TileSource>(pattern);
    result_.patterns.push_back({static_cast<std::int32_t>(period.num_rows),
                                static_cast<std::int32_t>(period.num_cols),
                                static_cast<std::int32_t>(period.skew), 0});
    std::vector<std::uint64_t> words(static_cast<std::size_t>(result_.words_per_bitmap()));
    for (std::int64_t row = 0; row < period.num_rows; ++row) {
      for (std::int64_t column = 0; column < period.num_cols; ++column) {
        std::fill(words.begin(), words.end(), 0);
        gather(row, column + period.skew * row, words.data());
        const std::int32_t tile = tile_of(words);
        if (tile == kEmptyTile) continue;
        result_.pattern_tiles.push_back({static_cast<std::int32_t>(column), tile});
      }
      result_.pattern_offsets.push_back(std::ssize(result_.pattern_tiles));
    }
    const std::int32_t num_rows = result_.num_tile_rows(), stride = row_period(result_.block);
    for (std::int32_t row = 0; row < std::min(stride, num_rows); ++row) {
      result_.runs.push_back({row, stride, (num_rows - row - 1) / stride + 1, 1, row});
      result_.segments.push_back({0, result_.num_tile_cols(), 0, 0, SegmentKind::pattern, 0});
    }
    return std::move(result_);
  }

 private:
  // Writes the cells of tile (row, col) of the window.
  void gather(std::int64_t row, std::int64_t col, std::uint64_t* words) {
    const std::int64_t block_q = result_.block.block_q, block_kv = result_.block.block_kv;
    const std::int64_t k_begin = window_.kv_begin + col * block_kv;
    for (std::int64_t r = 0; r < block_q; ++r) {
      const std::int64_t q = window_.q_begin + row * block_q + r;
      for (std::int64_t k = k_begin; k < k_begin + block_kv;) {
        const std::int64_t c = k % from_.block_kv;
        const std::int64_t count = std::min(from_.block_kv - c, k_begin + block_kv - k);
        const std::int64_t to = r * block_kv + k - k_begin;
        const TileSource source =
            parts_.tile_of_pattern(pattern_, q / from_.block_q, k / from_.block_kv);
        if (source == kFullTiles) {
          set_bits(words, to, to + count);
        } else if (source != kEmptyTiles) {
          copy_bits(words, to, parts_.bitmap_of(source, nullptr),
                    q % from_.block_q * from_.block_kv + c, count);
        }
        k += count;
      }
    }
  }

  // The tile that holds these cells, stored if it is new.
  std::int32_t tile_of(const std::vector<std::uint64_t>& words) {
    const auto all_are = [&](std::uint64_t value) {
      return std::all_of(words.begin(), words.end(),
                         [&](std::uint64_t word) { return word == value; });
    };
    if (all_are(0)) return kEmptyTile;
    if (all_are(~std::uint64_t{0})) return kFullTile;
    const std::uint64_t hash = hash_words(words.data(), std::ssize(words));
    const std::int32_t found = index_.find(hash, [&](std::int32_t i) {
      return std::equal(words.begin(), words.end(), result_.bitmap(i).begin());
    });
    if (found >= 0) return found;
    const auto index = static_cast<std::int32_t>(result_.num_bitmaps());
    result_.bitmaps.insert(result_.bitmaps.end(), words.begin(), words.end());
    index_.insert(hash, index);
    return index;
  }

  UniformRuns parts_;
  const CellWindow window_;
  const BlockShape from_;
  TileSource pattern_ = kFirstPattern;
  SegmentMask result_;
  DataIndex index_;
};

}  // namespace

std::optional<SegmentMask> reblock_patterns(const SegmentMask& mask, const CellWindow& window,
                                            BlockShape block) {
  const std::int64_t num_tiles = ceil_div(window.q_end - window.q_begin, block.block_q) *
                                 ceil_div(window.kv_end - window.kv_begin, block.block_kv);
  std::vector<PatternPeriod> periods;
  for (const TilePattern& pattern : mask.patterns) {
    const std::optional<PatternPeriod> period =
        period_in(pattern, mask.block, block, std::min(num_tiles, kMaxPatternTiles));
    if (!period) return std::nullopt;
    periods.push_back(*period);
  }
  SegmentMask result = reblock(segments_of(mask, kNoPattern), window, block);
  if (!result.column_offsets.empty()) return std::nullopt;
  for (std::size_t i = 0; i < periods.size(); ++i) {
    const auto pattern = static_cast<std::int32_t>(i);
    const SegmentMask place = reblock(segments_of(mask, pattern), window, block);
    if (!place.column_offsets.empty()) return std::nullopt;
    const SegmentMask tiles = PatternWindow(mask, window, block).fill(pattern, periods[i]);
    const SegmentMask part = combine_segments(place, tiles, SetOperation::intersection);
    if (!part.column_offsets.empty()) return std::nullopt;
    result = combine_segments(result, part, SetOperation::union_of);
    if (!result.column_offsets.empty()) return std::nullopt;
  }
  return result;
}

}  // namespace fdma
