// From query intervals per key to tiles.
//
// A key's interval [b, e) makes the tile rows from b / block_q on partly live and those from ceil(b
// / block_q) on wholly live. Per tile column, two difference arrays over the tile rows turn this
// into the class of every tile; only the changes of class from one tile row to the next are kept,
// bucketed by row. Going down the rows, the classes of one row at a time are then at hand in
// O(changes) memory.
//
// The cells of a partial tile come from its keys' intervals by bit transposition. Rule 3 of the
// canonical form weighs those payloads against the column table, whose size is known here from the
// start: as soon as the payloads exceed it, the rows are emitted anew with columns segments and no
// cell is looked at any more.
#include <algorithm>
#include <span>

#include "bit_transpose.hpp"
#include "fdma/formats/segment_builder.hpp"

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
  std::vector<std::int32_t> live(num_rows + 1), whole(num_rows + 1);
  for (std::int64_t col = 0; col < num_cols; ++col) {
    std::fill(live.begin(), live.end(), 0);
    std::fill(whole.begin(), whole.end(), 0);
    const std::int64_t k_begin = col * block.block_kv;
    const std::int64_t k_end = std::min(k_begin + block.block_kv, kv_len);
    for (std::int64_t i = offsets[static_cast<std::size_t>(k_begin)];
         i < offsets[static_cast<std::size_t>(k_end)]; ++i) {
      const Interval queries = intervals[static_cast<std::size_t>(i)];
      ++live[static_cast<std::size_t>(queries.begin / block.block_q)];
      --live[static_cast<std::size_t>((queries.end - 1) / block.block_q) + 1];
      const auto first = static_cast<std::size_t>(ceil_div(queries.begin, block.block_q));
      const std::size_t last =
          queries.end == q_len ? num_rows : static_cast<std::size_t>(queries.end / block.block_q);
      if (first < last) {
        ++whole[first];
        --whole[last];
      }
    }
    TileClass before = TileClass::empty;
    std::int64_t num_live = 0, num_whole = 0;
    for (std::size_t row = 0; row < num_rows; ++row) {
      num_live += live[row];
      num_whole += whole[row];
      const TileClass now = num_whole == k_end - k_begin ? TileClass::full
                            : num_live > 0               ? TileClass::partial
                                                         : TileClass::empty;
      if (now != before) {
        changes.push_back({static_cast<std::int32_t>(row), static_cast<std::int32_t>(col), now});
      }
      before = now;
    }
  }
  std::stable_sort(changes.begin(), changes.end(),
                   [](const ClassChange& a, const ClassChange& b) { return a.row < b.row; });
  return changes;
}

// Calls visit(row, ranges) for every tile row.
template <class Visit>
void for_each_row_of_classes(std::int64_t num_rows, std::int64_t num_cols,
                             const std::vector<ClassChange>& changes, Visit&& visit) {
  std::vector<TileClass> classes(static_cast<std::size_t>(num_cols), TileClass::empty);
  std::vector<TileRange> ranges;
  auto change = changes.begin();
  for (std::int32_t row = 0; row < num_rows; ++row) {
    const auto first = change;
    for (; change != changes.end() && change->row == row; ++change) {
      classes[static_cast<std::size_t>(change->col)] = change->now;
    }
    if (change != first) {
      ranges.clear();
      for (std::int32_t col = 0; col < num_cols;) {
        const TileClass now = classes[static_cast<std::size_t>(col)];
        std::int32_t end = col + 1;
        while (end < num_cols && classes[static_cast<std::size_t>(end)] == now) ++end;
        if (now != TileClass::empty) ranges.push_back({col, end, now == TileClass::full});
        col = end;
      }
    }
    if (!visit(row, ranges)) return;
  }
}

}  // namespace

SegmentMask segment_from_columns(std::int64_t q_len, std::int64_t kv_len, BlockShape block,
                                 std::vector<std::int64_t> column_offsets,
                                 std::vector<Interval> column_intervals) {
  const std::int64_t num_rows = ceil_div(q_len, block.block_q);
  const std::int64_t num_cols = ceil_div(kv_len, block.block_kv);
  const std::vector<ClassChange> changes =
      class_changes(q_len, kv_len, block, column_offsets, column_intervals);
  const std::int64_t table_bytes =
      8 * (kv_len + 1) + 8 * static_cast<std::int64_t>(column_intervals.size());
  SegmentBuilder builder(q_len, kv_len, block);
  ColumnTileReader reader(block);
  std::vector<std::int64_t> next(column_offsets.begin(), column_offsets.end() - 1);  // per key
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
        reader.set(k - k_begin, std::max<std::int64_t>(queries.begin - q_begin, 0),
                   std::min<std::int64_t>(queries.end, q_end) - q_begin);
      }
    }
    reader.write(words);
  };
  bool table_is_smaller = false;
  for_each_row_of_classes(num_rows, num_cols, changes,
                          [&](std::int32_t, const std::vector<TileRange>& ranges) {
                            builder.add_tile_row(ranges, cells);
                            table_is_smaller = builder.payload_bytes() > table_bytes;
                            return !table_is_smaller;
                          });
  if (!table_is_smaller) return builder.finish();

  SegmentBuilder table_builder(q_len, kv_len, block);
  std::vector<TileSegment> segments;
  for_each_row_of_classes(
      num_rows, num_cols, changes, [&](std::int32_t row, const std::vector<TileRange>& ranges) {
        segments.clear();
        for (const TileRange& range : ranges) {
          segments.push_back({range.first, range.end, 0, 0,
                              range.is_full ? SegmentKind::full : SegmentKind::columns, 0});
        }
        table_builder.add_rows(row, 1, segments);
        table_builder.skip_to(row + 1);
        return true;
      });
  SegmentMask mask = table_builder.finish();
  mask.column_offsets = std::move(column_offsets);
  mask.column_intervals = std::move(column_intervals);
  return mask;
}

}  // namespace fdma
