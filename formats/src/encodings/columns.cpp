// Query intervals per key from and to the canonical form.
//
// From the canonical form: going down the query rows, a key's interval begins or ends where its
// cell differs from the one above. The code looks only for these changes:
//  - from the last row of a tile row to the first of the next one, as the difference of two sorted
//    lists of interval bounds: bounds in both cancel, the others delimit the keys that change
//  - inside a row panel, as the same difference for the lists of adjacent rows
//  - inside a bitmap, as the exclusive or of adjacent rows
//  - full and empty tiles have none
// Example: causal over 1M tokens has one bound per row that moves by one key, so there are 1M
// changes and nothing else is visited. Changes give the intervals ordered by end; counting sort
// orders them by key. Cost: O(kv_len + intervals + segments of all tile rows + partial cells / 64).
//
// A mask with patterns is not written out as it is: the cells in which an interval begins, which are
// those that a mask moved by one query row does not have, are a mask, and so are those in which one
// ends. Both have as many cells as there are intervals, and are listed by key.
// Example: `causal & k % 10 < 3` has one interval for each key; all tiles but those of the diagonal
// have neither a begin nor, below the last row, an end.
#include <algorithm>
#include <bit>

#include "algebra/combine_segments.hpp"
#include "fdma/formats/convert.hpp"
#include "fdma/formats/mask_statistics.hpp"
#include "segment/bit_copy.hpp"

namespace fdma {
namespace {

class TurnCollector {
 public:
  TurnCollector(std::int64_t kv_len, std::int64_t num_intervals)
      : begin_(static_cast<std::size_t>(kv_len), kClosed),
        offsets_(static_cast<std::size_t>(kv_len) + 1, 0) {
    entries_.reserve(static_cast<std::size_t>(num_intervals));
  }

  // Notes that the cell of `key` in row q differs from the one in row q - 1.
  void turn(std::int64_t key, std::int64_t q) {
    std::int32_t& begin = begin_[static_cast<std::size_t>(key)];
    if (begin == kClosed) {
      begin = static_cast<std::int32_t>(q);
      return;
    }
    entries_.push_back({static_cast<std::int32_t>(key), {begin, static_cast<std::int32_t>(q)}});
    ++offsets_[static_cast<std::size_t>(key) + 1];
    begin = kClosed;
  }

  // Notes a change in row q for all keys in which two ascending lists of intervals differ.
  void turn_difference(std::span<const Interval> above, std::span<const Interval> below,
                       std::int64_t k_begin, std::int64_t q) {
    std::size_t a = 0, b = 0;  // number of bounds passed: 2 * interval + (0 begin, 1 end)
    const auto bound = [](std::span<const Interval> list, std::size_t i) -> std::int64_t {
      if (i == 2 * list.size()) return kNone;
      return i % 2 == 0 ? list[i / 2].begin : list[i / 2].end;
    };
    std::int64_t open = kNone;
    while (a < 2 * above.size() || b < 2 * below.size()) {
      const std::int64_t next_a = bound(above, a), next_b = bound(below, b);
      if (next_a == next_b) {
        ++a, ++b;
        continue;
      }
      const std::int64_t next = std::min(next_a, next_b);
      ++(next_a < next_b ? a : b);
      if (open == kNone) {
        open = next;
      } else {
        for (std::int64_t k = open; k < next; ++k) turn(k_begin + k, q);
        open = kNone;
      }
    }
  }

  ColumnIntervals finish(std::int64_t q_len, std::int64_t kv_len) {
    ColumnIntervals result;
    result.q_len = q_len;
    result.kv_len = kv_len;
    for (std::size_t k = 0; k + 1 < offsets_.size(); ++k) offsets_[k + 1] += offsets_[k];
    result.intervals.resize(entries_.size());
    // Each offset moves from the first interval of its key to that of the next key.
    for (const Entry& entry : entries_) {
      std::int64_t& i = offsets_[static_cast<std::size_t>(entry.key)];
      result.intervals[static_cast<std::size_t>(i++)] = entry.queries;
    }
    offsets_.pop_back();
    offsets_.insert(offsets_.begin(), 0);
    result.offsets = std::move(offsets_);
    return result;
  }

 private:
  static constexpr std::int32_t kClosed = -1;
  static constexpr std::int64_t kNone = std::int64_t{1} << 40;
  struct Entry {
    std::int32_t key;
    Interval queries;
  };
  std::vector<std::int32_t> begin_;  // per key, first row of the open interval
  std::vector<std::int64_t> offsets_;
  std::vector<Entry> entries_;
};

// The changes between the rows of one bitmap, which is often that of the tile row before.
struct BitmapTurns {
  struct Turn {
    std::int32_t row;
    std::int32_t column;
  };
  std::int64_t data_index = -1;
  std::vector<Turn> turns;  ///< by row

  void read(const SegmentMask& mask, std::int64_t of_data_index) {
    if (data_index == of_data_index) return;
    data_index = of_data_index;
    turns.clear();
    const std::int64_t block_kv = mask.block.block_kv;
    const std::uint64_t* words = mask.bitmap(static_cast<std::int32_t>(of_data_index)).data();
    for (std::int64_t r = 1; r < mask.block.block_q; ++r) {
      for (std::int64_t c = 0; c < block_kv; c += 64) {
        const int width = static_cast<int>(std::min<std::int64_t>(64, block_kv - c));
        std::uint64_t changed = read_bits(words, r * block_kv + c, width) ^
                                read_bits(words, (r - 1) * block_kv + c, width);
        for (; changed != 0; changed &= changed - 1) {
          turns.push_back({static_cast<std::int32_t>(r),
                           static_cast<std::int32_t>(c + std::countr_zero(changed))});
        }
      }
    }
  }
};

// The changes between the rows of one segment of a tile row that begins with query row q_begin.
void turn_inside(const SegmentMask& mask, const TileSegment& segment, std::int64_t q_begin,
                 BitmapTurns& bitmap, TurnCollector& turns) {
  const std::int64_t block_q = mask.block.block_q, block_kv = mask.block.block_kv;
  const std::int64_t num_rows = std::min(block_q, mask.q_len - q_begin);
  const std::int64_t k_begin = segment.first_tile * block_kv;
  if (segment.kind == SegmentKind::rows) {
    const std::int64_t* offsets = mask.row_offsets.data() + segment.data_index * block_q;
    const auto row = [&](std::int64_t r) {
      return std::span(mask.row_intervals.data() + offsets[r],
                       static_cast<std::size_t>(offsets[r + 1] - offsets[r]));
    };
    for (std::int64_t r = 1; r < num_rows; ++r) {
      turns.turn_difference(row(r - 1), row(r), k_begin, q_begin + r);
    }
    return;
  }
  if (segment.kind != SegmentKind::bitmap) return;
  bitmap.read(mask, segment.data_index);
  for (std::int64_t tile = segment.first_tile; tile < segment.end_tile; ++tile) {
    for (const BitmapTurns::Turn& turn : bitmap.turns) {
      if (turn.row >= num_rows) break;
      turns.turn(tile * block_kv + turn.column, q_begin + turn.row);
    }
  }
}

ColumnIntervals columns_row_by_row(const SegmentMask& mask) {
  if (!mask.column_offsets.empty()) {  // the table holds every cell
    return {mask.q_len, mask.kv_len, mask.column_offsets, mask.column_intervals};
  }
  TurnCollector turns(mask.kv_len, count_query_intervals(mask));
  BitmapTurns bitmap;
  std::vector<Interval> above, below;
  for_each_tile_row(mask, [&](std::int32_t row, std::span<const TileSegment> segments) {
    const std::int64_t q_begin = std::int64_t{row} * mask.block.block_q;
    row_intervals_of(mask, q_begin, below);
    turns.turn_difference(above, below, 0, q_begin);
    for (const TileSegment& segment : segments) turn_inside(mask, segment, q_begin, bitmap, turns);
    row_intervals_of(mask, std::min(q_begin + mask.block.block_q, mask.q_len) - 1, above);
  });
  turns.turn_difference(above, {}, 0, mask.q_len);
  return turns.finish(mask.q_len, mask.kv_len);
}

}  // namespace

SegmentMask segment_from_columns(const ColumnIntervals& mask, BlockShape block) {
  return segment_from_columns(mask.q_len, mask.kv_len, block, mask.offsets, mask.intervals);
}

ColumnIntervals columns_from_segment(const SegmentMask& mask) {
  if (!mask.has_patterns()) return columns_row_by_row(mask);
  const SegmentMask below = shift_segment(mask, 1, 0), above = shift_segment(mask, -1, 0);
  if (!below.column_offsets.empty() || !above.column_offsets.empty()) {
    return columns_row_by_row(mask);  // a short mask, whose patterns moved out
  }
  ColumnIntervals result =  // the first row of each interval
      columns_row_by_row(combine_segments(mask, below, SetOperation::difference));
  const ColumnIntervals last_rows =
      columns_row_by_row(combine_segments(mask, above, SetOperation::difference));
  for (std::size_t i = 0; i < result.intervals.size(); ++i) {
    result.intervals[i].end = last_rows.intervals[i].end;
  }
  return result;
}

}  // namespace fdma
