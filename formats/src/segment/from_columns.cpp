// From query intervals per key to tiles.
//
// A key's interval [b, e) makes the tile rows from b / block_q on partly live, and those from
// ceil(b / block_q) on wholly live. For each tile column, two difference arrays over the tile rows
// turn this into the class of every tile. Only the changes of class from one tile row to the next
// are kept, so that memory is O(changes) and not O(tiles).
//
// The cells of a partial tile come from its keys' intervals by bit transposition. Rule 3 of the
// canonical form compares bitmaps and panels with the column table, whose size is known from the
// start. Two shortcuts keep masks such as cache eviction from building bitmaps and panels that they
// will not keep:
//  - A lower bound. If one of the partial segments is stored as a panel, the total is at least
//  their
//    smallest panel; if none is, it is at least all their distinct bitmaps. Both are counted on the
//    key intervals of a few tile rows. If the bound exceeds the table, no cell is computed.
//  - Otherwise bitmaps and panels are built until they exceed the table.
// In both cases the rows are then emitted with columns segments.
#include <algorithm>
#include <array>
#include <bit>
#include <span>
#include <utility>

#include "fdma/formats/segment_from_columns.hpp"
#include "segment/bit_transpose.hpp"

namespace fdma {
namespace {

enum class TileClass : std::uint8_t { empty, partial, full };

// Tile `col` has class `now` from tile row `row` on.
struct ClassChange {
  std::int32_t row;
  std::int32_t col;
  TileClass now;
};

std::vector<ClassChange> class_changes(std::int64_t q_len, std::int64_t kv_len, BlockShape block,
                                       std::span<const std::int64_t> offsets,
                                       std::span<const Interval> intervals) {
  const auto num_rows = static_cast<std::size_t>(ceil_div(q_len, block.block_q));
  const std::int64_t num_cols = ceil_div(kv_len, block.block_kv);
  std::vector<ClassChange> changes;
  // The change, from a tile row on, of the number of live keys (times kLive) and of wholly live
  // keys. There is a bit for each tile row that has an entry, so that the others are skipped.
  constexpr std::int64_t kLive = std::int64_t{1} << 32;
  std::vector<std::int64_t> turns(num_rows + 1);
  std::vector<std::uint64_t> touched(num_rows / 64 + 1);
  const auto turn = [&](std::int64_t row, std::int64_t by) {
    const auto r = static_cast<std::size_t>(row);
    turns[r] += by;
    touched[r / 64] |= std::uint64_t{1} << (r % 64);
  };
  for (std::int64_t col = 0; col < num_cols; ++col) {
    const std::int64_t k_begin = col * block.block_kv;
    const std::int64_t k_end = std::min(k_begin + block.block_kv, kv_len);
    for (std::int64_t i = offsets[static_cast<std::size_t>(k_begin)];
         i < offsets[static_cast<std::size_t>(k_end)]; ++i) {
      const Interval queries = intervals[static_cast<std::size_t>(i)];
      turn(queries.begin / block.block_q, kLive);
      turn((queries.end - 1) / block.block_q + 1, -kLive);
      const std::int64_t first = ceil_div(queries.begin, block.block_q);
      const std::int64_t last =
          queries.end == q_len ? static_cast<std::int64_t>(num_rows) : queries.end / block.block_q;
      if (first < last) {
        turn(first, 1);
        turn(last, -1);
      }
    }
    TileClass before = TileClass::empty;
    std::int64_t num = 0;
    for (std::size_t word = 0; word < touched.size(); ++word) {
      for (; touched[word] != 0; touched[word] &= touched[word] - 1) {
        const std::size_t row =
            64 * word + static_cast<std::size_t>(std::countr_zero(touched[word]));
        num += turns[row];
        turns[row] = 0;
        if (row == num_rows) break;
        const std::int64_t num_live = num / kLive, num_whole = num % kLive;
        const TileClass now = num_whole == k_end - k_begin ? TileClass::full
                              : num_live > 0               ? TileClass::partial
                                                           : TileClass::empty;
        if (now != before) {
          changes.push_back({static_cast<std::int32_t>(row), static_cast<std::int32_t>(col), now});
        }
        before = now;
      }
      touched[word] = 0;
    }
  }
  std::stable_sort(changes.begin(), changes.end(),
                   [](const ClassChange& a, const ClassChange& b) { return a.row < b.row; });
  return changes;
}

// The tile rows that hold the same cells as the one before: no interval of any key begins or ends
// in them, in the one before, or between the two.
std::vector<bool> repeated_rows(std::int64_t q_len, BlockShape block,
                                std::span<const Interval> intervals) {
  std::vector<bool> is_repeated(static_cast<std::size_t>(ceil_div(q_len, block.block_q)), true);
  const auto change = [&](std::int64_t q) {
    is_repeated[static_cast<std::size_t>(q / block.block_q)] = false;
    const auto next = static_cast<std::size_t>(ceil_div(q, block.block_q));
    if (q % block.block_q != 0 && next < is_repeated.size()) is_repeated[next] = false;
  };
  for (const Interval& queries : intervals) {
    change(queries.begin);
    if (queries.end < q_len) change(queries.end);
  }
  if (q_len % block.block_q != 0) is_repeated.back() = false;  // it has fewer rows
  if (!is_repeated.empty()) is_repeated.front() = false;
  return is_repeated;
}

// The live tiles of every tile row; rows without a change share those of the row before.
class RowRanges {
 public:
  RowRanges(std::int64_t num_rows, std::int64_t num_cols, const std::vector<ClassChange>& changes)
      : live_(static_cast<std::size_t>(num_cols / 64 + 1)), full_(live_.size()) {
    auto change = changes.begin();
    for (std::int32_t row = 0; row < num_rows; ++row) {
      const auto first = change;
      for (; change != changes.end() && change->row == row; ++change) {
        set(live_, change->col, change->now != TileClass::empty);
        set(full_, change->col, change->now == TileClass::full);
      }
      if (row == 0 || change != first) {
        begin_ = ranges_.size();
        add_ranges();
      }
      bounds_.push_back({begin_, ranges_.size()});
    }
  }

  std::span<const TileRange> of(std::int64_t row) const {
    const auto [begin, end] = bounds_[static_cast<std::size_t>(row)];
    return {ranges_.data() + begin, end - begin};
  }

 private:
  static void set(std::vector<std::uint64_t>& bits, std::int32_t col, bool is_set) {
    const std::uint64_t bit = std::uint64_t{1} << (col % 64);
    std::uint64_t& word = bits[static_cast<std::size_t>(col / 64)];
    word = is_set ? word | bit : word & ~bit;
  }

  // A bit that differs from the one before begins a range of another class; 64 tiles at a time.
  void add_ranges() {
    std::uint64_t live_before = 0, full_before = 0;
    for (std::size_t w = 0; w < live_.size(); ++w) {
      const std::uint64_t live = live_[w], full = full_[w];
      std::uint64_t edges = (live ^ (live << 1 | live_before)) | (full ^ (full << 1 | full_before));
      for (; edges != 0; edges &= edges - 1) {
        const int bit = std::countr_zero(edges);
        const auto tile = static_cast<std::int32_t>(64 * w) + bit;
        if (is_open_) ranges_.back().end = tile;
        is_open_ = (live >> bit & 1) != 0;
        if (is_open_) ranges_.push_back({tile, tile, (full >> bit & 1) != 0});
      }
      live_before = live >> 63;
      full_before = full >> 63;
    }
  }

  std::vector<std::uint64_t> live_, full_;  // a bit for each tile of the current row, then zeros
  bool is_open_ = false;
  std::size_t begin_ = 0;
  std::vector<TileRange> ranges_;
  std::vector<std::pair<std::size_t, std::size_t>> bounds_;
};

// Counts the bytes that the widest partial segments of the last tile rows take at least.
class PanelBound {
 public:
  PanelBound(std::int64_t q_len, std::int64_t kv_len, BlockShape block,
             std::span<const std::int64_t> offsets, std::span<const Interval> intervals)
      : q_len_(q_len), kv_len_(kv_len), block_(block), offsets_(offsets), intervals_(intervals) {}

  /// Adds partial tiles [first, end) of a tile row; at most one call a row.
  void add(std::int32_t row, std::int32_t first, std::int32_t end) {
    q_begin_ = std::int64_t{row} * block_.block_q;
    q_end_ = std::min(q_begin_ + block_.block_q, q_len_);
    std::int64_t row_intervals = 0;
    before_.clear();
    for (std::int32_t tile = first; tile < end; ++tile) {
      std::uint64_t hash = 0;
      const std::int64_t k_begin = std::int64_t{tile} * block_.block_kv;
      const std::int64_t k_end = std::min(k_begin + block_.block_kv, kv_len_);
      for (std::int64_t k = k_begin; k < k_end; ++k) {
        clip(k);
        row_intervals += count_starts();
        for (const Interval& queries : now_) {
          const auto field =
              static_cast<std::uint64_t>((k - k_begin) << 32 | queries.begin << 16 | queries.end);
          hash = (std::rotl(hash, 29) ^ field) * 0x9E3779B97F4A7C15u;
        }
        before_.swap(now_);
      }
      hashes_.push_back(hash);
    }
    smallest_panel_ = std::min(smallest_panel_, 8 * (block_.block_q + row_intervals));
  }

  std::int64_t bytes() {
    if (hashes_.empty()) return 0;
    std::sort(hashes_.begin(), hashes_.end());
    const auto distinct = std::unique(hashes_.begin(), hashes_.end()) - hashes_.begin();
    return std::min(smallest_panel_, distinct * block_.block_q * block_.block_kv / 8);
  }

 private:
  // Sets now_ to the query intervals of key k in this tile row, relative to it.
  void clip(std::int64_t k) {
    now_.clear();
    auto it = intervals_.begin() + offsets_[static_cast<std::size_t>(k)];
    const auto last = intervals_.begin() + offsets_[static_cast<std::size_t>(k) + 1];
    if (last - it > 1) {
      it = std::upper_bound(it, last, q_begin_,
                            [](std::int64_t q, const Interval& i) { return q < i.end; });
    }
    for (; it != last && it->begin < q_end_; ++it) {
      if (it->end <= q_begin_) continue;
      now_.push_back(
          {static_cast<std::int32_t>(std::max<std::int64_t>(it->begin - q_begin_, 0)),
           static_cast<std::int32_t>(std::min<std::int64_t>(it->end, q_end_) - q_begin_)});
    }
  }

  // The number of rows in which a key interval starts here: those of now_ that are not in before_.
  std::int64_t count_starts() const {
    std::int64_t count = 0;
    for (const Interval& a : now_) {
      count += a.end - a.begin;
      for (const Interval& b : before_) {
        count -= std::max(0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
      }
    }
    return count;
  }

  const std::int64_t q_len_, kv_len_;
  const BlockShape block_;
  const std::span<const std::int64_t> offsets_;
  const std::span<const Interval> intervals_;
  std::int64_t q_begin_ = 0, q_end_ = 0;
  std::vector<Interval> before_, now_;
  std::vector<std::uint64_t> hashes_;
  std::int64_t smallest_panel_ = INT64_MAX;
};

constexpr std::int32_t kBoundRows = 4;

// Bitmaps of tiles from the runs of their keys. The last few are kept: a mask that moves along its
// diagonal has the same tiles in every row, and comparing runs is cheaper than transposing.
class TileBitmaps {
 public:
  explicit TileBitmaps(BlockShape block) : reader_(block) {}

  /// Rows [begin, end) of column `key`, both relative to the tile; to be called in ascending order.
  void add(std::int64_t key, std::int64_t begin, std::int64_t end) {
    runs_.push_back({static_cast<std::int32_t>(key),
                     {static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)}});
  }

  /// Writes the runs added so far to `words`, which are 0 on entry, and clears them.
  void write(std::uint64_t* words, std::int64_t num_words) {
    for (const CachedTile& cached : cached_) {
      if (cached.runs == runs_) {
        std::copy(cached.words.begin(), cached.words.end(), words);
        runs_.clear();
        return;
      }
    }
    for (const Run& run : runs_) reader_.set(run.key, run.rows.begin, run.rows.end);
    reader_.write(words);
    CachedTile& oldest = cached_[next_];
    next_ = (next_ + 1) % cached_.size();
    oldest.words.assign(words, words + num_words);
    oldest.runs.swap(runs_);
    runs_.clear();
  }

 private:
  struct Run {
    std::int32_t key;
    Interval rows;
    friend bool operator==(const Run&, const Run&) = default;
  };
  struct CachedTile {
    std::vector<Run> runs;
    std::vector<std::uint64_t> words;
  };
  ColumnTileReader reader_;
  std::vector<Run> runs_;
  std::array<CachedTile, 4> cached_;
  std::size_t next_ = 0;
};

}  // namespace

SegmentMask segment_from_columns(std::int64_t q_len, std::int64_t kv_len, BlockShape block,
                                 std::vector<std::int64_t> column_offsets,
                                 std::vector<Interval> column_intervals) {
  return *segment_from_columns(q_len, kv_len, block, std::move(column_offsets),
                               std::move(column_intervals), {});
}

std::optional<SegmentMask> segment_from_columns(std::int64_t q_len, std::int64_t kv_len,
                                                BlockShape block,
                                                std::vector<std::int64_t> column_offsets,
                                                std::vector<Interval> column_intervals,
                                                const std::function<bool()>& is_cancelled) {
  const std::int64_t num_rows = ceil_div(q_len, block.block_q);
  const std::int64_t num_cols = ceil_div(kv_len, block.block_kv);
  const std::vector<ClassChange> changes =
      class_changes(q_len, kv_len, block, column_offsets, column_intervals);
  const std::int64_t table_bytes =
      8 * (kv_len + 1) + 8 * static_cast<std::int64_t>(column_intervals.size());
  SegmentBuilder builder(q_len, kv_len, block);
  TileBitmaps bitmaps(block);
  const std::int64_t bitmap_words = std::int64_t{block.block_q} * block.block_kv / 64;
  std::vector<std::int64_t> next;  // per key, the first interval that does not end above the row
  const auto cells = [&](std::int32_t col, std::uint64_t* words) {
    const std::int64_t q_begin = std::int64_t{builder.next_row()} * block.block_q;
    const std::int64_t q_end = std::min(q_begin + block.block_q, q_len);
    const std::int64_t k_begin = std::int64_t{col} * block.block_kv;
    const std::int64_t k_end = std::min(k_begin + block.block_kv, kv_len);
    for (std::int64_t k = k_begin; k < k_end; ++k) {
      std::int64_t& i = next[static_cast<std::size_t>(k)];
      const std::int64_t last = column_offsets[static_cast<std::size_t>(k) + 1];
      while (i < last && column_intervals[static_cast<std::size_t>(i)].end <= q_begin) ++i;
      for (std::int64_t j = i; j < last; ++j) {
        const Interval queries = column_intervals[static_cast<std::size_t>(j)];
        if (queries.begin >= q_end) break;
        bitmaps.add(k - k_begin, std::max<std::int64_t>(queries.begin - q_begin, 0),
                    std::min<std::int64_t>(queries.end, q_end) - q_begin);
      }
    }
    bitmaps.write(words, bitmap_words);
  };
  const RowRanges rows(num_rows, num_cols, changes);
  PanelBound bound(q_len, kv_len, block, column_offsets, column_intervals);
  bool table_is_smaller = false;
  for (std::int64_t row = num_rows - 1;
       row >= std::max<std::int64_t>(num_rows - kBoundRows, 0) && !table_is_smaller; --row) {
    TileRange widest{0, 0, false};
    for (const TileRange& range : rows.of(row)) {
      if (!range.is_full && range.end - range.first > widest.end - widest.first) widest = range;
    }
    if (widest.first == widest.end) continue;
    bound.add(static_cast<std::int32_t>(row), widest.first, widest.end);
    table_is_smaller = bound.bytes() > table_bytes;
  }
  if (!table_is_smaller) next.assign(column_offsets.begin(), column_offsets.end() - 1);
  const std::vector<bool> is_repeated = repeated_rows(q_len, block, column_intervals);
  for (std::int64_t row = 0; row < num_rows && !table_is_smaller; ++row) {
    if (is_cancelled && is_cancelled()) return std::nullopt;
    if (is_repeated[static_cast<std::size_t>(row)]) {
      builder.repeat_tile_row();
      continue;
    }
    builder.add_tile_row(rows.of(row), cells);
    table_is_smaller = builder.data_bytes() > table_bytes;
  }
  if (!table_is_smaller) return builder.finish();

  SegmentBuilder table_builder(q_len, kv_len, block);
  std::vector<TileSegment> segments;
  for (std::int32_t row = 0; row < num_rows; ++row) {
    segments.clear();
    for (const TileRange& range : rows.of(row)) {
      segments.push_back({range.first, range.end, 0, 0,
                          range.is_full ? SegmentKind::full : SegmentKind::columns, 0});
    }
    table_builder.add_rows(row, 1, segments);
    table_builder.skip_to(row + 1);
  }
  SegmentMask mask = table_builder.finish();
  mask.column_offsets = std::move(column_offsets);
  mask.column_intervals = std::move(column_intervals);
  return mask;
}

}  // namespace fdma
