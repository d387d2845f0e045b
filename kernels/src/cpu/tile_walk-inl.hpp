// Collects the columns that the rows of one work tile see, in chunks of up to 128. They come from
// full runs, bitmap tiles, row panels, column tiles, kv index lists and closed-form masks alike.
// Columns that no row of the tile sees are left out, and full runs read no mask. Included once per
// instruction set, as microkernels-inl.hpp is.
#if defined(FDMA_CPU_TILE_WALK_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef FDMA_CPU_TILE_WALK_INL
#undef FDMA_CPU_TILE_WALK_INL
#else
#define FDMA_CPU_TILE_WALK_INL
#endif

#include <hwy/highway.h>

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "cpu/rows-inl.hpp"
#include "cpu/scratch.hpp"
#include "fdma/kernels/segment_iterator.hpp"
#include "plan/bitmap_order.hpp"
#include "plan/closed_form.hpp"

HWY_BEFORE_NAMESPACE();
namespace fdma::cpu::HWY_NAMESPACE {

/// A group of rows in lanes, `nv` vectors wide, from row `first_row` of the tile.
struct Panel {
  std::size_t first_row;
  std::size_t num_rows;
  int nv;

  std::size_t width() const { return static_cast<std::size_t>(nv) * kLanes; }
};

/// Columns [begin, end) of a chunk.
struct ColumnRange {
  std::size_t begin;
  std::size_t end;
};

/// The panel at row `row` of `num_rows`: as wide as registers allow, and narrower at the end.
inline Panel panel_of(std::size_t row, std::size_t num_rows) {
  const std::size_t left = num_rows - row;
  int nv = kMaxNv;
  while (nv > 1 && (static_cast<std::size_t>(nv) / 2) * kLanes >= left) nv /= 2;
  return {row, std::min(left, static_cast<std::size_t>(nv) * kLanes), nv};
}

/// Calls compute(nv) with the panel's number of vectors as a constant.
template <class Compute>
void with_width(const Panel& panel, const Compute& compute) {
  switch (panel.nv) {
    case 4:
      return compute(std::integral_constant<int, kMaxNv>());
    case 2:
      return compute(std::integral_constant<int, 2>());
    default:
      return compute(std::integral_constant<int, 1>());
  }
}

/// Collects the columns that rows of one work tile see, up to kChunkColumns at a time, and passes
/// them to Derived: `flush()` computes a chunk and calls clear_chunk(); `end_tile(tile)` is called
/// for each tile after its last column was appended. Rows and columns are those of the plan's mask:
/// queries and keys, in a backward plan keys and queries.
template <class Derived>
class TileWalk {
 protected:
  /// Either `segments` are those of a plan of segments, or `element` is that of a work tile of a
  /// closed-form plan; the other is null.
  TileWalk(const PlanHeader& header, const SegmentPlan* segments, const WorkTile& work_tile,
           const ClosedFormElement* element, Chunk& chunk)
      : header_(header),
        segments_(segments),
        work_tile_(work_tile),
        element_(element),
        chunk_(chunk),
        tile_(header.mask_tile()),
        order_(segments != nullptr ? segments->kv_permutation(work_tile) : nullptr),
        column_len_(order_ != nullptr    ? order_->num_keys
                    : element != nullptr ? element->num_columns
                                         : header.column_len(work_tile.batch)),
        row_begin_(std::int64_t{work_tile.q_tile} * tile_.block_q),
        num_rows_(static_cast<std::size_t>(std::min<std::int64_t>(
            tile_.block_q,
            (element != nullptr ? element->num_rows : header.row_len(work_tile.batch)) -
                row_begin_))),
        words_per_column_((static_cast<std::size_t>(tile_.block_q) + 63) / 64) {}

  /// Walks all tiles of the work tile, and flushes the rest of the last chunk.
  void walk() {
    if (element_ != nullptr) {
      append_closed_form_tiles();
    } else {
      TileStep step;
      for (SegmentIterator it(segments_->segments.data(), work_tile_);
           it.next(step, segments_->pattern_arrays());) {
        append_tile(step);
      }
    }
    if (num_columns_ > 0) derived().flush();
  }

  std::size_t num_columns() const { return num_columns_; }
  /// True iff the bits of the chunk's columns say which rows see them; otherwise all rows do.
  bool is_masked() const { return is_masked_; }
  const std::uint64_t* bits_of(std::size_t column) const {
    return chunk_.row_bits.data() + column * words_per_column_;
  }
  std::size_t words_per_column() const { return words_per_column_; }
  void clear_chunk() {
    num_columns_ = 0;
    is_masked_ = false;
  }

  /// True iff a row of the panel sees the column.
  bool is_seen(std::size_t column, const Panel& panel) const {
    const std::uint64_t* words = bits_of(column);
    std::size_t row = panel.first_row;
    const std::size_t end = row + panel.num_rows;
    while (row < end) {
      const std::size_t count = std::min(end - row, 64 - row % 64);
      if ((words[row / 64] >> (row % 64) & (~std::uint64_t{0} >> (64 - count))) != 0) return true;
      row += count;
    }
    return false;
  }

  /// The range from the first to the last column of the chunk that rows of the panel see.
  ColumnRange seen_by(const Panel& panel) const {
    ColumnRange range{0, num_columns_};
    if (!is_masked_) return range;
    while (range.begin < range.end && !is_seen(range.begin, panel)) ++range.begin;
    while (range.begin < range.end && !is_seen(range.end - 1, panel)) --range.end;
    return range;
  }

  /// Points `rows` at row_of(column) of the chunk's columns, converted unless they are float32.
  template <class RowOf>
  void find_rows(const RowOf& row_of, DType dtype, std::size_t length, float* scratch,
                 std::vector<const float*>& rows) const {
    for (std::size_t i = 0; i < num_columns_; ++i) {
      const char* row = row_of(chunk_.columns[i]);
      if (dtype == DType::float32) {
        rows[i] = reinterpret_cast<const float*>(row);
      } else {
        load_row(row, dtype, length, scratch + i * length);
        rows[i] = scratch + i * length;
      }
    }
  }

  const PlanHeader& header_;
  const SegmentPlan* segments_;  ///< of a plan of segments, or null
  const WorkTile& work_tile_;
  const ClosedFormElement* element_;  ///< of a closed-form plan, or null
  Chunk& chunk_;
  const BlockShape tile_;
  const KvPermutation* order_;  ///< of the columns of tiles; null: the order of the tensors
  const std::int64_t column_len_, row_begin_;
  const std::size_t num_rows_;

 private:
  Derived& derived() { return static_cast<Derived&>(*this); }
  /// The tensors' row of a column of a tile.
  std::int64_t row_of(std::int64_t column) const {
    return order_ == nullptr
               ? column
               : segments_->permuted_keys[static_cast<std::size_t>(order_->first_key + column)];
  }
  std::uint64_t* writable_bits_of(std::size_t column) {
    return chunk_.row_bits.data() + column * words_per_column_;
  }

  void append_column(std::int64_t column) {
    chunk_.columns[num_columns_] = static_cast<std::int32_t>(column);
    if (++num_columns_ == kChunkColumns) derived().flush();
  }

  /// Appends a column that all rows see.
  void append_full(std::int64_t column) {
    if (is_masked_)
      std::fill_n(writable_bits_of(num_columns_), words_per_column_, ~std::uint64_t{0});
    append_column(column);
  }

  /// From here on the chunk has bits.
  void begin_masked() {
    if (is_masked_) return;
    is_masked_ = true;
    std::fill_n(chunk_.row_bits.data(), num_columns_ * words_per_column_, ~std::uint64_t{0});
  }

  /// Appends a column that the rows of these bytes see (block_q / 8 bytes), unless no row does.
  void append_bits(std::int64_t column, const unsigned char* bytes) {
    begin_masked();
    std::uint64_t* words = writable_bits_of(num_columns_);
    words[words_per_column_ - 1] = 0;
    std::memcpy(words, bytes, static_cast<std::size_t>(tile_.block_q) / 8);
    std::uint64_t any = 0;
    for (std::size_t w = 0; w < words_per_column_; ++w) any |= words[w];
    if (any != 0) append_column(column);
  }

  /// Appends a column that rows [begin, end) of the tile see.
  void append_interval(std::int64_t column, std::size_t begin, std::size_t end) {
    if (begin == 0 && end >= num_rows_) return append_full(column);
    begin_masked();
    std::uint64_t* words = writable_bits_of(num_columns_);
    for (std::size_t w = 0; w < words_per_column_; ++w) {
      const std::size_t low = std::clamp(begin, w * 64, w * 64 + 64) - w * 64;
      const std::size_t high = std::clamp(end, w * 64, w * 64 + 64) - w * 64;
      words[w] = low == high ? 0 : ~std::uint64_t{0} >> (64 - (high - low)) << low;
    }
    append_column(column);
  }

  void append_closed_form_tiles() {
    ClosedFormWalk walk = walk_of(*element_, tile_, work_tile_.q_tile);
    std::int32_t tile = 0;
    for (bool is_full = false; walk.next(tile, is_full);) {
      if (is_full) {
        append_tile({PlanSegmentKind::full, 0, tile, 0});
      } else {
        append_closed_form(tile);
        derived().end_tile(tile);
      }
    }
  }

  void append_tile(const TileStep& step) {
    append_columns_of(step);
    derived().end_tile(step.tile);
  }

  void append_columns_of(const TileStep& step) {
    const std::int64_t begin = std::int64_t{step.tile} * tile_.block_kv;
    const std::int64_t end = std::min(begin + tile_.block_kv, column_len_);
    switch (step.kind) {
      case PlanSegmentKind::full:
        for (std::int64_t column = begin; column < end; ++column) append_full(row_of(column));
        return;
      case PlanSegmentKind::bitmap:
        return append_words(
            begin, end, segments_->bitmaps.data() + step.data_index * header_.words_per_bitmap());
      case PlanSegmentKind::rows:
        return append_panel(step, begin, end);
      case PlanSegmentKind::columns:
        return append_table(step, begin, end);
      case PlanSegmentKind::gather:
        return append_list(step);
      case PlanSegmentKind::closed_form:
      case PlanSegmentKind::permutation:
      case PlanSegmentKind::pattern:
        return;
    }
  }

  /// Appends the columns of a tile whose cells are given column by column.
  void append_words(std::int64_t begin, std::int64_t end, const std::uint64_t* words) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(words);
    for (std::int64_t column = begin; column < end; ++column) {
      append_bits(row_of(column), bytes + (column - begin) * (tile_.block_q / 8));
    }
  }

  /// The words of a tile row by row, all set to 0.
  std::uint64_t* begin_rows() {
    std::fill_n(chunk_.tile_words.data(), header_.words_per_bitmap(), 0);
    return chunk_.tile_words.data();
  }

  /// Sets columns [first, last) of the tile in row `row` of these words.
  void add_columns_to(std::uint64_t* row_major, std::int64_t row, std::int64_t first,
                      std::int64_t last) const {
    for (std::int64_t c = first; c < last;) {
      const std::int64_t bit = row * tile_.block_kv + c;
      const std::int64_t count = std::min(last - c, 64 - bit % 64);
      row_major[bit / 64] |= ~std::uint64_t{0} >> (64 - count) << (bit % 64);
      c += count;
    }
  }

  /// Appends the columns of a tile whose words are stored row by row.
  void append_rows(std::int64_t begin, std::int64_t end, const std::uint64_t* row_major) {
    std::uint64_t* column_major = chunk_.tile_words.data() + header_.words_per_bitmap();
    key_major_from_row_major(row_major, tile_, column_major);
    append_words(begin, end, column_major);
  }

  void append_closed_form(std::int32_t tile) {
    const std::int64_t begin = std::int64_t{tile} * tile_.block_kv;
    const std::int64_t end = std::min<std::int64_t>(begin + tile_.block_kv, column_len_);
    std::uint64_t* row_major = begin_rows();
    for (std::size_t r = 0; r < num_rows_; ++r) {
      const auto row = static_cast<std::int32_t>(row_begin_ + static_cast<std::int64_t>(r));
      for (const ClosedFormRange& columns : element_->intervals(row)) {
        add_columns_to(row_major, static_cast<std::int64_t>(r),
                       std::max<std::int64_t>(columns.begin - begin, 0),
                       std::min<std::int64_t>(columns.end, end) - begin);
      }
    }
    append_rows(begin, end, row_major);
  }

  void append_panel(const TileStep& step, std::int64_t begin, std::int64_t end) {
    const std::int64_t block_q = tile_.block_q;
    std::uint64_t* row_major = begin_rows();
    const std::int64_t skip = std::int64_t{step.offset} * tile_.block_kv;
    for (std::int64_t r = 0; r < block_q; ++r) {
      const auto row = static_cast<std::size_t>(step.data_index * block_q + r);
      for (std::int64_t i = segments_->row_offsets[row]; i < segments_->row_offsets[row + 1]; ++i) {
        const Interval columns = segments_->row_intervals[static_cast<std::size_t>(i)];
        add_columns_to(row_major, r, std::max<std::int64_t>(columns.begin - skip, 0),
                       std::min<std::int64_t>(columns.end - skip, end - begin));
      }
    }
    append_rows(begin, end, row_major);
  }

  void append_table(const TileStep& step, std::int64_t begin, std::int64_t end) {
    const std::int64_t* offsets =
        segments_->column_offsets.data() +
        segments_->column_tables[static_cast<std::size_t>(step.data_index)];
    const auto q_end = row_begin_ + static_cast<std::int64_t>(num_rows_);
    for (std::int64_t column = begin; column < end; ++column) {
      const Interval* first = segments_->column_intervals.data() + offsets[column];
      const Interval* last = segments_->column_intervals.data() + offsets[column + 1];
      if (last - first > 8) {
        first = std::upper_bound(first, last, row_begin_,
                                 [](std::int64_t q, const Interval& i) { return q < i.end; });
      }
      for (; first != last && first->begin < q_end; ++first) {
        if (first->end <= row_begin_) continue;
        append_interval(
            row_of(column),
            static_cast<std::size_t>(std::max(first->begin - row_begin_, std::int64_t{0})),
            static_cast<std::size_t>(first->end - row_begin_));
      }
    }
  }

  void append_list(const TileStep& step) {
    const KvIndexList& list = segments_->kv_index_lists[static_cast<std::size_t>(step.data_index)];
    const std::int64_t begin = std::int64_t{step.tile} * tile_.block_kv;
    const std::int64_t end = std::min<std::int64_t>(begin + tile_.block_kv, list.num_entries);
    for (std::int64_t i = begin; i < end; ++i) {
      const KvIndexEntry& entry =
          segments_->kv_index_entries[static_cast<std::size_t>(list.first_entry + i)];
      append_interval(entry.key, entry.row_begin, entry.row_end);
    }
  }

  const std::size_t words_per_column_;
  std::size_t num_columns_ = 0;
  bool is_masked_ = false;
};

}  // namespace fdma::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
