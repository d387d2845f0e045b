#include "plan/plan_cells.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>

#include "backend/worklist_cells.hpp"
#include "fdma/base/overloads.hpp"
#include "fdma/kernels/segment_iterator.hpp"
#include "plan/thread_cells.hpp"

namespace fdma::testing {
namespace {

/// Returns the place where the sm90 kernel has the bit of (row, col) of its tile, by mask_cell.
const std::vector<std::size_t>& thread_bits() {
  static const std::vector<std::size_t> bits = [] {
    std::vector<std::size_t> of_cell(128 * 128);
    for (int thread = 0; thread < 256; ++thread) {
      for (int word = 0; word < 2; ++word) {
        for (int bit = 0; bit < 32; ++bit) {
          const gpu::FragmentCell cell = gpu::mask_cell(thread % 128, word, bit);
          of_cell[static_cast<std::size_t>((thread / 128 * 64 + cell.row) * 128 + cell.col)] =
              static_cast<std::size_t>((2 * thread + word) * 32 + bit);
        }
      }
    }
    return of_cell;
  }();
  return bits;
}

/// Collects the cells of one tile row, work tile after work tile, and says what is wrong with them.
class WorkTileCells {
 public:
  WorkTileCells(const PlanHeader& header, const SegmentPlan& plan, const WorkTile& work_tile)
      : header_(header),
        plan_(plan),
        item_(work_tile),
        tile_(header.mask_tile()),
        q_begin_(std::int64_t{work_tile.q_tile} * tile_.block_q),
        num_rows_(
            std::min<std::int64_t>(header.row_len(work_tile.batch) - q_begin_, tile_.block_q)),
        kv_len_(header.column_len(work_tile.batch)),
        counts_(std::max<std::int64_t>(num_rows_, 0), std::max<std::int64_t>(kv_len_, 0)) {
    const KvPermutation* order = plan.kv_permutation(work_tile);
    if (order == nullptr) return;
    order_ = plan.permuted_keys.data() + order->first_key;
    kv_len_ = order->num_keys;
  }

  std::int64_t q_begin() const { return q_begin_; }
  std::int64_t num_rows() const { return num_rows_; }
  const Cells& counts() const { return counts_; }
  const PlanCounts& steps() const { return steps_; }
  const std::string& error() const { return error_; }

  void visit(const TileStep& step) {
    switch (step.kind) {
      case PlanSegmentKind::full:
        ++steps_.full_tiles;
        ascend(step);
        for (std::int64_t r = 0; r < num_rows_; ++r) add_keys(r, key_begin(step), key_end(step));
        break;
      case PlanSegmentKind::bitmap:
        ++steps_.bitmap_tiles;
        ascend(step);
        visit_bitmap(step);
        break;
      case PlanSegmentKind::rows:
        ++steps_.row_tiles;
        ascend(step);
        visit_rows(step);
        break;
      case PlanSegmentKind::columns:
        ++steps_.column_tiles;
        ascend(step);
        visit_columns(step);
        break;
      case PlanSegmentKind::gather:
        ++steps_.gather_chunks;
        visit_chunk(step);
        break;
      default:
        fail("a step of an unknown kind");
    }
  }

 private:
  void fail(const std::string& what) {
    if (error_.empty()) error_ = what;
  }
  std::int64_t key_begin(const TileStep& step) const {
    return std::int64_t{step.tile} * tile_.block_kv;
  }
  std::int64_t key_end(const TileStep& step) const {
    return std::min(key_begin(step) + tile_.block_kv, kv_len_);
  }
  void ascend(const TileStep& step) {
    if (step.tile <= last_tile_) fail(fmt::format("tile {} after tile {}", step.tile, last_tile_));
    if (step.tile < 0 || key_begin(step) >= kv_len_)
      fail(fmt::format("tile {} has no keys", step.tile));
    last_tile_ = step.tile;
  }
  // Adds key k of the work tile's tiles to row r.
  void add(std::int64_t r, std::int64_t k) {
    if (k < 0 || k >= kv_len_)
      fail(fmt::format("row {} key {} does not exist", q_begin_ + r, k));
    else
      add_key(r, order_ == nullptr ? k : order_[k]);
  }
  // Adds key k of the tensors to row r.
  void add_key(std::int64_t r, std::int64_t k) {
    if (r < 0 || r >= num_rows_ || k < 0 || k >= counts_.kv_len)
      fail(fmt::format("row {} key {} does not exist", q_begin_ + r, k));
    else if (counts_.at(r, k)++ != 0)
      fail(fmt::format("row {} key {} comes twice", q_begin_ + r, k));
  }
  void add_keys(std::int64_t r, std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = begin; k < end; ++k) add(r, k);
  }

  // The CPU has bit c * block_q + r. sm90 has the words of threads, in which each row stands for
  // all heads of the tile.
  void visit_bitmap(const TileStep& step) {
    if (step.data_index < 0 || step.data_index >= plan_.num_bitmaps(header_.words_per_bitmap()))
      return fail(fmt::format("no bitmap {}", step.data_index));
    const std::uint64_t* words =
        plan_.bitmaps.data() + step.data_index * header_.words_per_bitmap();
    const auto is_set = [words](std::size_t bit) {
      return (words[bit / 64] >> (bit % 64) & 1) != 0;
    };
    const std::int64_t heads = header_.heads_per_tile;
    for (std::int64_t c = 0; c < tile_.block_kv; ++c) {
      for (std::int64_t r = 0; r < tile_.block_q; ++r) {
        if (header_.backend != Backend::sm90) {
          if (is_set(static_cast<std::size_t>(c * tile_.block_q + r))) add(r, key_begin(step) + c);
          continue;
        }
        std::int64_t num_set = 0;
        for (std::int64_t row = r * heads; row < (r + 1) * heads; ++row)
          num_set += is_set(thread_bits()[static_cast<std::size_t>(row * 128 + c)]) ? 1 : 0;
        if (num_set != 0 && num_set != heads) fail("heads of a tile differ in a bitmap");
        if (num_set != 0) add(r, key_begin(step) + c);
      }
    }
  }

  // Intervals count keys from the first tile of the segment, and this tile has its part of them.
  void visit_rows(const TileStep& step) {
    const std::int64_t first = std::int64_t{step.data_index} * tile_.block_q;
    if (step.data_index < 0 ||
        first + tile_.block_q >= static_cast<std::int64_t>(plan_.row_offsets.size()))
      return fail(fmt::format("no row panel {}", step.data_index));
    const std::int64_t panel_key = key_begin(step) - std::int64_t{step.offset} * tile_.block_kv;
    for (std::int64_t r = 0; r < tile_.block_q; ++r) {
      const auto row = static_cast<std::size_t>(first + r);
      for (std::int64_t i = plan_.row_offsets[row]; i < plan_.row_offsets[row + 1]; ++i) {
        const Interval keys = plan_.row_intervals[static_cast<std::size_t>(i)];
        if (panel_key + keys.end > kv_len_) fail("a row interval ends past the keys");
        add_keys(r, std::max(panel_key + keys.begin, key_begin(step)),
                 std::min(panel_key + keys.end, key_begin(step) + tile_.block_kv));
      }
    }
  }

  // Query intervals are absolute. The keys whose intervals meet this query tile are live.
  void visit_columns(const TileStep& step) {
    if (step.data_index < 0 ||
        step.data_index >= static_cast<std::int64_t>(plan_.column_tables.size()))
      return fail(fmt::format("no column table {}", step.data_index));
    const std::int64_t table = plan_.column_tables[static_cast<std::size_t>(step.data_index)];
    for (std::int64_t k = key_begin(step); k < key_end(step); ++k) {
      const auto entry = static_cast<std::size_t>(table + k);
      if (entry + 1 >= plan_.column_offsets.size()) return fail("a column table is too short");
      for (std::int64_t i = plan_.column_offsets[entry]; i < plan_.column_offsets[entry + 1]; ++i) {
        const Interval queries = plan_.column_intervals[static_cast<std::size_t>(i)];
        const std::int64_t begin = std::max<std::int64_t>(queries.begin - q_begin_, 0);
        const std::int64_t end = std::min<std::int64_t>(queries.end - q_begin_, num_rows_);
        if (begin < end) ++steps_.column_entries;
        for (std::int64_t r = begin; r < end; ++r) add(r, k);
      }
    }
  }

  void visit_chunk(const TileStep& step) {
    if (step.data_index < 0 ||
        step.data_index >= static_cast<std::int64_t>(plan_.kv_index_lists.size()))
      return fail(fmt::format("no kv index list {}", step.data_index));
    const KvIndexList& list = plan_.kv_index_lists[static_cast<std::size_t>(step.data_index)];
    const std::int64_t begin = std::int64_t{step.tile} * tile_.block_kv;
    const std::int64_t end = std::min<std::int64_t>(begin + tile_.block_kv, list.num_entries);
    if (step.tile < 0 || begin >= end)
      return fail(
          fmt::format("index tile {} of kv index list {} is empty", step.tile, step.data_index));
    steps_.gather_entries += end - begin;
    for (std::int64_t i = begin; i < end; ++i) {
      const KvIndexEntry* entry = plan_.kv_index_entries.data() + list.first_entry + i;
      if (entry->row_begin >= entry->row_end || entry->row_end > tile_.block_q)
        fail(fmt::format("gather entry {} has rows [{}, {})", i, entry->row_begin, entry->row_end));
      const bool is_full = entry->row_begin == 0 && entry->row_end >= num_rows_;
      if (is_full != (i < list.num_full))
        fail(fmt::format("gather entry {} of {} full ones has rows [{}, {})", i, list.num_full,
                         entry->row_begin, entry->row_end));
      if (i > 0 && i != list.num_full && entry[-1].key > entry->key)
        fail(fmt::format("gather entry {}: key {} after {}", i, entry->key, entry[-1].key));
      for (std::int64_t r = entry->row_begin; r < std::min<std::int64_t>(entry->row_end, num_rows_);
           ++r)
        add_key(r, entry->key);
    }
  }

  const PlanHeader& header_;
  const SegmentPlan& plan_;
  const WorkTile& item_;
  BlockShape tile_;  ///< rows and columns of the plan's mask, here called queries and keys
  std::int64_t q_begin_;
  std::int64_t num_rows_;
  std::int64_t kv_len_;
  Cells counts_;
  const std::int32_t* order_ = nullptr;  ///< of the keys of tiles
  PlanCounts steps_;
  std::int32_t last_tile_ = -1;
  std::string error_;
};

// The work tiles of one tile row, in the order of their partials.
struct RowWorkTiles {
  std::vector<const WorkTile*> work_tiles;
  const SplitRow* split = nullptr;
};
using RowKey = std::tuple<std::int32_t, std::int32_t, std::int32_t>;

// True if the walks up and down have these steps.
bool is_walked_either_way(const SegmentPlan& plan, const WorkTile& work_tile,
                          const std::vector<TileStep>& steps) {
  for (const bool is_down : {false, true}) {
    EitherWayIterator it(plan.segments.data(), work_tile, is_down);
    TileStep step{};
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const TileStep& each = steps[is_down ? steps.size() - 1 - i : i];
      if (!it.next(step, is_down, plan.pattern_arrays()) || step.kind != each.kind ||
          step.data_index != each.data_index || step.tile != each.tile ||
          step.offset != each.offset) {
        return false;
      }
    }
    if (it.next(step, is_down, plan.pattern_arrays())) return false;
  }
  return true;
}

// Collects what the work tiles of a row compute, and checks that it is `expected`.
std::string check_row(const PlanHeader& header, const SegmentPlan& plan, const RowWorkTiles& row,
                      const std::vector<const Cells*>& expected, PlanCounts& counts) {
  const WorkTile& first = *row.work_tiles.front();
  WorkTileCells cells(header, plan, first);
  std::int64_t row_tiles = 0;
  for (const WorkTile* work_tile : row.work_tiles) {
    if (work_tile->first_tile != row_tiles)
      return fmt::format("begins at tile {} after {}", work_tile->first_tile, row_tiles);
    if (work_tile->num_entries != first.num_entries) return "parts have different num_entries";
    if (row.split != nullptr && work_tile->num_tiles == 0) return "a part without tiles";
    TileStep step{};
    SegmentIterator it(plan.segments.data(), *work_tile);
    std::vector<TileStep> walked;
    for (std::int32_t i = 0; i < work_tile->num_tiles; ++i) {
      if (!it.next(step, plan.pattern_arrays()))
        return fmt::format("{} tiles, num_tiles says {}", i, work_tile->num_tiles);
      cells.visit(step);
      walked.push_back(step);
    }
    if (row.split == nullptr && !is_walked_either_way(plan, *work_tile, walked)) {
      return "other tiles by EitherWayIterator";
    }
    row_tiles += work_tile->num_tiles;
    if (work_tile == row.work_tiles.back() && it.next(step, plan.pattern_arrays()))
      return "tiles after the last";
  }
  if (!cells.error().empty()) return cells.error();
  const PlanCounts& steps = cells.steps();
  if (steps.column_entries + steps.gather_entries != first.num_entries)
    return fmt::format("{} live keys, num_entries says {}",
                       steps.column_entries + steps.gather_entries, first.num_entries);
  counts.full_tiles += steps.full_tiles;
  counts.bitmap_tiles += steps.bitmap_tiles;
  counts.row_tiles += steps.row_tiles;
  counts.column_tiles += steps.column_tiles;
  counts.column_entries += steps.column_entries;
  counts.gather_chunks += steps.gather_chunks;
  counts.gather_entries += steps.gather_entries;
  counts.empty_items += row_tiles == 0 ? 1 : 0;
  for (const Cells* each : expected) {
    for (std::int64_t r = 0; r < cells.num_rows(); ++r) {
      const std::int64_t q = cells.q_begin() + r;
      for (std::int64_t k = 0; k < cells.counts().kv_len; ++k) {
        const auto wanted = header.is_backward() ? each->get(k, q) : each->get(q, k);
        if (cells.counts().get(r, k) != wanted)
          return fmt::format("row {} key {}: {}, expected {}", q, k, cells.counts().get(r, k),
                             wanted);
      }
    }
  }
  return {};
}

std::string check_segments(const PlanHeader& header, const SegmentPlan& plan,
                           const MaskCase& expected) {
  const AttentionShape& shape = header.shape;
  const std::int32_t group = shape.group_size();
  std::map<RowKey, RowWorkTiles> rows;
  std::int32_t num_partials = 0;
  for (const SplitRow& split : plan.split_rows) {
    if (split.first_partial != num_partials || split.num_partials < 2)
      return fmt::format("{}: partials of a split row", expected.name);
    num_partials += split.num_partials;
    RowWorkTiles& row = rows[{split.batch, split.head, split.q_tile}];
    if (row.split != nullptr) return expected.name + ": a row is split twice";
    row.split = &split;
    row.work_tiles.resize(static_cast<std::size_t>(split.num_partials));
  }
  for (std::size_t i = 0; i < plan.work_tiles.size(); ++i) {
    const WorkTile& work_tile = plan.work_tiles[i];
    const std::string where =
        fmt::format("{}: work tile {} (batch {}, head {}, q_tile {}): ", expected.name, i,
                    work_tile.batch, work_tile.head, work_tile.q_tile);
    if (work_tile.batch < 0 || work_tile.batch >= shape.batch || work_tile.head < 0 ||
        work_tile.head >= shape.heads_q || work_tile.head % group % header.heads_per_tile != 0 ||
        work_tile.q_tile < 0 ||
        std::int64_t{work_tile.q_tile} * header.mask_tile().block_q >=
            header.row_len(work_tile.batch))
      return where + "no such query tile";
    if (work_tile.first_segment < 0 || work_tile.num_segments < 0 ||
        work_tile.first_segment + work_tile.num_segments >
            static_cast<std::int64_t>(plan.segments.size()))
      return where + "no such segments";
    RowWorkTiles& row = rows[{work_tile.batch, work_tile.head, work_tile.q_tile}];
    if (row.split == nullptr) {
      if (!row.work_tiles.empty()) return where + "a second time";
      if (work_tile.partial != kWholeRow) return where + "is not split, but has a partial";
      row.work_tiles.push_back(&work_tile);
      continue;
    }
    const std::int32_t part = work_tile.partial - row.split->first_partial;
    if (part < 0 || part >= row.split->num_partials) return where + "another row's partial";
    if (std::exchange(row.work_tiles[static_cast<std::size_t>(part)], &work_tile) != nullptr)
      return where + "a partial a second time";
  }
  std::int64_t num_rows = 0;
  for (std::int64_t b = 0; b < shape.batch; ++b)
    num_rows += ceil_div(header.row_len(b), header.mask_tile().block_q) * shape.heads_kv *
                ceil_div(group, header.heads_per_tile);
  if (num_rows != static_cast<std::int64_t>(rows.size()))
    return fmt::format("{}: {} tile rows, expected {}", expected.name, rows.size(), num_rows);
  PlanCounts counts;
  for (const auto& [key, row] : rows) {
    const auto& [batch, head, q_tile] = key;
    const std::string where =
        fmt::format("{}: batch {}, head {}, q_tile {}: ", expected.name, batch, head, q_tile);
    if (std::find(row.work_tiles.begin(), row.work_tiles.end(), nullptr) != row.work_tiles.end())
      return where + "a partial is missing";
    std::vector<const Cells*> of_heads;
    for (std::int32_t h = head;
         h < std::min(head + header.heads_per_tile, head - head % group + group); ++h) {
      const Cells* of_head = &expected.at(batch, h);
      if (of_heads.empty() || of_heads.back() != of_head) of_heads.push_back(of_head);
    }
    const std::string error = check_row(header, plan, row, of_heads, counts);
    if (!error.empty()) return where + error;
  }
  for (const std::int32_t order : plan.permutation_of) {
    if (order >= 0)
      counts.moved_keys += plan.kv_permutations[static_cast<std::size_t>(order)].num_keys;
  }
  if (!(counts == header.counts))
    return expected.name + ": the counts are not those of the work tiles";
  return {};
}

}  // namespace

std::string check_plan(const AttentionPlan& plan, const MaskCase& expected) {
  return std::visit(
      Overloads{[&](const SegmentPlan& form) { return check_segments(plan, form, expected); },
                [&](const ClosedFormPlan&) { return expected.name + ": the plan stores no cells"; },
                [&](const KvWorklist&) { return check_worklist_plan(plan, expected); }},
      plan.form);
}

}  // namespace fdma::testing
