// Fills kv index lists, in two ways. Column tables are swept once, key by key; each of a key's
// intervals adds an entry to the list of every tile row that it meets, so lists ascend. Cells of
// bitmaps and row panels are expanded tile by tile, for different rows in parallel. The entries of a
// stored tile are found and sorted once, and copied wherever it occurs, so that a list costs its
// entries. Lists are filled a few MiB at a time, while their memory is in the cache.
//
// Keys that all rows see come first, because index tiles of those need no mask.
#include "plan/kv_index_lists.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <memory>
#include <tuple>

#include "fdma/base/parallel.hpp"
#include "fdma/formats/segment_builder.hpp"
#include "plan/cell_runs.hpp"

namespace fdma {
namespace {

/// Entries that are filled at a time.
constexpr std::int64_t kEntriesAtOnce = std::int64_t{1} << 19;
/// Entries of stored tiles that a thread keeps beyond a row.
constexpr std::size_t kMaxKeptEntries = std::size_t{1} << 20;

// The entries of stored tiles, with keys relative to the tile, for one thread.
class StoredEntries {
 public:
  /// Those of a tile: [first, end) of its entries, by key. Those that all rows see come first, up
  /// to `full_end`.
  struct Tile {
    std::size_t first, full_end, end;
  };

  explicit StoredEntries(const SegmentMask& mask)
      : mask_(mask), words_(static_cast<std::size_t>(mask.words_per_bitmap())) {}

  /// Forgets tiles if there are many. The others stay where they are until the next call.
  void begin_row() {
    if (entries_.size() <= kMaxKeptEntries) return;
    index_ = DataIndex();
    tiles_.clear();
    entries_.clear();
  }
  const KvIndexEntry* entries() const { return entries_.data(); }

  /// The tile in column `col` of tile row `row`, which has `num_rows` rows.
  Tile of(const TileSegment& segment, std::int32_t row, std::int32_t col, std::int64_t num_rows) {
    const bool is_bitmap = segment.kind == SegmentKind::bitmap;
    const auto tile = static_cast<std::uint64_t>(is_bitmap ? 0 : col - segment.first_tile);
    const std::uint64_t key = static_cast<std::uint64_t>(segment.data_index) << 33 | tile << 2 |
                              (is_bitmap ? 2u : 0u) | (num_rows < mask_.block.block_q ? 1u : 0u);
    const std::uint64_t hash = key * 0x9E3779B97F4A7C15u;  // one to one
    const std::int32_t found =
        index_.find(hash ^ hash >> 32, [&](std::int32_t i) { return tiles_[at(i)].key == key; });
    if (found >= 0) return tiles_[at(found)].entries;
    index_.insert(hash ^ hash >> 32, static_cast<std::int32_t>(tiles_.size()));
    tile_cells(mask_, segment, row, col, words_.data());
    tiles_.push_back({key, append(num_rows)});
    return tiles_.back().entries;
  }

 private:
  struct KnownTile {
    std::uint64_t key;
    Tile entries;
  };
  static std::size_t at(std::int32_t index) { return static_cast<std::size_t>(index); }

  // The entries of words_.
  Tile append(std::int64_t num_rows) {
    runs_.clear();
    append_runs(words_.data(), mask_.block, runs_);
    std::sort(runs_.begin(), runs_.end(), [](const CellRun& a, const CellRun& b) {
      return std::tie(a.column, a.row_begin) < std::tie(b.column, b.row_begin);
    });
    const auto full_end = std::stable_partition(
        runs_.begin(), runs_.end(),
        [num_rows](const CellRun& run) { return run.row_begin == 0 && run.row_end == num_rows; });
    const std::size_t first = entries_.size();
    for (const CellRun& run : runs_) {
      entries_.push_back({run.column, run.row_begin, run.row_end});
    }
    return {first, first + static_cast<std::size_t>(full_end - runs_.begin()), entries_.size()};
  }

  const SegmentMask& mask_;
  std::vector<std::uint64_t> words_;
  std::vector<CellRun> runs_;
  DataIndex index_;  // into tiles_
  std::vector<KnownTile> tiles_;
  std::vector<KvIndexEntry> entries_;
};

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
    // The table holds the cells of every tile.
    if (mask_.column_offsets.empty()) {
      draw_lists();
    } else {
      plan_.kv_index_entries.resize(static_cast<std::size_t>(next_entry_));
      for (const std::int32_t row : list_rows_) next_.push_back(list(row).first_entry);
      sweep_columns();
      parallel_for(std::size_t{0}, list_rows_.size(), [&](std::size_t i) { finish_list(i); });
    }
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

  // Fills all lists from bitmaps and row panels.
  void draw_lists() {
    std::vector<KvIndexEntry>& entries = plan_.kv_index_entries;
    if (next_entry_ > static_cast<std::int64_t>(entries.capacity())) {
      reserve_entries(entries, std::max<std::int64_t>(next_entry_, 2 * std::ssize(entries)));
    }
    const auto num_threads = static_cast<std::size_t>(max_concurrency());
    const std::size_t num_parts = num_threads == 1 ? 1 : 4 * num_threads;
    std::vector<StoredEntries> stored(num_parts, StoredEntries(mask_));
    for (std::size_t first = 0; first < list_rows_.size();) {
      const std::int64_t first_entry = list(list_rows_[first]).first_entry;
      std::size_t end = first;
      std::int64_t end_entry = first_entry;
      while (end < list_rows_.size() && end_entry - first_entry < kEntriesAtOnce) {
        ++end;
        end_entry = end < list_rows_.size() ? list(list_rows_[end]).first_entry : next_entry_;
      }
      entries.resize(static_cast<std::size_t>(end_entry));
      parallel_for(std::size_t{0}, num_parts, [&](std::size_t part) {
        const auto border = [&](std::size_t p) { return first + (end - first) * p / num_parts; };
        for (std::size_t i = border(part); i < border(part + 1); ++i) draw_list(i, stored[part]);
      });
      first = end;
    }
  }

  // The gathered tiles of a row from left to right: what all rows see, then the rest.
  void draw_list(std::size_t i, StoredEntries& stored) {
    struct PlacedTile {
      std::int64_t first_key;
      StoredEntries::Tile entries;
    };
    const std::int32_t row = list_rows_[i];
    KvIndexList& out = plan_.kv_index_lists[first_list_ + i];
    const std::int64_t num_rows = rows_of(row);
    std::vector<PlacedTile> tiles;
    std::size_t num_full = 0;
    stored.begin_row();
    for (const TileSegment& segment : segments_of_row(mask_, row)) {
      for (std::int32_t col = segment.first_tile; col < segment.end_tile; ++col) {
        if (!regions_.is_gathered(row, col)) continue;
        const StoredEntries::Tile entries = stored.of(segment, row, col, num_rows);
        tiles.push_back({std::int64_t{col} * mask_.block.block_kv, entries});
        num_full += entries.full_end - entries.first;
      }
    }
    KvIndexEntry* const begin =
        plan_.kv_index_entries.data() + static_cast<std::size_t>(out.first_entry);
    KvIndexEntry* const full_end = begin + num_full;
    KvIndexEntry* full = begin;
    KvIndexEntry* rest = full_end;
    const auto copy = [&](std::int64_t first_key, std::size_t first, std::size_t end,
                          KvIndexEntry* to) {
      const KvIndexEntry* from = stored.entries();
      const auto key = static_cast<std::int32_t>(first_key);
      for (std::size_t e = first; e < end; ++e) {
        *to++ = {key + from[e].key, from[e].row_begin, from[e].row_end};
      }
      return to;
    };
    for (const auto& [first_key, entries] : tiles) {
      full = copy(first_key, entries.first, entries.full_end, full);
      rest = copy(first_key, entries.full_end, entries.end, rest);
    }
    out.num_full = static_cast<std::int32_t>(num_full);
    if (keys_.empty()) return;
    for (KvIndexEntry* entry = begin; entry != rest; ++entry) entry->key = key_of(entry->key);
    std::sort(begin, full_end, is_before);
    std::sort(full_end, rest, is_before);
  }

  std::int64_t rows_of(std::int32_t row) const {
    return std::min<std::int64_t>(mask_.block.block_q,
                                  mask_.q_len - std::int64_t{row} * mask_.block.block_q);
  }

  static bool is_before(const KvIndexEntry& a, const KvIndexEntry& b) {
    return std::tie(a.key, a.row_begin) < std::tie(b.key, b.row_begin);
  }

  // Orders a list whose entries come from a column table.
  void finish_list(std::size_t i) {
    KvIndexList& out = plan_.kv_index_lists[first_list_ + i];
    const std::int64_t num_rows = rows_of(list_rows_[i]);
    const auto begin = plan_.kv_index_entries.begin() + out.first_entry;
    const auto end = begin + out.num_entries;
    if (!keys_.empty()) std::sort(begin, end, is_before);
    out.num_full = static_cast<std::int32_t>(
        std::stable_partition(begin, end,
                              [num_rows](const KvIndexEntry& entry) {
                                return entry.row_begin == 0 && entry.row_end == num_rows;
                              }) -
        begin);
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

void reserve_entries(std::vector<KvIndexEntry>& entries, std::int64_t count) {
  entries.reserve(static_cast<std::size_t>(count));
  constexpr std::size_t kLargePage = std::size_t{1} << 21;
  void* begin = entries.data() + entries.size();
  std::size_t bytes = (entries.capacity() - entries.size()) * sizeof(KvIndexEntry);
  if (std::align(kLargePage, kLargePage, begin, bytes) == nullptr) return;
  // Where there are no large pages nothing changes.
  madvise(begin, bytes / kLargePage * kLargePage, MADV_HUGEPAGE);
}

std::vector<std::int32_t> append_kv_index_lists(const SegmentMask& mask, const Regions& regions,
                                                const std::vector<bool>& rows,
                                                std::span<const std::int32_t> keys,
                                                SegmentPlan& plan) {
  return ListBuilder(mask, regions, keys, plan).run(rows);
}

}  // namespace fdma
