// Validates plans of segments. After it no backend accesses memory outside an array, and no cell
// that does not exist is true.
//
// Shared data are checked once, however many work tiles use them: the extent of a bitmap, the
// farthest key of a row panel, the entries of a kv index list. Work tiles are then compared with
// the extents alone. The live keys of column tiles are not counted again, because that would cost
// what scanning them costs.
#include <fmt/format.h>

#include <algorithm>
#include <bit>

#include "fdma/formats/convert.hpp"
#include "plan/forms.hpp"
#include "plan/pattern_rows.hpp"
#include "plan/thread_cells.hpp"
#include "plan/validate_kv_index_lists.hpp"
#include "plan/validate_splits.hpp"

namespace fdma {
namespace {

Error wrong(std::string message) { return Error{ErrorCode::internal, std::move(message)}; }

// Checks that offsets ascend from 0 to `end`.
Result<void> check_offsets(std::string_view name, const std::vector<std::int64_t>& offsets,
                           std::size_t end) {
  for (std::size_t i = 0; i < offsets.size(); ++i) {
    const std::int64_t low = i == 0 ? 0 : offsets[i - 1];
    if (offsets[i] < low || offsets[i] > static_cast<std::int64_t>(end)) {
      return wrong(fmt::format("{}[{}]: expected {} to {}, got {}", name, i, low, end, offsets[i]));
    }
  }
  return {};
}

Result<void> check_arrays(const PlanHeader& header, const SegmentPlan& plan) {
  if (plan.bitmaps.size() % static_cast<std::size_t>(header.words_per_bitmap()) != 0) {
    return wrong(fmt::format("bitmaps: {} words are no multiple of {}", plan.bitmaps.size(),
                             header.words_per_bitmap()));
  }
  const auto panel_rows = static_cast<std::size_t>(header.mask_tile().block_q);
  if (plan.row_offsets.empty() || (plan.row_offsets.size() - 1) % panel_rows != 0) {
    return wrong(fmt::format("row_offsets: expected a multiple of {} entries and one more, got {}",
                             panel_rows, plan.row_offsets.size()));
  }
  FDMA_TRY_VOID(check_offsets("row_offsets", plan.row_offsets, plan.row_intervals.size()));
  FDMA_TRY_VOID(check_offsets("column_offsets", plan.column_offsets, plan.column_intervals.size()));
  FDMA_TRY_VOID(check_offsets("column_tables", plan.column_tables, plan.column_offsets.size()));
  for (std::size_t i = 0; i < plan.row_intervals.size(); ++i) {
    const Interval keys = plan.row_intervals[i];
    if (keys.begin < 0 || keys.begin >= keys.end) {
      return wrong(fmt::format("row_intervals[{}]: [{}, {})", i, keys.begin, keys.end));
    }
  }
  return {};
}

// Mask rows and keys up to the last true cell of a tile.
struct Extent {
  std::int64_t rows = 0;
  std::int64_t keys = 0;
};

// Words in thread order (bitmap_order.hpp), with one mask row for each `heads` rows.
Extent extent_of_thread_words(const std::uint64_t* words, std::int64_t heads) {
  Extent extent;
  for (int thread = 0; thread < 256; ++thread) {
    for (int word = 0; word < 2; ++word) {
      const auto bits = static_cast<std::uint32_t>(words[thread] >> (32 * word));
      if (bits == 0) continue;
      const gpu::FragmentCell last = gpu::mask_cell(thread % 128, word, std::bit_width(bits) - 1);
      extent.rows = std::max<std::int64_t>(extent.rows, thread / 128 * 64 + last.row + 1);
      extent.keys = std::max<std::int64_t>(extent.keys, last.col + 1);
    }
  }
  extent.rows = ceil_div(extent.rows, heads);
  return extent;
}

Extent extent_of_bitmap(const PlanHeader& header, const SegmentPlan& plan, std::int64_t index) {
  if (header.backend.traits().bitmap_order == BitmapOrder::thread_fragments) {
    return extent_of_thread_words(plan.bitmaps.data() + index * header.words_per_bitmap(),
                                  header.heads_per_tile);
  }
  const auto* bytes = reinterpret_cast<const unsigned char*>(plan.bitmaps.data() +
                                                             index * header.words_per_bitmap());
  const std::int64_t key_bytes = header.mask_tile().block_q / 8;
  Extent extent;
  for (std::int64_t key = 0; key < header.mask_tile().block_kv; ++key) {
    for (std::int64_t byte = 0; byte < key_bytes; ++byte) {
      const unsigned char rows = bytes[key * key_bytes + byte];
      if (rows == 0) continue;
      extent.keys = key + 1;
      extent.rows = std::max<std::int64_t>(extent.rows, 8 * byte + std::bit_width(rows));
    }
  }
  return extent;
}

Extent extent_of_panel(const PlanHeader& header, const SegmentPlan& plan, std::int64_t index) {
  Extent extent;
  const std::int64_t panel_rows = header.mask_tile().block_q;
  for (std::int64_t row = 0; row < panel_rows; ++row) {
    const auto at = static_cast<std::size_t>(index * panel_rows + row);
    for (std::int64_t i = plan.row_offsets[at]; i < plan.row_offsets[at + 1]; ++i) {
      extent.rows = row + 1;
      extent.keys =
          std::max<std::int64_t>(extent.keys, plan.row_intervals[static_cast<std::size_t>(i)].end);
    }
  }
  return extent;
}

Result<void> check_patterns(const PlanHeader& header, const SegmentPlan& plan) {
  if (!plan.patterns.empty() && !plan.kv_index_lists.empty()) {
    return wrong("patterns: a plan with kv index lists has none");
  }
  const std::int64_t num_bitmaps = plan.num_bitmaps(header.words_per_bitmap());
  for (std::size_t i = 0; i < plan.pattern_entries.size(); ++i) {
    const PatternEntry& entry = plan.pattern_entries[i];
    if (entry.bitmap < kFullEntry || entry.bitmap >= num_bitmaps) {
      return wrong(
          fmt::format("pattern_entries[{}]: bitmap {} of {}", i, entry.bitmap, num_bitmaps));
    }
  }
  for (std::size_t i = 0; i < plan.patterns.size(); ++i) {
    const PlanPattern& pattern = plan.patterns[i];
    if (pattern.first_entry < 0 || pattern.num_entries <= 0 || pattern.shift > 0 ||
        pattern.shift <= -std::int64_t{pattern.num_cols} ||
        std::int64_t{pattern.first_entry} + pattern.num_entries >
            static_cast<std::int64_t>(plan.pattern_entries.size())) {
      return wrong(fmt::format("patterns[{}]: entries {} + {} of {}, {} columns, shift {}", i,
                               pattern.first_entry, pattern.num_entries,
                               plan.pattern_entries.size(), pattern.num_cols, pattern.shift));
    }
    std::int32_t previous = -1;
    for (std::int32_t e = 0; e < pattern.num_entries; ++e) {
      const std::size_t entry =
          static_cast<std::size_t>(pattern.first_entry) + static_cast<std::size_t>(e);
      const std::int32_t column = plan.pattern_entries[entry].column;
      if (column <= previous || column >= pattern.num_cols) {
        return wrong(fmt::format("patterns[{}]: column {} after {} of {}", i, column, previous,
                                 pattern.num_cols));
      }
      previous = column;
    }
  }
  return {};
}

class WorkTileChecker {
 public:
  WorkTileChecker(const PlanHeader& header, const SegmentPlan& plan)
      : header_(header),
        plan_(plan),
        tile_(header.mask_tile()),
        checked_for_(plan.kv_index_lists.size()) {
    for (std::int64_t i = 0; i < plan.num_bitmaps(header.words_per_bitmap()); ++i) {
      bitmaps_.push_back(extent_of_bitmap(header, plan, i));
    }
    const auto num_panels =
        (static_cast<std::int64_t>(plan.row_offsets.size()) - 1) / tile_.block_q;
    for (std::int64_t i = 0; i < num_panels; ++i)
      panels_.push_back(extent_of_panel(header, plan, i));
    add_full_entries(plan, full_entries_);
  }

  Result<void> check(std::size_t index) {
    const WorkTile& work_tile = plan_.work_tiles[index];
    const auto fail = [index](const std::string& message) {
      return wrong(fmt::format("work_tiles[{}]: {}", index, message));
    };
    if (work_tile.batch < 0 || work_tile.batch >= header_.shape.batch || work_tile.head < 0 ||
        work_tile.head >= header_.shape.heads_q || work_tile.q_tile < 0 || work_tile.step < 0 ||
        work_tile.q_tile >= ceil_div(header_.row_len(work_tile.batch), tile_.block_q)) {
      return fail(fmt::format("batch {} head {} q_tile {} step {} is outside the shape",
                              work_tile.batch, work_tile.head, work_tile.q_tile, work_tile.step));
    }
    if (work_tile.first_segment < 0 || work_tile.num_segments < 0 ||
        static_cast<std::size_t>(work_tile.first_segment) +
                static_cast<std::size_t>(work_tile.num_segments) >
            plan_.segments.size()) {
      return fail(fmt::format("segments {} + {} of {}", work_tile.first_segment,
                              work_tile.num_segments, plan_.segments.size()));
    }
    kv_len_ = header_.column_len(work_tile.batch);
    num_rows_ =
        std::min<std::int64_t>(tile_.block_q, header_.row_len(work_tile.batch) -
                                                  std::int64_t{work_tile.q_tile} * tile_.block_q);
    previous_end_ = 0;
    has_list_ = false;
    walked_ = {};
    for (std::int32_t s = work_tile.first_segment;
         s < work_tile.first_segment + work_tile.num_segments; ++s) {
      const auto checked = check_segment(work_tile, plan_.segments[static_cast<std::size_t>(s)]);
      if (!checked) return fail(fmt::format("segment {}: {}", s, checked.error().message));
    }
    const PlanCounts& w = walked_;
    const bool is_right = w.column_tiles > 0 ? work_tile.num_entries >= w.gather_entries
                                             : work_tile.num_entries == w.gather_entries;
    if (!is_right) {
      return fail(
          fmt::format("num_entries: expected {}, got {}", w.gather_entries, work_tile.num_entries));
    }
    if (work_tile.first_tile > 0) return {};  // an earlier work tile of the row has counted
    sum_.full_tiles += w.full_tiles;
    sum_.bitmap_tiles += w.bitmap_tiles;
    sum_.row_tiles += w.row_tiles;
    sum_.column_tiles += w.column_tiles;
    sum_.column_entries += work_tile.num_entries - w.gather_entries;
    sum_.gather_chunks += w.gather_chunks;
    sum_.gather_entries += w.gather_entries;
    sum_.empty_items += row_tiles() == 0 ? 1 : 0;
    return {};
  }

  /// Number of tiles and index tiles of the segments of the current work tile, whichever of them it
  /// walks.
  std::int64_t row_tiles() const {
    return walked_.full_tiles + walked_.bitmap_tiles + walked_.row_tiles + walked_.column_tiles +
           walked_.gather_chunks;
  }

  /// Counts of all work tiles checked so far.
  const PlanCounts& counts() const { return sum_; }

 private:
  // Switches to keys of the kv permutation.
  Result<void> enter_order(const WorkTile& work_tile, const PlanSegment& segment) {
    const std::int64_t place = std::int64_t{work_tile.batch} * header_.shape.heads_kv +
                               work_tile.head / header_.shape.group_size();
    const std::int32_t order =
        plan_.permutation_of.empty() ? -1 : plan_.permutation_of[static_cast<std::size_t>(place)];
    const PlanSegment expected{0, 0, 0, 0, PlanSegmentKind::permutation, order};
    if (&segment != &plan_.segments[static_cast<std::size_t>(work_tile.first_segment)] ||
        segment != expected) {
      return wrong(fmt::format("expected kv permutation {} to be said first, got {}", order,
                               segment.data_index));
    }
    kv_len_ = plan_.kv_permutations[static_cast<std::size_t>(order)].num_keys;
    return {};
  }

  Result<void> check_gather(const WorkTile& work_tile, const PlanSegment& segment) {
    const auto data_index = static_cast<std::size_t>(segment.data_index);
    const KvIndexList& list = plan_.kv_index_lists[data_index];
    if (segment.first_tile != 0 || segment.step_first != 0 || segment.step_end != 0 ||
        segment.end_tile != ceil_div(list.num_entries, tile_.block_kv)) {
      return wrong(fmt::format("{} entries, but index tiles [{}, {})", list.num_entries,
                               segment.first_tile, segment.end_tile));
    }
    // Entries name keys of the tensors, whatever the order of the tiles.
    const std::pair checks{num_rows_, header_.column_len(work_tile.batch)};
    if (checked_for_[data_index] != checks) {
      FDMA_TRY_VOID(check_kv_index_list(plan_, segment.data_index, checks.first, checks.second));
      checked_for_[data_index] = checks;
    }
    has_list_ = true;
    walked_.gather_chunks += segment.end_tile;
    walked_.gather_entries += list.num_entries;
    return {};
  }

  // Tiles [first, end) of a pattern. Only the last tile can have keys that do not exist. Rows that
  // do not exist are looked for in each bitmap that the segment has.
  Result<void> check_pattern(const PlanPattern& pattern, std::int64_t first, std::int64_t end) {
    if (first < 0 || end < first) {
      return wrong(fmt::format("tiles [{}, {}) of a pattern", first, end));
    }
    if (first == end) return {};
    const auto entry_of = [&](std::int64_t i) {
      return plan_
          .pattern_entries[static_cast<std::size_t>(pattern.first_entry + i % pattern.num_entries)];
    };
    const auto tile_of = [&](std::int64_t i) {
      return i / pattern.num_entries * pattern.num_cols + pattern.shift + entry_of(i).column;
    };
    const std::int64_t num_cols = ceil_div(kv_len_, tile_.block_kv);
    const std::int64_t first_tile = tile_of(first), last_tile = tile_of(end - 1);
    if (first_tile < previous_end_ || last_tile >= num_cols) {
      return wrong(fmt::format("tiles {} to {} of a pattern after {} of {}", first_tile, last_tile,
                               previous_end_, num_cols));
    }
    previous_end_ = last_tile + 1;
    const std::int64_t full = full_entries_.of(pattern, first, end);
    walked_.full_tiles += full;
    walked_.bitmap_tiles += end - first - full;
    const std::int32_t last_bitmap = entry_of(end - 1).bitmap;
    std::int64_t num_rows = 0;
    const std::int64_t num_keys =
        last_bitmap == kFullEntry ? 0 : bitmaps_[static_cast<std::size_t>(last_bitmap)].keys;
    for (std::int64_t i = first;
         num_rows_ < tile_.block_q && i < std::min(end, first + pattern.num_entries); ++i) {
      const std::int32_t bitmap = entry_of(i).bitmap;
      if (bitmap == kFullEntry) continue;
      num_rows = std::max(num_rows, bitmaps_[static_cast<std::size_t>(bitmap)].rows);
    }
    if (num_rows > num_rows_ || last_tile * tile_.block_kv + num_keys > kv_len_) {
      return wrong(fmt::format("a pattern has cells up to row {} and key {} of {} and {}", num_rows,
                               last_tile * tile_.block_kv + num_keys, num_rows_, kv_len_));
    }
    return {};
  }

  Result<void> check_segment(const WorkTile& work_tile, const PlanSegment& segment) {
    const std::int64_t num_data_blocks[] = {1,
                                            plan_.num_bitmaps(header_.words_per_bitmap()),
                                            static_cast<std::int64_t>(panels_.size()),
                                            static_cast<std::int64_t>(plan_.column_tables.size()),
                                            static_cast<std::int64_t>(plan_.kv_index_lists.size()),
                                            0,
                                            static_cast<std::int64_t>(plan_.kv_permutations.size()),
                                            static_cast<std::int64_t>(plan_.patterns.size())};
    const auto kind = static_cast<std::size_t>(segment.kind);
    if (header_.is_backward() && segment.kind > PlanSegmentKind::columns &&
        segment.kind != PlanSegmentKind::pattern) {
      return wrong(fmt::format("kind {} in a backward plan", kind));
    }
    if (kind >= std::size(num_data_blocks) || segment.data_index < 0 ||
        segment.data_index >= num_data_blocks[kind]) {
      return wrong(fmt::format("kind {} data_index {}", kind, segment.data_index));
    }
    const auto data_index = static_cast<std::size_t>(segment.data_index);
    if (segment.kind == PlanSegmentKind::permutation) return enter_order(work_tile, segment);
    if (has_list_) return wrong("comes after a kv index list");
    if (segment.kind == PlanSegmentKind::gather) return check_gather(work_tile, segment);
    const std::int64_t first =
        segment.first_tile + std::int64_t{work_tile.step} * segment.step_first;
    const std::int64_t end = segment.end_tile + std::int64_t{work_tile.step} * segment.step_end;
    if (segment.kind == PlanSegmentKind::pattern) {
      return check_pattern(plan_.patterns[data_index], first, end);
    }
    const std::int64_t num_cols = ceil_div(kv_len_, tile_.block_kv);
    if (first < previous_end_ || end <= first || end > num_cols) {
      return wrong(
          fmt::format("tiles [{}, {}) after {} of {}", first, end, previous_end_, num_cols));
    }
    previous_end_ = end;
    Extent extent;
    std::int64_t first_key = first * tile_.block_kv;
    switch (segment.kind) {
      case PlanSegmentKind::full:
        walked_.full_tiles += end - first;
        break;
      case PlanSegmentKind::bitmap:
        walked_.bitmap_tiles += end - first;
        extent = bitmaps_[data_index];
        first_key = (end - 1) * tile_.block_kv;
        break;
      case PlanSegmentKind::rows:
        walked_.row_tiles += end - first;
        extent = panels_[data_index];
        if (extent.keys > (end - first) * tile_.block_kv) {
          return wrong(fmt::format("row panel {} has {} keys in {} tiles", data_index, extent.keys,
                                   end - first));
        }
        break;
      case PlanSegmentKind::columns:
        walked_.column_tiles += end - first;
        if (plan_.column_tables[data_index] + kv_len_ + 1 >
            static_cast<std::int64_t>(plan_.column_offsets.size())) {
          return wrong(fmt::format("column table {} has fewer than {} keys", data_index, kv_len_));
        }
        break;
      case PlanSegmentKind::gather:
      case PlanSegmentKind::closed_form:
      case PlanSegmentKind::permutation:
      case PlanSegmentKind::pattern:
        break;
    }
    if (extent.rows > num_rows_ || first_key + extent.keys > kv_len_) {
      return wrong(fmt::format("data_index {} has cells up to row {} and key {} of {} and {}",
                               data_index, extent.rows, first_key + extent.keys, num_rows_,
                               kv_len_));
    }
    return {};
  }

  const PlanHeader& header_;
  const SegmentPlan& plan_;
  const BlockShape tile_;  ///< rows and columns of the plan's mask, called rows and keys below
  std::vector<Extent> bitmaps_, panels_;
  PatternSums<std::int64_t> full_entries_;
  /// Rows and keys for which each kv index list was checked.
  std::vector<std::pair<std::int64_t, std::int64_t>> checked_for_;
  PlanCounts sum_;
  // The current work tile.
  std::int64_t kv_len_ = 0, num_rows_ = 0, previous_end_ = 0;
  bool has_list_ = false;
  PlanCounts walked_;
};

// Checks backward plans: work tiles [i * group_size, ..) are those of a KV head's query heads, in
// their order.
Result<void> check_groups(const PlanHeader& header, const SegmentPlan& plan) {
  const auto group_size = static_cast<std::size_t>(header.shape.group_size());
  for (std::size_t i = 0; header.is_backward() && i < plan.work_tiles.size(); ++i) {
    const WorkTile& work_tile = plan.work_tiles[i];
    const WorkTile& first = plan.work_tiles[i - i % group_size];
    const auto head_in_group = static_cast<std::int32_t>(i % group_size);
    if (first.head % header.shape.group_size() != 0 ||
        work_tile.head != first.head + head_in_group || work_tile.batch != first.batch ||
        work_tile.q_tile != first.q_tile) {
      return wrong(
          fmt::format("work_tiles[{}]: batch {} head {} kv_tile {} is not number {} of the "
                      "group of batch {} head {} kv_tile {}",
                      i, work_tile.batch, work_tile.head, work_tile.q_tile, head_in_group,
                      first.batch, first.head, first.q_tile));
    }
  }
  return {};
}

}  // namespace

Result<void> validate(const PlanHeader& header, const SegmentPlan& plan) {
  if (header.is_backward() && !plan.split_rows.empty()) {
    return wrong("split_rows: a backward plan has none");
  }
  FDMA_TRY_VOID(check_arrays(header, plan));
  FDMA_TRY_VOID(check_patterns(header, plan));
  FDMA_TRY_VOID(check_kv_index_arrays(plan));
  FDMA_TRY_VOID(check_permutations(header, plan));
  RowCover cover(header, plan);
  FDMA_TRY_VOID(cover.check_split_rows());
  WorkTileChecker checker(header, plan);
  for (std::size_t i = 0; i < plan.work_tiles.size(); ++i) {
    FDMA_TRY_VOID(checker.check(i));
    FDMA_TRY_VOID(cover.add(i, checker.row_tiles()));
  }
  FDMA_TRY_VOID(cover.finish());
  FDMA_TRY_VOID(check_groups(header, plan));
  PlanCounts counts = checker.counts();
  for (const std::int32_t order : plan.permutation_of) {
    if (order >= 0)
      counts.moved_keys += plan.kv_permutations[static_cast<std::size_t>(order)].num_keys;
  }
  if (counts != header.counts) {
    return wrong("counts: they differ from those of the work tiles");
  }
  return {};
}

}  // namespace fdma
