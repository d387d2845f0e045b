// Fills kv index lists, in two ways. Column tables are swept once, key by key; each of a key's
// intervals adds an entry to the list of every tile row that it meets, so lists ascend. Cells of
// bitmaps and row panels are expanded tile by tile, for different rows in parallel, and their runs
// are sorted.
//
// Keys that all rows see come first, because index tiles of those need no mask.
#include "plan/kv_index_lists.hpp"

#include <algorithm>
#include <tuple>

#include "fdma/base/parallel.hpp"
#include "plan/cell_runs.hpp"

namespace fdma {
namespace {

class ListBuilder {
 public:
  ListBuilder(const SegmentMask& mask, const Regions& regions, std::span<const std::int32_t> keys,
              SegmentPlan& plan)
      : mask_(mask),
        regions_(regions),
        keys_(keys),
        plan_(plan),
        list_of_row_(static_cast<std::size_t>(mask.num_tile_rows()), -1) {}

  std::vector<std::int32_t> run(const std::vector<bool>& rows) {
    for (std::int32_t row = 0; row < mask_.num_tile_rows(); ++row) {
      const auto r = static_cast<std::size_t>(row);
      if (rows[r] && regions_.rows[r].num_gathered > 0) add_list(row);
    }
    if (list_rows_.empty()) return list_of_row_;
    plan_.kv_index_entries.resize(static_cast<std::size_t>(next_entry_));
    for (const std::int32_t row : list_rows_) next_.push_back(list(row).first_entry);
    // The table holds the cells of every tile
    const bool has_table = !mask_.column_offsets.empty();
    if (has_table) sweep_columns();
    parallel_for(std::size_t{0}, list_rows_.size(), [&](std::size_t i) {
      if (!has_table) draw_tiles(i);
      finish_list(i, has_table && keys_.empty());
    });
    return list_of_row_;
  }

 private:
  void add_list(std::int32_t row) {
    if (list_rows_.empty()) {
      first_list_ = plan_.kv_index_lists.size();
      next_entry_ = static_cast<std::int64_t>(plan_.kv_index_entries.size());
    }
    const std::int64_t num_entries = regions_.rows[static_cast<std::size_t>(row)].num_gathered;
    list_of_row_[static_cast<std::size_t>(row)] =
        static_cast<std::int32_t>(plan_.kv_index_lists.size());
    plan_.kv_index_lists.push_back({next_entry_, static_cast<std::int32_t>(num_entries), 0});
    next_entry_ += ceil_div(num_entries, kKvIndexAlignment) * kKvIndexAlignment;
    list_rows_.push_back(row);
  }

  KvIndexList& list(std::int32_t row) {
    return plan_
        .kv_index_lists[static_cast<std::size_t>(list_of_row_[static_cast<std::size_t>(row)])];
  }
  std::int32_t key_of(std::int64_t key) const {
    return keys_.empty() ? static_cast<std::int32_t>(key) : keys_[static_cast<std::size_t>(key)];
  }
  void add_entry(std::size_t i, std::int64_t key, std::int64_t row_begin, std::int64_t row_end) {
    plan_.kv_index_entries[static_cast<std::size_t>(next_[i]++)] = {
        key_of(key), static_cast<std::uint16_t>(row_begin), static_cast<std::uint16_t>(row_end)};
  }

  void sweep_columns() {
    const std::int64_t block_q = mask_.block.block_q;
    for (std::int64_t key = 0; key < mask_.kv_len; ++key) {
      const std::int64_t col = key / mask_.block.block_kv;
      const auto k = static_cast<std::size_t>(key);
      for (std::int64_t i = mask_.column_offsets[k]; i < mask_.column_offsets[k + 1]; ++i) {
        const Interval queries = mask_.column_intervals[static_cast<std::size_t>(i)];
        for (std::int64_t row = queries.begin / block_q; row * block_q < queries.end; ++row) {
          const std::int32_t at = list_of_row_[static_cast<std::size_t>(row)];
          const auto r = static_cast<std::int32_t>(row);
          if (at < 0 || !regions_.is_gathered(r, col)) continue;
          add_entry(static_cast<std::size_t>(at) - first_list_, key,
                    std::max<std::int64_t>(queries.begin - row * block_q, 0),
                    std::min<std::int64_t>(queries.end - row * block_q, block_q));
        }
      }
    }
  }

  void draw_tiles(std::size_t i) {
    const std::int32_t row = list_rows_[i];
    std::vector<std::uint64_t> words(static_cast<std::size_t>(mask_.words_per_bitmap()));
    std::vector<CellRun> runs;
    for (const TileSegment& segment : segments_of_row(mask_, row)) {
      for (std::int32_t col = segment.first_tile; col < segment.end_tile; ++col) {
        if (!regions_.is_gathered(row, col)) continue;
        tile_cells(mask_, segment, row, col, words.data());
        runs.clear();
        append_runs(words.data(), mask_.block, runs);
        for (const CellRun& run : runs) {
          add_entry(i, std::int64_t{col} * mask_.block.block_kv + run.column, run.row_begin,
                    run.row_end);
        }
      }
    }
  }

  void finish_list(std::size_t i, bool is_sorted) {
    KvIndexList& out = plan_.kv_index_lists[first_list_ + i];
    const auto rows_here = static_cast<std::uint16_t>(std::min<std::int64_t>(
        mask_.block.block_q, mask_.q_len - std::int64_t{list_rows_[i]} * mask_.block.block_q));
    const auto begin = plan_.kv_index_entries.begin() + out.first_entry;
    const auto end = begin + out.num_entries;
    const auto is_full = [rows_here](const KvIndexEntry& entry) {
      return entry.row_begin == 0 && entry.row_end == rows_here;
    };
    if (!is_sorted) {
      std::sort(begin, end, [](const KvIndexEntry& a, const KvIndexEntry& b) {
        return std::tie(a.key, a.row_begin) < std::tie(b.key, b.row_begin);
      });
    }
    out.num_full = static_cast<std::int32_t>(std::stable_partition(begin, end, is_full) - begin);
  }

  const SegmentMask& mask_;
  const Regions& regions_;
  std::span<const std::int32_t> keys_;
  SegmentPlan& plan_;
  std::vector<std::int32_t> list_of_row_;
  std::vector<std::int32_t> list_rows_;  // rows of the lists from first_list_ on
  std::vector<std::int64_t> next_;       // next entry of each list
  std::size_t first_list_ = 0;
  std::int64_t next_entry_ = 0;
};

}  // namespace

std::vector<std::int32_t> append_kv_index_lists(const SegmentMask& mask, const Regions& regions,
                                                const std::vector<bool>& rows,
                                                std::span<const std::int32_t> keys,
                                                SegmentPlan& plan) {
  return ListBuilder(mask, regions, keys, plan).run(rows);
}

}  // namespace fdma
