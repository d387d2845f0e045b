// Building a SegmentMask. Only this class decides how cells are stored, so equal cells give equal
// arrays.
//
// The canonical form, a function of cells and block shape alone:
//  1. A tile is empty, full or partial, judged on the cells that exist. Consecutive full tiles form
//     one full segment.
//  2. A maximal segment of consecutive partial tiles is stored in one of two ways: tile by tile as
//     interned bitmaps (consecutive tiles with the same bitmap form one segment), or whole, as one
//     interned row panel. A panel equal to a stored one is reused. Otherwise bitmaps are taken,
//     unless the panel takes fewer bytes: 8 * block_q + 8 * (key intervals clipped to the segment),
//     against block_q * block_kv / 8 for each distinct bitmap of the segment that no partial tile
//     before it (row-major) has. A repeated segment or tile is therefore stored once. Bitmaps and
//     panels are numbered by first use.
//  3. If the interned bitmaps and panels take more bytes than the column table of the whole mask,
//     8 * (kv_len + 1) + 8 * (query intervals of all keys), every such partial segment becomes one
//     columns segment instead.
//  4. Patterns come only from engines that know them, and from operations on masks that have some
//     (add_pattern). A mask with patterns has no column table.
//  5. Tile rows r and r + row_period(block) join one run while each segment keeps its kind, its
//     data index and the steps that the first two rows of the run set (greedily, from the top).
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "fdma/formats/segment_mask.hpp"

namespace fdma {

/// Tiles [first, end) of one tile row, all full or all partial.
struct TileRange {
  std::int32_t first;
  std::int32_t end;
  bool is_full;
  friend bool operator==(const TileRange&, const TileRange&) = default;
};

/// Sets bits [begin, end) of a bit array.
inline void set_bits(std::uint64_t* words, std::int64_t begin, std::int64_t end) {
  if (begin >= end) return;
  const auto first = static_cast<std::uint64_t>(begin) / 64;
  const auto last = static_cast<std::uint64_t>(end - 1) / 64;
  const std::uint64_t head = ~std::uint64_t{0} << (begin & 63);
  const std::uint64_t tail = ~std::uint64_t{0} >> (63 - ((end - 1) & 63));
  if (first == last) {
    words[first] |= head & tail;
    return;
  }
  words[first] |= head;
  for (std::uint64_t i = first + 1; i < last; ++i) words[i] = ~std::uint64_t{0};
  words[last] |= tail;
}
/// Bits [begin, begin + count) of a bit array, count in [1, 64], as the low bits of the result.
inline std::uint64_t read_bits(const std::uint64_t* words, std::int64_t begin, int count) {
  const auto word = static_cast<std::uint64_t>(begin) / 64;
  const int shift = static_cast<int>(begin & 63);
  std::uint64_t bits = words[word] >> shift;
  if (shift + count > 64) bits |= words[word + 1] << (64 - shift);
  return count == 64 ? bits : bits & ((std::uint64_t{1} << count) - 1);
}

/// Finds equal bitmaps or panels: a hash table from 64-bit hashes to indices, open addressing.
class DataIndex {
 public:
  /// The first index stored under `hash` for which is_same(index) holds, or -1.
  template <class IsSame>
  std::int32_t find(std::uint64_t hash, IsSame&& is_same) const {
    if (slots_.empty()) return -1;
    const std::size_t mask = slots_.size() - 1;
    for (std::size_t i = hash & mask; slots_[i].index >= 0; i = (i + 1) & mask) {
      if (slots_[i].hash == hash && is_same(slots_[i].index)) return slots_[i].index;
    }
    return -1;
  }
  void insert(std::uint64_t hash, std::int32_t index);

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::int32_t index = -1;
  };
  std::vector<Slot> slots_;  // a power of two, at most half full
  std::size_t size_ = 0;
};

/// The cells of a maximal segment of partial tiles of one tile row, for rule 2. Its tiles count
/// from 0.
class PartialRun {
 public:
  /// Tiles with one number, from the end of those before them up to `end`.
  struct NumberedTiles {
    std::int32_t number;
    std::int32_t end;
    friend bool operator==(const NumberedTiles&, const NumberedTiles&) = default;
  };

  virtual ~PartialRun() = default;
  /// The numbers of all tiles, or nothing if the tiles have none. Numbers count from 0. Tiles of one
  /// number hold the same cells, in all runs that a builder gets. The builder knows a run that it
  /// has met before by the numbers, and looks at no cells then.
  virtual std::span<const NumberedTiles> numbers() { return {}; }
  /// Key intervals of all rows, clipped to the segment; any value above `limit` if there are more.
  virtual std::int64_t num_intervals(std::int64_t limit) = 0;
  /// The end of a run of tiles from `tile` on that are known to hold the same cells without a look
  /// at each. The builder asks the functions below only for the first tile of a run, in ascending
  /// order.
  virtual std::int64_t run_end(std::int64_t tile) { return tile + 1; }
  /// hash_words of the tile's bitmap.
  virtual std::uint64_t bitmap_hash(std::int64_t tile) = 0;
  /// Index of the tile's bitmap, interned in the builder.
  virtual std::int32_t intern(std::int64_t tile, std::uint64_t hash) = 0;
  /// Fills the row panel: offsets [block_q + 1] into intervals, which are empty on entry.
  virtual void write_panel(std::vector<std::int64_t>& offsets,
                           std::vector<Interval>& intervals) = 0;
};

/// The hash by which bitmaps are interned.
std::uint64_t hash_words(const std::uint64_t* words, std::int64_t count);

/// Builds a canonical SegmentMask from tile rows given in ascending order.
///
/// Example     SegmentBuilder builder(q_len, kv_len, block);
///             for (row ...) {
///               builder.add_tile_row(ranges, [&](int32_t tile, uint64_t* words) { ... });
///             }
///             SegmentMask mask = builder.finish();
/// Errors      std::bad_alloc where the segments would need more memory than there is (memory.hpp);
///             a caller that skips a row or passes overlapping ranges breaks the contract
///             (asserted in debug builds)
class SegmentBuilder {
 public:
  SegmentBuilder(std::int64_t q_len, std::int64_t kv_len, BlockShape block);

  /// Writes the cells of one partial tile of the current row to words [block_q * block_kv / 64],
  /// which are zero on entry.
  using TileCells = std::function<void(std::int32_t tile, std::uint64_t* words)>;

  /// Appends the next tile row. `ranges` ascend and do not overlap; adjacent or split ranges are
  /// merged. A range marked partial may hold full or empty tiles only if `reclassify` is set; its
  /// cells then decide.
  void add_tile_row(std::span<const TileRange> ranges, const TileCells& cells,
                    bool reclassify = false);

  /// Appends a tile row equal to the one that add_tile_row appended last.
  void repeat_tile_row();

  /// Appends `count` tile rows first_row, first_row + period, ... `segments` describes the first
  /// one; the others move by the steps of its segments. Rows of one residue modulo the period come
  /// in ascending order. Partial segments come from add_partial_run, called in row-major order
  /// of their first rows.
  void add_rows(std::int32_t first_row, std::int32_t count, std::span<const TileSegment> segments);
  /// Appends to `segments` the segments that store the partial tiles [first_tile, end_tile), which
  /// move by `step`.
  void add_partial_run(std::int32_t first_tile, std::int32_t end_tile, std::int32_t step,
                       PartialRun& tile_run, std::vector<TileSegment>& segments);
  /// What stores the tiles of a pattern: the pattern, or one tile that all of them equal.
  struct PatternContent {
    bool is_empty;  ///< all tiles are empty; no segment is needed
    SegmentKind kind;
    std::int32_t data_index;
  };
  /// Stores a pattern, or finds an equal one. `tiles` [num_rows * num_cols], row by row, are
  /// bitmap indices (intern_bitmap), kFullTile or kEmptyTile. Periods are reduced to the smallest
  /// ones with which the same tiles repeat, with this skew. Segments of the kind and data index
  /// that come back may then be appended by add_rows.
  PatternContent add_pattern(std::int32_t num_rows, std::int32_t num_cols, std::int32_t skew,
                             std::span<const std::int32_t> tiles);
  /// Declares that every row before `row` was appended; needed after add_rows with a period above
  /// 1.
  void skip_to(std::int32_t row) { next_row_ = row; }

  /// Index of the bitmap with these words, stored if new; `hash` is hash_words of them.
  std::int32_t intern_bitmap(const std::uint64_t* words, std::uint64_t hash);
  std::int32_t intern_bitmap(const std::uint64_t* words) {
    return intern_bitmap(words, hash_words(words, mask_.words_per_bitmap()));
  }

  /// Bytes of bitmaps and row panels stored so far. An engine that knows the size of the column
  /// table stops when they exceed it.
  std::int64_t data_bytes() const;

  std::int32_t next_row() const { return next_row_; }

  /// Applies rule 3 and returns the mask; the builder is empty afterwards.
  SegmentMask finish();

 private:
  struct OpenRun {
    TileRun run{};
    std::vector<TileSegment> segments;
    bool is_open = false;
  };
  void close(OpenRun& open);
  bool absorb(OpenRun& open, std::span<const TileSegment> segments, std::int32_t& count);
  // Tiles with one bitmap, from the end of the run before up to `end`.
  struct BitmapRun {
    std::int64_t end;
    std::uint64_t hash;
  };
  // What is known about the tiles of one number.
  struct NumberedTile {
    std::uint64_t hash = 0;   // of the bitmap, if is_seen
    bool is_seen = false;     // a tile with these cells was stored, whole or as part of a panel
    bool is_decided = false;  // it is known how a segment of one such tile is stored
    std::int32_t panel = -1;  // of such a segment; -1: it is a bitmap
  };
  // A panel that segments with these numbers have. The numbers are in panel_numbers_.
  struct NumberedPanel {
    std::size_t first;
    std::size_t count;
    std::int32_t panel;
  };
  using Numbers = std::span<const PartialRun::NumberedTiles>;
  NumberedTile& numbered_tile(std::int32_t number);
  std::int64_t list_runs(std::int64_t num_tiles, PartialRun& tile_run);
  std::int64_t list_numbered_runs(Numbers numbers, PartialRun& tile_run);
  void list_run(std::uint64_t hash, std::int64_t begin, std::int64_t end);
  bool see(std::uint64_t hash);
  std::int32_t find_panel(std::uint64_t hash) const;
  std::int32_t find_numbered_panel(std::uint64_t hash, Numbers numbers) const;
  void note_numbered_panel(std::uint64_t hash, Numbers numbers, std::int32_t panel);
  std::int32_t panel_of(std::int64_t num_new, Numbers numbers, PartialRun& tile_run);

  SegmentMask mask_;
  std::int32_t period_;
  std::int32_t next_row_ = 0;
  std::vector<OpenRun> open_;  // by row % period_
  std::vector<OpenRun> closed_;
  DataIndex bitmap_index_;
  DataIndex panel_index_;
  DataIndex pattern_index_;
  DataIndex seen_;  // hashes of the bitmaps of all partial tiles so far, stored or not
  std::vector<NumberedTile> numbered_tiles_;  // by number
  DataIndex numbered_index_;                  // into numbered_panels_
  std::vector<NumberedPanel> numbered_panels_;
  std::vector<PartialRun::NumberedTiles> panel_numbers_;
  // State of the current tile row:
  std::vector<TileSegment> row_segments_, moved_;
  std::vector<std::uint64_t> scratch_;  // bitmaps of the partial segment, tile after tile
  std::vector<BitmapRun> runs_;
  std::vector<std::uint64_t> run_keys_;  // hash and length of each maximal run of equal hashes
  std::vector<std::int64_t> panel_offsets_;
  std::vector<Interval> panel_intervals_;
};

/// The mask in which key k is visible exactly in the query intervals
/// column_intervals[column_offsets[k] .. column_offsets[k + 1]). These must ascend with gaps
/// between and lie in [0, q_len). The stored form follows from the rules above.
SegmentMask segment_from_columns(std::int64_t q_len, std::int64_t kv_len, BlockShape block,
                                 std::vector<std::int64_t> column_offsets,
                                 std::vector<Interval> column_intervals);

}  // namespace fdma
