// A key is alive in a query tile if one of its query intervals meets the tile. How many are alive
// in each tile row is the sum of a difference array over the intervals, less the keys of full
// tiles, which have exactly one interval there. That decides between scanning and a list; lists are
// then filled in one sweep over the keys, so that they ascend.
//
// Example     causal & topk of 131072 keys, w = 2048: about 2,175 of 131,072 keys are alive in a
// tile
//             of 128 rows: lists. Eviction of half of the keys: tiles are scanned.
#include "plan_columns.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "fdma/threads/parallel.hpp"

namespace fdma {
namespace {

// Scanning a dead key costs 1-2 ns, computing a live one about 1000: at one live key in 16 a scan
// is below 5 %.
constexpr std::int64_t kScanFraction = 16;

// What the segments of one tile row hold, in keys.
struct RowKeys {
  std::int64_t full = 0;
  std::int64_t column = 0;
};

RowKeys keys_of(const SegmentMask& mask, std::span<const TileSegment> segments) {
  RowKeys keys;
  for (const TileSegment& segment : segments) {
    const std::int64_t begin = std::int64_t{segment.first_tile} * mask.block.block_kv;
    const std::int64_t end =
        std::min(std::int64_t{segment.end_tile} * mask.block.block_kv, mask.kv_len);
    (segment.kind == SegmentKind::columns ? keys.column : keys.full) += end - begin;
  }
  return keys;
}

// Tile rows [first, last) that an interval of queries meets.
Interval tile_rows_of(const Interval& queries, std::int64_t block_q) {
  return {static_cast<std::int32_t>(queries.begin / block_q),
          static_cast<std::int32_t>((queries.end - 1) / block_q + 1)};
}

}  // namespace

Result<std::vector<ColumnRow>> plan_columns(const SegmentMask& mask, ColumnMode mode,
                                            AttentionPlan& plan) {
  const std::int64_t num_rows = mask.num_tile_rows();
  const std::int64_t block_q = mask.block.block_q, block_kv = mask.block.block_kv;
  std::vector<ColumnRow> rows(static_cast<std::size_t>(num_rows));
  std::vector<std::int64_t> change(static_cast<std::size_t>(num_rows) + 1, 0);
  for (const Interval& queries : mask.column_intervals) {
    const Interval met = tile_rows_of(queries, block_q);
    ++change[static_cast<std::size_t>(met.begin)];
    --change[static_cast<std::size_t>(met.end)];
  }

  // Which tiles of which rows belong to a list: bit `col` of the row's words.
  const std::int64_t row_words = ceil_div(mask.num_tile_cols(), 64);
  std::vector<std::uint64_t> in_list;
  std::vector<std::int32_t> list_rows;
  std::int64_t alive = 0;
  std::int64_t num_entries = static_cast<std::int64_t>(plan.gather_entries.size());
  for_each_tile_row(mask, [&](std::int32_t row, std::span<const TileSegment> segments) {
    alive += change[static_cast<std::size_t>(row)];
    const RowKeys keys = keys_of(mask, segments);
    ColumnRow& out = rows[static_cast<std::size_t>(row)];
    out.num_entries = alive - keys.full;
    const bool is_list =
        keys.column > 0 &&
        (mode == ColumnMode::gather ||
         (mode == ColumnMode::automatic && out.num_entries * kScanFraction < keys.column));
    if (!is_list) return;
    out.gather_list = static_cast<std::int32_t>(plan.gather_lists.size());
    plan.gather_lists.push_back({num_entries, static_cast<std::int32_t>(out.num_entries), 0});
    num_entries += ceil_div(out.num_entries, kGatherAlignment) * kGatherAlignment;
    list_rows.push_back(row);
    in_list.resize(list_rows.size() * static_cast<std::size_t>(row_words), 0);
    std::uint64_t* words =
        in_list.data() + (list_rows.size() - 1) * static_cast<std::size_t>(row_words);
    for (const TileSegment& segment : segments) {
      if (segment.kind != SegmentKind::columns) continue;
      for (std::int32_t tile = segment.first_tile; tile < segment.end_tile; ++tile) {
        words[tile / 64] |= std::uint64_t{1} << (tile % 64);
      }
    }
  });
  if (list_rows.empty()) return rows;

  plan.gather_entries.resize(static_cast<std::size_t>(num_entries));
  std::vector<std::int32_t> slot(static_cast<std::size_t>(num_rows), -1);
  for (std::size_t i = 0; i < list_rows.size(); ++i) {
    slot[static_cast<std::size_t>(list_rows[i])] = static_cast<std::int32_t>(i);
  }
  const std::int32_t first_list = rows[static_cast<std::size_t>(list_rows.front())].gather_list;
  std::vector<std::int64_t> next(list_rows.size());
  for (std::size_t i = 0; i < next.size(); ++i) {
    next[i] = plan.gather_lists[static_cast<std::size_t>(first_list) + i].first_entry;
  }
  for (std::int64_t key = 0; key < mask.kv_len; ++key) {
    const std::int64_t tile = key / block_kv;
    for (std::int64_t i = mask.column_offsets[static_cast<std::size_t>(key)];
         i < mask.column_offsets[static_cast<std::size_t>(key) + 1]; ++i) {
      const Interval queries = mask.column_intervals[static_cast<std::size_t>(i)];
      const Interval met = tile_rows_of(queries, block_q);
      for (std::int32_t row = met.begin; row < met.end; ++row) {
        const std::int32_t list = slot[static_cast<std::size_t>(row)];
        if (list < 0) continue;
        const std::uint64_t word = in_list[static_cast<std::size_t>(list * row_words + tile / 64)];
        if ((word >> (tile % 64) & 1) == 0) continue;
        const std::int64_t q_begin = row * block_q;
        plan.gather_entries[static_cast<std::size_t>(next[static_cast<std::size_t>(list)]++)] = {
            static_cast<std::int32_t>(key),
            static_cast<std::uint16_t>(std::max<std::int64_t>(queries.begin - q_begin, 0)),
            static_cast<std::uint16_t>(std::min<std::int64_t>(queries.end - q_begin, block_q))};
      }
    }
  }
  parallel_for(std::size_t{0}, list_rows.size(), [&](std::size_t i) {
    GatherList& list = plan.gather_lists[static_cast<std::size_t>(first_list) + i];
    const auto rows_here = static_cast<std::uint16_t>(
        std::min<std::int64_t>(block_q, mask.q_len - list_rows[i] * block_q));
    const auto begin = plan.gather_entries.begin() + list.first_entry;
    const auto middle = std::stable_partition(
        begin, begin + list.num_entries, [rows_here](const GatherEntry& entry) {
          return entry.row_begin == 0 && entry.row_end == rows_here;
        });
    list.num_full = static_cast<std::int32_t>(middle - begin);
  });
  return rows;
}

}  // namespace fdma
