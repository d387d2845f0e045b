// Decides which tiles are gathered. A tile is gathered if its live keys, counted once for each row
// interval that sees them, cost less in a kv index list than the tile does. A tile that is computed
// whole costs the same with one live key as with 128. An index tile costs a little more than it,
// but holds 128 live keys of any number of tiles. The last index tile of a list costs nearly as
// much as a whole one, so a row gathers only if it gains in total.
//
// Live keys of column tiles are counted in one sweep down the tile rows, with one change for each
// interval that begins or ends. Those of bitmaps and row panels are counted once for each, however
// many rows share them.
//
// Tiles of a pattern are weighed entry by entry. The sums over the tiles of a row follow from
// those of its entries.
//
// Example     causal & topk of 131,072 keys, w = 2,048: in each of 512 tiles of a row some 4 of 128
//             keys are live, 2,175 in all: 17 index tiles in place of 512 tiles.
// Not worth   the diagonal of a causal mask: each of its 128 keys has rows of its own, which makes
//             a whole index tile.
#include "plan/regions.hpp"

#include <algorithm>
#include <bit>
#include <span>

#include "fdma/base/parallel.hpp"
#include "plan/cell_runs.hpp"
#include "plan/pattern_rows.hpp"

namespace fdma {
namespace {

// Numbers of live keys of a tile.
struct TileKeys {
  std::int64_t entries = 0;  ///< counted once for each row interval
  std::int64_t keys = 0;
};

// Counts live keys of the tiles of one tile row after the other, from the mask's column table.
class ColumnKeys {
 public:
  explicit ColumnKeys(const SegmentMask& mask)
      : alive_(static_cast<std::size_t>(mask.num_tile_cols())),
        first_change_(static_cast<std::size_t>(mask.num_tile_rows()) + 2) {
    if (mask.column_offsets.empty()) return;
    const auto each_change = [&mask](auto&& visit) {
      for (std::int64_t key = 0; key < mask.kv_len; ++key) {
        const auto col = static_cast<std::int32_t>(key / mask.block.block_kv);
        const auto k = static_cast<std::size_t>(key);
        for (std::int64_t i = mask.column_offsets[k]; i < mask.column_offsets[k + 1]; ++i) {
          const Interval queries = mask.column_intervals[static_cast<std::size_t>(i)];
          visit(static_cast<std::size_t>(queries.begin / mask.block.block_q), col);
          visit(static_cast<std::size_t>((queries.end - 1) / mask.block.block_q) + 1, ~col);
        }
      }
    };
    // Sorted by tile row, by a counting sort.
    each_change([this](std::size_t row, std::int32_t) { ++first_change_[row + 1]; });
    for (std::size_t row = 1; row < first_change_.size(); ++row) {
      first_change_[row] += first_change_[row - 1];
    }
    changes_.resize(static_cast<std::size_t>(first_change_.back()));
    std::vector<std::int64_t> next = first_change_;
    each_change([&](std::size_t row, std::int32_t change) {
      changes_[static_cast<std::size_t>(next[row]++)] = change;
    });
  }

  // Called for rows in ascending order from 0 on.
  void enter(std::int32_t row) {
    const auto r = static_cast<std::size_t>(row);
    for (std::int64_t i = first_change_[r]; i < first_change_[r + 1]; ++i) {
      const std::int32_t change = changes_[static_cast<std::size_t>(i)];
      const bool is_begin = change >= 0;
      alive_[static_cast<std::size_t>(is_begin ? change : ~change)] += is_begin ? 1 : -1;
      total_ += is_begin ? 1 : -1;
    }
  }
  std::int64_t of(std::int64_t col) const { return alive_[static_cast<std::size_t>(col)]; }
  std::int64_t total() const { return total_; }

 private:
  std::vector<std::int32_t> alive_;  // by tile column
  std::int64_t total_ = 0;
  std::vector<std::int64_t> first_change_;  // first change of each tile row
  std::vector<std::int32_t> changes_;       // tile columns, ~column where an interval ended
};

TileKeys keys_of_cells(const std::uint64_t* words, BlockShape block) {
  return {count_runs(words, block), count_keys(words, block)};
}

// Live keys of stored partial cells (bitmaps and panels), each counted once.
class StoredKeys {
 public:
  explicit StoredKeys(const SegmentMask& mask)
      : bitmaps_(static_cast<std::size_t>(mask.num_bitmaps())),
        panels_(static_cast<std::size_t>(mask.num_row_panels())) {
    parallel_for(std::size_t{0}, bitmaps_.size(), [&](std::size_t i) {
      bitmaps_[i] = keys_of_cells(mask.bitmap(static_cast<std::int64_t>(i)).data(), mask.block);
    });
    parallel_for(std::size_t{0}, panels_.size(), [&](std::size_t i) {
      std::vector<std::uint64_t> words(static_cast<std::size_t>(mask.words_per_bitmap()));
      const std::int64_t num_tiles = panel_tiles(mask, static_cast<std::int64_t>(i));
      for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
        panel_cells(mask, static_cast<std::int64_t>(i), tile, words);
        panels_[i].push_back(keys_of_cells(words.data(), mask.block));
      }
    });
  }

  TileKeys of(const TileSegment& segment, std::int64_t col) const {
    const auto data_index = static_cast<std::size_t>(segment.data_index);
    if (segment.kind == SegmentKind::bitmap) return of_bitmap(segment.data_index);
    const auto tile = static_cast<std::size_t>(col - segment.first_tile);
    return tile < panels_[data_index].size() ? panels_[data_index][tile] : TileKeys();
  }
  TileKeys of_bitmap(std::int32_t index) const { return bitmaps_[static_cast<std::size_t>(index)]; }

 private:
  std::vector<TileKeys> bitmaps_;
  std::vector<std::vector<TileKeys>> panels_;  // tile by tile
};

// What the tiles of a pattern cost, and what they would give to a kv index list.
struct PatternWork {
  std::int64_t full_keys = 0;
  WorkCost tiles_cost;
  std::int64_t num_gathered = 0;
  WorkCost gathered_cost;

  PatternWork& operator+=(const PatternWork& other) {
    full_keys += other.full_keys;
    tiles_cost += other.tiles_cost;
    num_gathered += other.num_gathered;
    gathered_cost += other.gathered_cost;
    return *this;
  }
  friend PatternWork operator-(const PatternWork& a, const PatternWork& b) {
    return {a.full_keys - b.full_keys, a.tiles_cost - b.tiles_cost, a.num_gathered - b.num_gathered,
            a.gathered_cost - b.gathered_cost};
  }
  friend PatternWork operator*(const PatternWork& work, std::int64_t turns) {
    const auto times = [turns](const WorkCost& cost) {
      const auto factor = static_cast<double>(turns);
      return WorkCost{factor * cost.masks_us, factor * cost.compute_us};
    };
    return {work.full_keys * turns, times(work.tiles_cost), work.num_gathered * turns,
            times(work.gathered_cost)};
  }
};

// Sums over the tiles of a pattern segment, whose steps are applied, in tile row `row`.
template <class Value>
Value sum_of_pattern(const SegmentMask& mask, const PatternSums<Value>& sums, std::int32_t row,
                     const TileSegment& segment) {
  const PatternRow tiles = mask.pattern_row(segment.data_index, row);
  if (tiles.tiles.empty()) return Value();
  return sums.of(tiles.tiles.data() - mask.pattern_tiles.data(), std::ssize(tiles.tiles),
                 pattern_tiles_before(tiles, segment.first_tile),
                 pattern_tiles_before(tiles, segment.end_tile));
}

class Chooser {
 public:
  Chooser(const SegmentMask& mask, ColumnMode mode, const CostModel& costs, double least_gain)
      : mask_(mask),
        mode_(mode),
        costs_(costs),
        least_gain_(mode == ColumnMode::gather ? 0 : least_gain),
        columns_(mask),
        row_words_(static_cast<std::size_t>(ceil_div(mask.num_tile_cols(), 64))) {
    if (mode != ColumnMode::scan) stored_.emplace_back(mask);
    for (const PatternTile& tile : mask.pattern_tiles) patterns_.add(work_of(tile));
  }

  Regions run() {
    Regions regions;
    regions.rows.resize(static_cast<std::size_t>(mask_.num_tile_rows()));
    for_each_row_with_patterns(mask_, [&](std::int32_t row, std::span<const TileSegment> segments) {
      if (!mask_.column_offsets.empty()) columns_.enter(row);
      choose(row, segments, regions.rows[static_cast<std::size_t>(row)], regions.gathered);
    });
    return regions;
  }

 private:
  // Tiles of a kind in which `keys` keys are live.
  WorkCost cost_of(SegmentKind kind, std::int64_t tiles, std::int64_t keys) const {
    const std::int64_t computed = costs_.skips_dead_keys ? keys : tiles * mask_.block.block_kv;
    return costs_.tiles(plan_kind(kind), static_cast<double>(tiles), static_cast<double>(computed));
  }
  std::int64_t keys_of(const TileSegment& segment) const {
    return std::min(std::int64_t{segment.end_tile} * mask_.block.block_kv, mask_.kv_len) -
           std::int64_t{segment.first_tile} * mask_.block.block_kv;
  }

  bool is_cheaper_gathered(std::int64_t entries, const WorkCost& tile_cost) const {
    return costs_.can_gather() &&
           costs_.entry_us() * static_cast<double>(entries) < costs_.us(tile_cost);
  }

  PatternWork work_of(const PatternTile& tile) const {
    const std::int64_t block_kv = mask_.block.block_kv;
    if (tile.bitmap == kFullTile) {
      return {block_kv, cost_of(SegmentKind::full, 1, block_kv), 0, {}};
    }
    if (mode_ == ColumnMode::scan) return {0, cost_of(SegmentKind::bitmap, 1, block_kv), 0, {}};
    const TileKeys keys = stored_.front().of_bitmap(tile.bitmap);
    const WorkCost cost = cost_of(SegmentKind::bitmap, 1, keys.keys);
    if (!is_cheaper_gathered(keys.entries, cost)) return {0, cost, 0, {}};
    return {0, cost, keys.entries, cost};
  }

  void choose(std::int32_t row, std::span<const TileSegment> segments, RowRegions& out,
              std::vector<std::uint64_t>& gathered) {
    std::int64_t num_entries = 0, num_column_keys = 0, full_keys = 0;
    bool is_forced = false;
    WorkCost tiles_cost, gathered_tiles_cost;
    words_.assign(row_words_, 0);
    for (const TileSegment& segment : segments) {
      const std::int64_t num_tiles = segment.end_tile - segment.first_tile;
      if (segment.kind == SegmentKind::full) {
        full_keys += keys_of(segment);
        tiles_cost += cost_of(segment.kind, num_tiles, keys_of(segment));
        continue;
      }
      if (segment.kind == SegmentKind::pattern) {
        const PatternWork work = sum_of_pattern(mask_, patterns_, row, segment);
        full_keys += work.full_keys;
        tiles_cost += work.tiles_cost;
        num_entries += work.num_gathered;
        gathered_tiles_cost += work.gathered_cost;
        continue;
      }
      const bool is_column = segment.kind == SegmentKind::columns;
      if (mode_ == ColumnMode::scan) {
        tiles_cost += cost_of(segment.kind, num_tiles, is_column ? 0 : keys_of(segment));
        continue;
      }
      for (std::int64_t col = segment.first_tile; col < segment.end_tile; ++col) {
        const TileKeys keys = is_column ? TileKeys{columns_.of(col), columns_.of(col)}
                                        : stored_.front().of(segment, col);
        const WorkCost tile_cost = cost_of(segment.kind, 1, keys.keys);
        tiles_cost += tile_cost;
        if (is_column) num_column_keys += keys.entries;
        const bool is_asked_for = mode_ == ColumnMode::gather && is_column;
        if (!is_asked_for && !is_cheaper_gathered(keys.entries, tile_cost)) continue;
        is_forced |= is_asked_for;
        num_entries += keys.entries;
        gathered_tiles_cost += tile_cost;
        if (is_column) num_column_keys -= keys.entries;
        words_[static_cast<std::size_t>(col / 64)] |= std::uint64_t{1} << (col % 64);
      }
    }
    if (mode_ == ColumnMode::scan) {
      // Keys of full tiles have one interval there.
      if (!mask_.column_offsets.empty()) out.num_scanned = columns_.total() - full_keys;
      if (costs_.skips_dead_keys) tiles_cost += cost_of(SegmentKind::columns, 0, out.num_scanned);
      out.tiles_us = out.us = costs_.us(tiles_cost);
      return;
    }
    out.num_scanned = num_column_keys;
    out.tiles_us = out.us = costs_.us(tiles_cost);
    if (num_entries == 0) return;
    const double with_list_us =
        costs_.us(tiles_cost - gathered_tiles_cost + costs_.index_list(num_entries));
    if (!is_forced && with_list_us >= (1 - least_gain_) * out.tiles_us) {
      forget(segments, out);
      return;
    }
    out.us = with_list_us;
    out.num_gathered = num_entries;
    out.first_word = static_cast<std::int64_t>(gathered.size());
    gathered.insert(gathered.end(), words_.begin(), words_.end());
  }

  // Makes every column tile of the row visited again.
  void forget(std::span<const TileSegment> segments, RowRegions& out) const {
    out.num_scanned = 0;
    for (const TileSegment& segment : segments) {
      if (segment.kind != SegmentKind::columns) continue;
      for (std::int64_t col = segment.first_tile; col < segment.end_tile; ++col) {
        out.num_scanned += columns_.of(col);
      }
    }
  }

  const SegmentMask& mask_;
  ColumnMode mode_;
  const CostModel& costs_;
  double least_gain_;
  ColumnKeys columns_;
  std::vector<StoredKeys> stored_;  // filled only where needed
  PatternSums<PatternWork> patterns_;
  std::size_t row_words_;
  std::vector<std::uint64_t> words_;  // words of the current row
};

}  // namespace

bool may_gain(const SegmentMask& mask, const CostModel& costs, double least_gain) {
  if (costs.skips_dead_keys) return true;  // keys are nearly the only cost
  double visited = 0, partial = 0;
  const auto add = [&](SegmentKind kind, std::int64_t num_tiles) {
    const double cost = costs.tile_us(plan_kind(kind)) * static_cast<double>(num_tiles);
    visited += cost;
    if (kind != SegmentKind::full) partial += cost;
  };
  PatternSums<std::int64_t> full_tiles, live_tiles;
  for (const PatternTile& tile : mask.pattern_tiles) {
    full_tiles.add(tile.bitmap == kFullTile ? 1 : 0);
    live_tiles.add(1);
  }
  for_each_row_with_patterns(mask, [&](std::int32_t row, std::span<const TileSegment> segments) {
    for (const TileSegment& segment : segments) {
      if (segment.kind != SegmentKind::pattern) {
        add(segment.kind, segment.end_tile - segment.first_tile);
        continue;
      }
      const std::int64_t num_full = sum_of_pattern(mask, full_tiles, row, segment);
      add(SegmentKind::full, num_full);
      add(SegmentKind::bitmap, sum_of_pattern(mask, live_tiles, row, segment) - num_full);
    }
  });
  return partial > least_gain * visited;
}

Regions choose_regions(const SegmentMask& mask, ColumnMode mode, const CostModel& costs,
                       double least_gain) {
  return Chooser(mask, mode, costs, least_gain).run();
}

}  // namespace fdma
