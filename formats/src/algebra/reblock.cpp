// Re-blocking: tiles of the result from tiles of another shape and place.
//
// A window of a mask with patterns in the same blocks is a shift (shift.cpp), and keeps them; so does
// reblock_patterns.cpp, which divides a mask into patterns and the rest. Where a pattern would be
// too large, the mask is written out row by row.
// A mask that is bands of rows (from_segment.hpp) has no blocks: its bands are moved, cut and
// lowered again. A whole mask that keeps its blocks is one layer of tiles (tile_layers.hpp), whose
// rows move in step. A mask whose cells are in a column table is cut and lowered from that table.
// Everything else goes tile by tile:
//
// A tile row of the result overlaps a few tile rows of the source. Where one of them has a segment,
// tiles of the result are touched. Tiles that lie under full segments of every one of them are
// full. Touched tiles that are not full are gathered bit by bit (by words) and classified by their
// cells. All of this works on lists of ranges, so that empty and full ranges cost nothing however
// wide. Example: causal, 64 x 64 to 128 x 128: two source rows give full [0, 128 i), touched
// [0, 128 (i + 1)), and one tile to gather.
#include "algebra/reblock.hpp"

#include <algorithm>

#include "algebra/column_window.hpp"
#include "algebra/combine_segments.hpp"
#include "bands/from_segment.hpp"
#include "fdma/formats/band_algebra.hpp"
#include "segment/bit_copy.hpp"

namespace fdma {
namespace {

struct KeyRange {
  std::int64_t begin;
  std::int64_t end;
};

void append_range(std::vector<KeyRange>& ranges, std::int64_t begin, std::int64_t end) {
  if (begin >= end) return;
  if (!ranges.empty() && ranges.back().end >= begin) {
    ranges.back().end = std::max(ranges.back().end, end);
  } else {
    ranges.push_back({begin, end});
  }
}

class Reblocking {
 public:
  Reblocking(const SegmentMask& source, const CellWindow& window, BlockShape block)
      : source_(source),
        window_(window),
        block_(block),
        q_len_(window.q_end - window.q_begin),
        kv_len_(window.kv_end - window.kv_begin),
        num_cols_(ceil_div(kv_len_, block.block_kv)) {}

  SegmentMask run() {
    SegmentBuilder builder(q_len_, kv_len_, block_);
    for (std::int64_t row = 0; row < ceil_div(q_len_, block_.block_q); ++row) {
      const std::int64_t q_begin = row * block_.block_q;
      fetch(window_.q_begin + q_begin,
            window_.q_begin + std::min(q_begin + block_.block_q, q_len_));
      if (repeats()) {
        builder.repeat_tile_row();
        continue;
      }
      make_ranges();
      builder.add_tile_row(
          ranges_, [&](std::int32_t tile, std::uint64_t* words) { gather(tile, words); }, true);
    }
    return builder.finish();
  }

 private:
  struct SourceRow {
    std::int32_t row = -1;
    std::vector<TileSegment> segments;
  };
  // The first query row of a tile row within its source row, and the number of its rows.
  struct Cut {
    std::int64_t offset = -1;
    std::int64_t num_rows = 0;
    friend bool operator==(const Cut&, const Cut&) = default;
  };

  // Puts the source tile rows that hold query rows [q_begin, q_end) into rows_.
  void fetch(std::int64_t q_begin, std::int64_t q_end) {
    q_begin_ = q_begin;
    q_end_ = q_end;
    const auto first = static_cast<std::int32_t>(q_begin / source_.block.block_q);
    const auto last = static_cast<std::int32_t>((q_end - 1) / source_.block.block_q);
    const auto kept = std::find_if(rows_.begin(), rows_.end(),
                                   [&](const SourceRow& r) { return r.row >= first; });
    rows_.erase(rows_.begin(), kept);
    for (std::int32_t row = rows_.empty() ? first : rows_.back().row + 1; row <= last; ++row) {
      rows_.push_back({row, segments_of_row(source_, row)});
    }
  }

  // True if the current tile row holds the cells of the one before: the same source segments, cut
  // in the same way.
  bool repeats() {
    const Cut cut{q_begin_ % source_.block.block_q, q_end_ - q_begin_};
    const bool is_same =
        cut == last_cut_ &&
        std::equal(rows_.begin(), rows_.end(), last_.begin(), last_.end(),
                   [](const SourceRow& a, const auto& b) { return a.segments == b; });
    if (is_same) return true;
    last_cut_ = cut;
    last_.clear();
    for (const SourceRow& row : rows_) last_.push_back(row.segments);
    return false;
  }

  // Keys of a source segment, cut to the window and relative to its first key.
  KeyRange keys_of(const TileSegment& segment) const {
    const std::int64_t block_kv = source_.block.block_kv;
    return {std::max(segment.first_tile * block_kv, window_.kv_begin) - window_.kv_begin,
            std::min(segment.end_tile * block_kv, window_.kv_end) - window_.kv_begin};
  }

  // Sets ranges_ to the tiles of the current row, from touched and full keys of the source rows.
  void make_ranges() {
    const std::int64_t block_kv = block_.block_kv;
    touched_.clear();
    full_.assign(1, KeyRange{0, num_cols_});
    for (const SourceRow& source : rows_) {
      row_full_.clear();
      for (const TileSegment& segment : source.segments) {
        const KeyRange keys = keys_of(segment);
        if (keys.begin >= keys.end) continue;
        touched_.push_back({keys.begin / block_kv, ceil_div(keys.end, block_kv)});
        if (segment.kind == SegmentKind::full) append_range(row_full_, keys.begin, keys.end);
      }
      next_full_.clear();
      auto f = full_.begin();
      for (const KeyRange& keys : row_full_) {  // both ascend
        const KeyRange tiles{ceil_div(keys.begin, block_kv),
                             keys.end == kv_len_ ? num_cols_ : keys.end / block_kv};
        while (f != full_.end() && f->end <= tiles.begin) ++f;
        for (auto g = f; g != full_.end() && g->begin < tiles.end; ++g) {
          append_range(next_full_, std::max(g->begin, tiles.begin), std::min(g->end, tiles.end));
        }
      }
      full_.swap(next_full_);
    }
    std::sort(touched_.begin(), touched_.end(),
              [](const KeyRange& a, const KeyRange& b) { return a.begin < b.begin; });
    ranges_.clear();
    const auto add = [&](std::int64_t begin, std::int64_t end, bool is_full) {
      if (begin >= end) return;
      ranges_.push_back(
          {static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end), is_full});
    };
    auto full = full_.begin();
    std::int64_t done = 0;
    for (const KeyRange& tiles : touched_) {
      std::int64_t at = std::max(tiles.begin, done);
      done = std::max(done, tiles.end);
      while (at < tiles.end) {
        while (full != full_.end() && full->end <= at) ++full;
        if (full == full_.end() || full->begin >= tiles.end) {
          add(at, tiles.end, false);
          break;
        }
        add(at, full->begin, false);
        const std::int64_t end = std::min(full->end, tiles.end);
        add(std::max(at, full->begin), end, true);
        at = end;
      }
    }
  }

  // Writes the cells of tile `tile` of the current tile row.
  void gather(std::int32_t tile, std::uint64_t* words) const {
    const std::int64_t k_begin = window_.kv_begin + std::int64_t{tile} * block_.block_kv;
    const std::int64_t k_end = std::min(k_begin + block_.block_kv, window_.kv_end);
    const std::int64_t source_kv = source_.block.block_kv;
    for (const SourceRow& source : rows_) {
      const std::int64_t source_q = std::int64_t{source.row} * source_.block.block_q;
      const std::int64_t q_begin = std::max(q_begin_, source_q);
      const std::int64_t q_end = std::min(q_end_, source_q + source_.block.block_q);
      auto segment = std::lower_bound(
          source.segments.begin(), source.segments.end(), k_begin,
          [&](const TileSegment& s, std::int64_t k) { return s.end_tile * source_kv <= k; });
      for (; segment != source.segments.end() && segment->first_tile * source_kv < k_end;
           ++segment) {
        const std::int64_t begin = std::max(segment->first_tile * source_kv, k_begin);
        const std::int64_t end = std::min(segment->end_tile * source_kv, k_end);
        for (std::int64_t q = q_begin; q < q_end; ++q) {
          copy_row(*segment, q - source_q, begin, end, words,
                   (q - q_begin_) * block_.block_kv - k_begin);
        }
      }
    }
  }

  // Copies keys [begin, end) of row r of a source segment; key k goes to bit base + k.
  void copy_row(const TileSegment& segment, std::int64_t r, std::int64_t begin, std::int64_t end,
                std::uint64_t* words, std::int64_t base) const {
    const std::int64_t block_kv = source_.block.block_kv;
    if (segment.kind == SegmentKind::full) {
      set_bits(words, base + begin, base + end);
    } else if (segment.kind == SegmentKind::bitmap) {
      const std::uint64_t* bitmap = source_.bitmap(segment.data_index).data();
      for (std::int64_t k = begin; k < end;) {
        const std::int64_t c = k % block_kv;
        const std::int64_t count = std::min(block_kv - c, end - k);
        copy_bits(words, base + k, bitmap, r * block_kv + c, count);
        k += count;
      }
    } else {  // a row panel: masks with a column table do not come here
      const std::int64_t k_first = segment.first_tile * block_kv;
      const auto panel_row =
          static_cast<std::size_t>(segment.data_index * std::int64_t{source_.block.block_q} + r);
      const auto last = source_.row_intervals.begin() + source_.row_offsets[panel_row + 1];
      auto keys = std::upper_bound(source_.row_intervals.begin() + source_.row_offsets[panel_row],
                                   last, begin - k_first,
                                   [](std::int64_t k, const Interval& i) { return k < i.end; });
      for (; keys != last && k_first + keys->begin < end; ++keys) {
        set_bits(words, base + std::max(k_first + keys->begin, begin),
                 base + std::min(k_first + keys->end, end));
      }
    }
  }

  const SegmentMask& source_;
  const CellWindow window_;
  const BlockShape block_;
  const std::int64_t q_len_, kv_len_;
  const std::int64_t num_cols_;
  // The current tile row:
  std::int64_t q_begin_ = 0, q_end_ = 0;  // query rows of the source
  std::vector<SourceRow> rows_;
  std::vector<KeyRange> touched_, full_, row_full_, next_full_;
  std::vector<TileRange> ranges_;
  // The tile row before:
  Cut last_cut_;
  std::vector<std::vector<TileSegment>> last_;
};

}  // namespace

SegmentMask reblock(const SegmentMask& mask, const CellWindow& window, BlockShape block) {
  const std::int64_t q_len = window.q_end - window.q_begin;
  const std::int64_t kv_len = window.kv_end - window.kv_begin;
  const bool is_whole = q_len == mask.q_len && kv_len == mask.kv_len;
  if (const std::optional<RowBands> bands = bands_from_segment(mask)) {
    return segment_from_bands(
        is_whole ? *bands : move_bands(*bands, -window.q_begin, -window.kv_begin, q_len, kv_len),
        block);
  }
  if (mask.has_patterns()) {
    if (block == mask.block) {
      return is_whole ? mask : move_segment(mask, -window.q_begin, -window.kv_begin, q_len, kv_len);
    }
    if (std::optional<SegmentMask> result = reblock_patterns(mask, window, block)) {
      return *std::move(result);
    }
  }
  if (mask.column_offsets.empty()) {
    if (!is_whole || block != mask.block) return Reblocking(mask, window, block).run();
    return canonical_segment(mask);
  }
  ColumnIntervals cut = column_window(mask.column_offsets, mask.column_intervals, window);
  return segment_from_columns(cut.q_len, cut.kv_len, block, std::move(cut.offsets),
                              std::move(cut.intervals));
}

}  // namespace fdma
