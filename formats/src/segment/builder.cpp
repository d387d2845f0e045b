#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>
#include <new>

#include "fdma/formats/segment_builder.hpp"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "fdma/base/memory.hpp"
#include "segment/bitmaps_run.hpp"
#include "segment/column_table.hpp"

namespace fdma {

void DataIndex::insert(std::uint64_t hash, std::int32_t index) {
  if (slots_.empty()) slots_.resize(64);
  if (2 * (size_ + 1) > slots_.size()) {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    size_ = 0;
    for (const Slot& slot : old) {
      if (slot.index >= 0) insert(slot.hash, slot.index);
    }
  }
  const std::size_t mask = slots_.size() - 1;
  std::size_t i = hash & mask;
  while (slots_[i].index >= 0) i = (i + 1) & mask;
  slots_[i] = {hash, index};
  ++size_;
}

std::uint64_t hash_words(const std::uint64_t* words, std::int64_t count) {
  return XXH3_64bits(words, static_cast<std::size_t>(count) * sizeof(std::uint64_t));
}

namespace {

// From this many words on, memory for bitmaps grows fourfold: growing touches memory twice, and
// reserved memory that is never touched costs nothing.
constexpr std::size_t kSmallWords = 8192;
/// The most numbers by which panels are known. Panels beyond them are compared interval by interval.
constexpr std::size_t kMaxPanelNumbers = std::size_t{1} << 16;

}  // namespace

SegmentBuilder::SegmentBuilder(std::int64_t q_len, std::int64_t kv_len, BlockShape block)
    : period_(row_period(block)), open_(static_cast<std::size_t>(period_)) {
  mask_.q_len = q_len;
  mask_.kv_len = kv_len;
  mask_.block = block;
}

std::int32_t SegmentBuilder::intern_bitmap(const std::uint64_t* words, std::uint64_t hash) {
  const std::int64_t size = mask_.words_per_bitmap();
  const std::int32_t found = bitmap_index_.find(hash, [&](std::int32_t index) {
    return std::memcmp(mask_.bitmap(index).data(), words, static_cast<std::size_t>(size) * 8) == 0;
  });
  if (found >= 0) return found;
  const auto index = static_cast<std::int32_t>(mask_.num_bitmaps());
  const std::size_t used = mask_.bitmaps.size(), wanted = used + static_cast<std::size_t>(size);
  if (wanted > mask_.bitmaps.capacity() && used >= kSmallWords) {
    const std::int64_t most = std::int64_t{mask_.num_tile_rows()} * mask_.num_tile_cols() * size;
    mask_.bitmaps.reserve(std::max(wanted, std::min(4 * used, static_cast<std::size_t>(most))));
  }
  mask_.bitmaps.insert(mask_.bitmaps.end(), words, words + size);
  bitmap_index_.insert(hash, index);
  return index;
}

// Index of the stored panel that equals panel_offsets_ and panel_intervals_, or -1.
std::int32_t SegmentBuilder::find_panel(std::uint64_t hash) const {
  return panel_index_.find(hash, [&](std::int32_t index) {
    const std::size_t block_q = panel_offsets_.size() - 1;
    const std::int64_t* stored =
        mask_.row_offsets.data() + static_cast<std::size_t>(index) * block_q;
    for (std::size_t r = 0; r <= block_q; ++r) {
      if (stored[r] - stored[0] != panel_offsets_[r]) return false;
    }
    return std::equal(panel_intervals_.begin(), panel_intervals_.end(),
                      mask_.row_intervals.begin() + stored[0]);
  });
}

SegmentBuilder::NumberedTile& SegmentBuilder::numbered_tile(std::int32_t number) {
  const auto at = static_cast<std::size_t>(number);
  if (at >= numbered_tiles_.size()) numbered_tiles_.resize(std::max(at + 1, 2 * at));
  return numbered_tiles_[at];
}

// True if no partial tile before had a bitmap of this hash.
bool SegmentBuilder::see(std::uint64_t hash) {
  if (seen_.find(hash, [](std::int32_t) { return true; }) >= 0) return false;
  seen_.insert(hash, 0);
  return true;
}

// Appends tiles [begin, end) of one bitmap to runs_ and run_keys_.
void SegmentBuilder::list_run(std::uint64_t hash, std::int64_t begin, std::int64_t end) {
  const bool is_same = !runs_.empty() && hash == runs_.back().hash;
  runs_.push_back({end, hash});
  if (is_same) {
    run_keys_.back() += static_cast<std::uint64_t>(end - begin);
    return;
  }
  run_keys_.push_back(hash);
  run_keys_.push_back(static_cast<std::uint64_t>(end - begin));
}

// Lists the tiles of a segment by their bitmaps. Returns the number of bitmaps that are new.
std::int64_t SegmentBuilder::list_runs(std::int64_t num_tiles, PartialRun& tile_run) {
  std::int64_t num_new = 0;
  for (std::int64_t t = 0; t < num_tiles; t = runs_.back().end) {
    const std::uint64_t hash = tile_run.bitmap_hash(t);
    const bool is_other = t == 0 || hash != runs_.back().hash;
    list_run(hash, t, tile_run.run_end(t));
    num_new += is_other && see(hash) ? 1 : 0;
  }
  return num_new;
}

// The same for tiles with numbers.
std::int64_t SegmentBuilder::list_numbered_runs(Numbers numbers, PartialRun& tile_run) {
  std::int64_t num_new = 0, begin = 0;
  for (const auto& [number, end] : numbers) {
    NumberedTile& tile = numbered_tile(number);
    if (!tile.is_seen) {
      tile.hash = tile_run.bitmap_hash(begin);
      tile.is_seen = true;
      num_new += see(tile.hash) ? 1 : 0;
    }
    list_run(tile.hash, begin, end);
    begin = end;
  }
  return num_new;
}

// The panel of a segment with these numbers, if one was noted, or -1.
std::int32_t SegmentBuilder::find_numbered_panel(std::uint64_t hash, Numbers numbers) const {
  const std::int32_t found = numbered_index_.find(hash, [&](std::int32_t index) {
    const NumberedPanel& noted = numbered_panels_[static_cast<std::size_t>(index)];
    return noted.count == numbers.size() &&
           std::equal(numbers.begin(), numbers.end(),
                      panel_numbers_.begin() + static_cast<std::ptrdiff_t>(noted.first));
  });
  return found < 0 ? -1 : numbered_panels_[static_cast<std::size_t>(found)].panel;
}

void SegmentBuilder::note_numbered_panel(std::uint64_t hash, Numbers numbers, std::int32_t panel) {
  if (panel_numbers_.size() + numbers.size() > kMaxPanelNumbers) return;
  numbered_index_.insert(hash, static_cast<std::int32_t>(numbered_panels_.size()));
  numbered_panels_.push_back({panel_numbers_.size(), numbers.size(), panel});
  panel_numbers_.insert(panel_numbers_.end(), numbers.begin(), numbers.end());
}

// The panel that stores the segment in runs_, found or appended; -1 if its bitmaps do.
std::int32_t SegmentBuilder::panel_of(std::int64_t num_new, Numbers numbers, PartialRun& tile_run) {
  const std::int64_t bitmap_words = mask_.words_per_bitmap();
  const std::int64_t block_q = mask_.block.block_q;
  // Equal panels are equal sequences of bitmaps, so the lookup does not need the panel itself.
  const std::uint64_t key = XXH3_64bits(run_keys_.data(), run_keys_.size() * 8);
  // In words; a panel takes block_q + intervals.
  const std::int64_t most_intervals = num_new * bitmap_words - block_q - 1;
  const bool may_be_stored = panel_index_.find(key, [](std::int32_t) { return true; }) >= 0;
  const bool is_smaller = !may_be_stored && most_intervals >= 0 &&
                          tile_run.num_intervals(most_intervals) <= most_intervals;
  if (!may_be_stored && !is_smaller) return -1;
  if (may_be_stored && !numbers.empty()) {
    const std::int32_t noted = find_numbered_panel(key, numbers);
    if (noted >= 0) return noted;
  }
  panel_offsets_.assign(static_cast<std::size_t>(block_q) + 1, 0);
  panel_intervals_.clear();
  tile_run.write_panel(panel_offsets_, panel_intervals_);
  std::int32_t panel = find_panel(key);
  if (panel < 0 && block_q + std::ssize(panel_intervals_) < num_new * bitmap_words) {
    panel = static_cast<std::int32_t>(mask_.num_row_panels());
    const std::int64_t base = mask_.row_offsets.back();
    for (std::size_t r = 1; r < panel_offsets_.size(); ++r) {
      mask_.row_offsets.push_back(base + panel_offsets_[r]);
    }
    mask_.row_intervals.insert(mask_.row_intervals.end(), panel_intervals_.begin(),
                               panel_intervals_.end());
    panel_index_.insert(key, panel);
  }
  if (panel >= 0 && !numbers.empty()) note_numbered_panel(key, numbers, panel);
  return panel;
}

// Rule 2.
void SegmentBuilder::add_partial_run(std::int32_t first_tile, std::int32_t end_tile,
                                     std::int32_t step, PartialRun& tile_run,
                                     std::vector<TileSegment>& segments) {
  const Numbers numbers = tile_run.numbers();
  const bool is_numbered_tile = end_tile - first_tile == 1 && !numbers.empty();
  if (is_numbered_tile) {
    const NumberedTile& tile = numbered_tile(numbers[0].number);
    if (tile.is_decided) {  // nothing of it is new, so that it is stored as before
      segments.push_back(
          tile.panel >= 0
              ? TileSegment{first_tile, end_tile, step, step, SegmentKind::rows, tile.panel}
              : TileSegment{first_tile, end_tile, step, step, SegmentKind::bitmap,
                            tile_run.intern(0, tile.hash)});
      return;
    }
  }
  runs_.clear();
  run_keys_.clear();
  const std::int64_t num_new = numbers.empty() ? list_runs(end_tile - first_tile, tile_run)
                                               : list_numbered_runs(numbers, tile_run);
  const std::int32_t panel = panel_of(num_new, numbers, tile_run);
  if (is_numbered_tile) {
    NumberedTile& tile = numbered_tile(numbers[0].number);
    tile.is_decided = true;
    tile.panel = panel;
  }
  if (panel >= 0) {
    segments.push_back({first_tile, end_tile, step, step, SegmentKind::rows, panel});
    return;
  }
  std::int32_t tile = first_tile;
  for (const BitmapRun& run : runs_) {
    const std::int32_t index = tile_run.intern(tile - first_tile, run.hash);
    const auto end = static_cast<std::int32_t>(first_tile + run.end);
    if (tile > first_tile && segments.back().data_index == index) {
      segments.back().end_tile = end;
    } else {
      segments.push_back({tile, end, step, step, SegmentKind::bitmap, index});
    }
    tile = end;
  }
}

std::int64_t SegmentBuilder::data_bytes() const {
  return static_cast<std::int64_t>(mask_.bitmaps.size() * 8 + (mask_.row_offsets.size() - 1) * 8 +
                                   mask_.row_intervals.size() * sizeof(Interval));
}

void SegmentBuilder::close(OpenRun& open) {
  if (!open.is_open) return;
  open.run.num_segments = static_cast<std::int32_t>(open.segments.size());
  open.run.first_segment = static_cast<std::int64_t>(mask_.segments.size());
  const std::size_t num_segments = mask_.segments.size() + open.segments.size();
  if (num_segments > mask_.segments.capacity()) {
    // The system grants more memory than it has: ask before the list of segments grows. Memory that
    // is not touched costs nothing, so that as many are expected as the rows so far have.
    const auto fits = [](std::size_t count) {
      return check_memory(static_cast<std::int64_t>(count * sizeof(TileSegment)), "segments")
          .has_value();
    };
    const std::size_t doubled = std::max(num_segments, 2 * mask_.segments.size());
    const auto rows = static_cast<std::size_t>(open.run.first_row) + 1;
    const std::size_t expected =
        num_segments / rows * static_cast<std::size_t>(mask_.num_tile_rows()) / 16 * 17;
    const std::size_t most = std::clamp(expected, doubled, 4 * doubled);
    if (!fits(most) && !fits(doubled)) throw std::bad_alloc();
    mask_.segments.reserve(fits(most) ? most : doubled);
  }
  mask_.segments.insert(mask_.segments.end(), open.segments.begin(), open.segments.end());
  mask_.runs.push_back(open.run);
  open.is_open = false;
}

// Rule 5: joins the first of `count` rows to the open run, or all of them if they move as the run
// does.
bool SegmentBuilder::absorb(OpenRun& open, std::span<const TileSegment> segments,
                            std::int32_t& count) {
  if (!open.is_open || open.segments.size() != segments.size()) return false;
  const std::int32_t rows = open.run.num_rows;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    const TileSegment& mine = open.segments[i];
    const TileSegment& next = segments[i];
    if (mine.kind != next.kind || mine.data_index != next.data_index) return false;
    if (rows > 1 && (mine.first_tile + rows * mine.step_first != next.first_tile ||
                     mine.end_tile + rows * mine.step_end != next.end_tile)) {
      return false;
    }
  }
  bool moves_alike = true;
  for (std::size_t i = 0; i < segments.size(); ++i) {
    TileSegment& mine = open.segments[i];
    const TileSegment& next = segments[i];
    if (rows == 1) {
      mine.step_first = next.first_tile - mine.first_tile;
      mine.step_end = next.end_tile - mine.end_tile;
    }
    moves_alike =
        moves_alike && mine.step_first == next.step_first && mine.step_end == next.step_end;
  }
  const std::int32_t absorbed = moves_alike ? count : 1;
  open.run.num_rows += absorbed;
  count -= absorbed;
  return true;
}

void SegmentBuilder::add_rows(std::int32_t first_row, std::int32_t count,
                              std::span<const TileSegment> segments) {
  if (count <= 0) return;
  OpenRun& open = open_[static_cast<std::size_t>(first_row % period_)];
  std::int32_t done = 0;
  moved_.assign(segments.begin(), segments.end());
  std::vector<TileSegment>& moved = moved_;
  while (done < count) {
    std::int32_t remaining = count - done;
    if (!absorb(open, moved, remaining)) {
      close(open);
      open.is_open = true;
      open.run = TileRun{first_row + done * period_, period_, 1, 0, 0};
      open.segments = moved;
      for (TileSegment& segment : open.segments) segment.step_first = segment.step_end = 0;
      remaining = count - done - 1;
    }
    const std::int32_t advanced = count - done - remaining;
    done += advanced;
    for (TileSegment& segment : moved) {
      segment.first_tile += advanced * segment.step_first;
      segment.end_tile += advanced * segment.step_end;
    }
  }
  if (period_ == 1) next_row_ = first_row + count;
}

void SegmentBuilder::add_tile_row(std::span<const TileRange> ranges, const TileCells& cells,
                                  bool reclassify) {
  row_segments_.clear();
  const std::int64_t words_per_bitmap = mask_.words_per_bitmap();
  const std::int64_t block_kv = mask_.block.block_kv;
  const std::int64_t num_rows = std::min<std::int64_t>(
      mask_.block.block_q, mask_.q_len - std::int64_t{next_row_} * mask_.block.block_q);
  scratch_.clear();
  std::int32_t tile_run_first = 0, tile_run_end = 0;  // partial tiles whose cells are in scratch_
  const auto flush = [&] {
    if (tile_run_first < tile_run_end) {
      BitmapsRun tile_run(*this, scratch_, mask_.block);
      add_partial_run(tile_run_first, tile_run_end, 0, tile_run, row_segments_);
    }
    scratch_.clear();
    tile_run_first = tile_run_end = 0;
  };
  const auto add_full = [&](std::int32_t first, std::int32_t end) {
    flush();
    if (!row_segments_.empty() && row_segments_.back().kind == SegmentKind::full &&
        row_segments_.back().end_tile == first) {
      row_segments_.back().end_tile = end;
    } else {
      row_segments_.push_back({first, end, 0, 0, SegmentKind::full, 0});
    }
  };
  for (const TileRange& range : ranges) {
    assert(range.first < range.end && range.end <= mask_.num_tile_cols());
    if (range.is_full) {
      add_full(range.first, range.end);
      continue;
    }
    for (std::int32_t tile = range.first; tile < range.end; ++tile) {
      if (tile != tile_run_end) flush();
      const std::size_t base = scratch_.size();
      scratch_.resize(base + static_cast<std::size_t>(words_per_bitmap));
      cells(tile, scratch_.data() + base);
      if (reclassify) {
        std::int64_t count = 0;
        for (std::size_t i = base; i < scratch_.size(); ++i) count += std::popcount(scratch_[i]);
        const std::int64_t existing = num_rows * std::min(block_kv, mask_.kv_len - tile * block_kv);
        if (count == 0 || count == existing) {
          scratch_.resize(base);
          if (count != 0) add_full(tile, tile + 1);
          continue;
        }
      }
      if (base == 0) tile_run_first = tile;
      tile_run_end = tile + 1;
    }
  }
  flush();
  repeat_tile_row();  // appends the row itself
}

void SegmentBuilder::repeat_tile_row() {
  const std::int32_t row = next_row_;
  add_rows(row, 1, row_segments_);
  next_row_ = row + 1;
}

SegmentMask SegmentBuilder::finish() {
  assert(next_row_ == mask_.num_tile_rows());
  for (OpenRun& open : open_) close(open);
  SegmentMask result = std::move(mask_);
  mask_ = SegmentMask{};
  if (!std::is_sorted(result.runs.begin(), result.runs.end(),
                      [](const auto& a, const auto& b) { return a.first_row < b.first_row; })) {
    std::vector<TileRun> runs = result.runs;
    std::sort(runs.begin(), runs.end(),
              [](const TileRun& a, const TileRun& b) { return a.first_row < b.first_row; });
    std::vector<TileSegment> segments;
    segments.reserve(result.segments.size());
    for (TileRun& run : runs) {
      const auto first = result.segments.begin() + run.first_segment;
      run.first_segment = static_cast<std::int64_t>(segments.size());
      segments.insert(segments.end(), first, first + run.num_segments);
    }
    result.runs = std::move(runs);
    result.segments = std::move(segments);
  }
  return choose_column_table(std::move(result));
}

}  // namespace fdma
