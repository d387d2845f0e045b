// Counts the cells of tiles in stripes of stripe_rows rows by one key. A full tile computes every
// stripe of its existing rows and keys. In a partial tile, a device that skips dead keys leaves out
// the keys that no row of the tile sees, and for each stripe it computes the remaining keys from
// the first to the last that one of the stripe's rows sees. This is the rule of the CPU kernel,
// except at the borders of its tiles.
//
// Each bitmap is counted once; row panels are expanded and counted tile by tile. For column tiles
// and kv index lists the plan stores the live keys of each row. In a work tile that walks a part of
// a row's tiles, tiles of columns and row panels count whole. Heads that share a tile have rows of
// their own in it.
#include "estimate/work_tile_counts.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

#include "fdma/formats/segment_builder.hpp"
#include "fdma/kernels/segment_iterator.hpp"
#include "plan/l2_heads.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kNarrowestStripe = 16;

/// The keys that each stripe of a tile sees: bit c of words [stripe * words_per_stripe ..).
class StripeKeys {
 public:
  StripeKeys(BlockShape tile, std::int64_t stripe_rows)
      : stripe_rows_(stripe_rows),
        words_per_stripe_(ceil_div(tile.block_kv, 64)),
        words_(static_cast<std::size_t>(ceil_div(tile.block_q, stripe_rows) * words_per_stripe_)) {}

  void clear() { std::fill(words_.begin(), words_.end(), 0); }
  /// Adds keys [begin, end), which row `row` of the tile sees.
  void add_row(std::int64_t row, std::int64_t begin, std::int64_t end) {
    set_bits(stripe(row / stripe_rows_), begin, end);
  }
  void add_key(std::int64_t at, std::int64_t key) { set_bits(stripe(at), key, key + 1); }

  /// Number of computed (stripe, key) pairs.
  std::int64_t num_computed() {
    const std::int64_t num_stripes = static_cast<std::int64_t>(words_.size()) / words_per_stripe_;
    std::vector<std::uint64_t> live(static_cast<std::size_t>(words_per_stripe_));
    for (std::size_t i = 0; i < words_.size(); ++i) live[i % live.size()] |= words_[i];
    std::int64_t computed = 0;
    for (std::int64_t s = 0; s < num_stripes; ++s) {
      const std::uint64_t* words = stripe(s);
      std::int64_t first = 0;
      std::int64_t last = words_per_stripe_ - 1;
      while (first <= last && words[first] == 0) ++first;
      while (first <= last && words[last] == 0) --last;
      if (first > last) continue;
      for (std::int64_t w = first; w <= last; ++w) {
        std::uint64_t range = ~std::uint64_t{0};
        if (w == first) range &= ~std::uint64_t{0} << std::countr_zero(words[w]);
        if (w == last) range &= ~std::uint64_t{0} >> std::countl_zero(words[w]);
        computed += std::popcount(live[static_cast<std::size_t>(w)] & range);
      }
    }
    return computed;
  }

 private:
  std::uint64_t* stripe(std::int64_t at) { return words_.data() + at * words_per_stripe_; }

  std::int64_t stripe_rows_;
  std::int64_t words_per_stripe_;
  std::vector<std::uint64_t> words_;
};

// Entries of the kv index list that follows a work tile's tiles.
std::int64_t gathered_entries(const SegmentPlan& plan, const WorkTile& work_tile) {
  if (work_tile.num_segments == 0) return 0;
  const PlanSegment& last =
      plan.segments[static_cast<std::size_t>(work_tile.first_segment + work_tile.num_segments - 1)];
  return last.kind == PlanSegmentKind::gather
             ? plan.kv_index_lists[static_cast<std::size_t>(last.data_index)].num_entries
             : 0;
}

}  // namespace

TileComputing::TileComputing(const PlanHeader& header, std::int32_t rows_of_stripe, bool skips_dead)
    : tile(header.mask_tile()),
      stripe_rows(std::min(rows_of_stripe, tile.block_q)),
      skips_dead_keys(skips_dead),
      heads_per_tile(header.heads_per_tile) {}

// The last stripe of a work tile is the narrowest of 16, 32, .. rows that holds its rows.
std::int64_t TileComputing::computed_rows(std::int64_t rows) const {
  if (!skips_dead_keys) return std::int64_t{tile.block_q} * heads_per_tile;
  const std::int64_t rest = rows % stripe_rows;
  std::int64_t last = rest == 0 ? 0 : kNarrowestStripe;
  while (last < rest) last *= 2;
  return rows - rest + std::min(last, stripe_rows);
}

WorkCounter::WorkCounter(const PlanHeader& header, const SegmentPlan& plan,
                         std::int32_t stripe_rows, bool skips_dead_keys)
    : header_(header),
      plan_(plan),
      computing_(header, stripe_rows, skips_dead_keys),
      gather_step_(
          gather_step(header.shape, header.score, skips_dead_keys, header.mask_tile().block_kv)) {
  add_full_entries(plan, full_entries_);
  if (!skips_dead_keys) return;
  count_bitmaps();
  count_panels();
  add_entries(plan, entry_cells_, [this](const PatternEntry& entry) {
    return entry.bitmap == kFullEntry ? 0 : bitmap_cells_[static_cast<std::size_t>(entry.bitmap)];
  });
}

// Bit c * block_q + r: the rows of a key are whole 16-bit units, and a stripe is a number of them.
void WorkCounter::count_bitmaps() {
  const std::int64_t units_per_key = computing_.tile.block_q / 16;
  const std::int64_t units_per_stripe = computing_.stripe_rows / 16;
  StripeKeys seen(computing_.tile, computing_.stripe_rows);
  bitmap_cells_.resize(static_cast<std::size_t>(plan_.num_bitmaps(header_.words_per_bitmap())));
  for (std::size_t i = 0; i < bitmap_cells_.size(); ++i) {
    const std::uint64_t* words =
        plan_.bitmaps.data() + i * static_cast<std::size_t>(header_.words_per_bitmap());
    seen.clear();
    for (std::int64_t key = 0; key < computing_.tile.block_kv; ++key) {
      for (std::int64_t u = 0; u < units_per_key; ++u) {
        const std::int64_t at = key * units_per_key + u;
        const std::uint64_t rows = words[at / 4] >> (16 * (at % 4)) & 0xffff;
        if (rows != 0) seen.add_key(u / units_per_stripe, key);
      }
    }
    bitmap_cells_[i] = seen.num_computed() * computing_.stripe_rows;
  }
}

void WorkCounter::count_panels() {
  const std::int64_t block_q = computing_.tile.block_q;
  const std::int64_t block_kv = computing_.tile.block_kv;
  const std::int64_t num_rows = static_cast<std::int64_t>(plan_.row_offsets.size()) - 1;
  panel_cells_.resize(static_cast<std::size_t>(num_rows / block_q));
  StripeKeys seen(computing_.tile, computing_.stripe_rows);
  for (std::int64_t panel = 0; panel < num_rows / block_q; ++panel) {
    const auto offset = [&](std::int64_t row) {
      return plan_.row_offsets[static_cast<std::size_t>(panel * block_q + row)];
    };
    std::int64_t width = 0;
    for (std::int64_t i = offset(0); i < offset(block_q); ++i) {
      width = std::max<std::int64_t>(width, plan_.row_intervals[static_cast<std::size_t>(i)].end);
    }
    for (std::int64_t begin = 0; begin < width; begin += block_kv) {
      seen.clear();
      for (std::int64_t row = 0; row < block_q; ++row) {
        for (std::int64_t i = offset(row); i < offset(row + 1); ++i) {
          const Interval keys = plan_.row_intervals[static_cast<std::size_t>(i)];
          seen.add_row(row, std::max<std::int64_t>(keys.begin - begin, 0),
                       std::min<std::int64_t>(keys.end - begin, block_kv));
        }
      }
      panel_cells_[static_cast<std::size_t>(panel)] += seen.num_computed() * computing_.stripe_rows;
    }
  }
}

ClosedFormWorkCounter::ClosedFormWorkCounter(const PlanHeader& header, const ClosedFormPlan& plan,
                                             std::int32_t stripe_rows, bool skips_dead_keys)
    : computing_(header, stripe_rows, skips_dead_keys),
      elements_(closed_form_elements(header, plan)) {
  for (std::int32_t b = 0; b < header.shape.batch; ++b) {
    first_row_.push_back(row_work_.size());
    const std::int32_t num_rows = elements_[static_cast<std::size_t>(b)].num_rows;
    for (std::int32_t i = 0; i < ceil_div(num_rows, computing_.tile.block_q); ++i) {
      WorkTile row{};
      row.batch = b;
      row.q_tile = i;
      row_work_.push_back(count(row));
    }
  }
}

// Work of a whole row, or of the tiles of a part. A tile with a closed-form mask costs what one
// with a bitmap does, because other threads than the computing ones make its mask fragments.
PlanWork ClosedFormWorkCounter::count(const WorkTile& work_tile) const {
  const ClosedFormElement& element = elements_[static_cast<std::size_t>(work_tile.batch)];
  const std::int32_t q_begin = work_tile.q_tile * computing_.tile.block_q;
  const std::int32_t q_end = std::min(q_begin + computing_.tile.block_q, element.num_rows);
  const std::int32_t block_kv = computing_.tile.block_kv;
  const std::int64_t rows = computing_.computed_rows(q_end - q_begin);
  const auto keys_of = [&](std::int32_t first, std::int32_t end) -> std::int64_t {
    return computing_.skips_dead_keys
               ? std::min(end * std::int64_t{block_kv}, std::int64_t{element.num_columns}) -
                     first * std::int64_t{block_kv}
               : (end - first) * std::int64_t{block_kv};
  };
  StripeKeys seen(computing_.tile, computing_.stripe_rows);
  const auto partial_cells = [&](std::int32_t tile) -> std::int64_t {
    if (!computing_.skips_dead_keys) return rows * block_kv;
    seen.clear();
    for (std::int32_t q = q_begin; q < q_end; ++q) {
      for (const ClosedFormRange& keys : element.intervals(q)) {
        const std::int32_t begin = std::max(keys.begin - tile * block_kv, 0);
        const std::int32_t end = std::min(keys.end - tile * block_kv, block_kv);
        if (begin < end) seen.add_row(q - q_begin, begin, end);
      }
    }
    return seen.num_computed() * computing_.stripe_rows;
  };
  const ClosedFormWalk walk = walk_of(element, computing_.tile, work_tile.q_tile);
  const bool is_part = work_tile.partial != kWholeRow;
  std::int32_t before = 0;  // tiles of segments so far, the work tile's or not
  PlanWork work;
  StepWork& full = work.of(PlanSegmentKind::full);
  StepWork& partial = work.of(PlanSegmentKind::bitmap);
  for (const int index : {0, 1}) {
    const ClosedFormWalk::TileRun& tile_run = walk.tile_run(index);
    const std::int32_t origin = tile_run.first - before;
    before += tile_run.end - tile_run.first;
    const std::int32_t first =
        is_part ? std::max(tile_run.first, origin + work_tile.first_tile) : tile_run.first;
    const std::int32_t end =
        is_part ? std::min(tile_run.end, origin + work_tile.first_tile + work_tile.num_tiles)
                : tile_run.end;
    const std::int32_t full_first = std::clamp(tile_run.full_first, first, std::max(first, end));
    const std::int32_t full_end =
        std::clamp(tile_run.full_end, full_first, std::max(full_first, end));
    if (full_first < full_end) {
      full.tiles += full_end - full_first;
      full.cells += rows * keys_of(full_first, full_end);
    }
    for (std::int32_t tile = first; tile < end; ++tile) {
      if (tile == full_first) tile = full_end;
      if (tile >= end) break;
      ++partial.tiles;
      partial.cells += partial_cells(tile);
    }
  }
  return work;
}

PlanWork ClosedFormWorkCounter::of(const WorkTile& work_tile) const {
  return work_tile.partial != kWholeRow
             ? count(work_tile)
             : row_work_[first_row_[static_cast<std::size_t>(work_tile.batch)] +
                         static_cast<std::size_t>(work_tile.q_tile)];
}

PlanWork WorkCounter::of(const WorkTile& work_tile) const {
  const std::int64_t row_len = header_.row_len(work_tile.batch);
  const KvPermutation* const order = plan_.kv_permutation(work_tile);
  const std::int64_t kv_len =
      order == nullptr ? header_.column_len(work_tile.batch) : order->num_keys;
  const std::int64_t block_kv = computing_.tile.block_kv;
  const std::int64_t rows = computing_.computed_rows(std::min<std::int64_t>(
      computing_.tile.block_q, row_len - std::int64_t{work_tile.q_tile} * computing_.tile.block_q));
  // Keys of tiles [first, end).
  const auto keys_of = [&](std::int64_t first, std::int64_t end) {
    return computing_.skips_dead_keys ? std::min(end * block_kv, kv_len) - first * block_kv
                                      : (end - first) * block_kv;
  };
  const bool is_part = work_tile.partial != kWholeRow;
  const bool knows_live_keys = computing_.skips_dead_keys && !is_part;
  const std::int64_t num_gathered = gathered_entries(plan_, work_tile);
  // Keys of index tiles [first, end).
  const auto gathered_keys = [&](std::int64_t first, std::int64_t end) {
    return std::min(end * block_kv, ceil_div(num_gathered, gather_step_) * gather_step_) -
           first * block_kv;
  };
  std::int64_t before = 0;  // tiles of segments so far, the work tile's or not
  PlanWork work;
  for (std::int64_t s = work_tile.first_segment;
       s < work_tile.first_segment + work_tile.num_segments; ++s) {
    const PlanSegment& segment = plan_.segments[static_cast<std::size_t>(s)];
    if (segment.kind == PlanSegmentKind::permutation) continue;
    std::int64_t first = segment.first_tile + std::int64_t{work_tile.step} * segment.step_first;
    std::int64_t end = segment.end_tile + std::int64_t{work_tile.step} * segment.step_end;
    if (is_part) {
      const std::int64_t origin = first - before;
      before += end - first;
      first = std::max(first, origin + work_tile.first_tile);
      end = std::min(end, origin + work_tile.first_tile + work_tile.num_tiles);
      if (first >= end) continue;
    }
    if (segment.kind == PlanSegmentKind::pattern) {
      add_pattern(plan_.patterns[static_cast<std::size_t>(segment.data_index)], first, end, rows,
                  kv_len, work);
      continue;
    }
    const std::int64_t tiles = end - first;
    StepWork& steps = work.of(segment.kind);
    steps.tiles += tiles;
    const auto data_index = static_cast<std::size_t>(segment.data_index);
    switch (segment.kind) {
      case PlanSegmentKind::full:
        steps.cells += rows * keys_of(first, end);
        break;
      case PlanSegmentKind::bitmap:
        steps.cells += computing_.skips_dead_keys ? tiles * bitmap_cells_[data_index]
                                                  : rows * keys_of(first, end);
        break;
      case PlanSegmentKind::rows:
        steps.cells += knows_live_keys ? panel_cells_[data_index] : rows * keys_of(first, end);
        break;
      case PlanSegmentKind::columns:
        // Several segments of a work tile share its live keys. They are counted with the first
        // segment.
        if (knows_live_keys) {
          steps.cells = rows * (work_tile.num_entries - num_gathered);
        } else {
          steps.cells += rows * keys_of(first, end);
        }
        break;
      case PlanSegmentKind::gather:
        steps.cells += rows * gathered_keys(first, end);
        break;
      case PlanSegmentKind::closed_form:
      case PlanSegmentKind::permutation:
      case PlanSegmentKind::pattern:
        break;
    }
  }
  return work;
}

void WorkCounter::add_pattern(const PlanPattern& pattern, std::int64_t first, std::int64_t end,
                              std::int64_t rows, std::int64_t kv_len, PlanWork& work) const {
  if (first >= end) return;
  const std::int64_t num_full = full_entries_.of(pattern, first, end);
  const std::int64_t tile_cells = rows * computing_.tile.block_kv;
  StepWork& full = work.of(PlanSegmentKind::full);
  StepWork& bitmap = work.of(PlanSegmentKind::bitmap);
  full.tiles += num_full;
  full.cells += num_full * tile_cells;
  bitmap.tiles += end - first - num_full;
  if (!computing_.skips_dead_keys) {
    bitmap.cells += (end - first - num_full) * tile_cells;
    return;
  }
  bitmap.cells += entry_cells_.of(pattern, first, end);
  // Keys that the last tile lacks.
  TileStep last{PlanSegmentKind::pattern, 0, static_cast<std::int32_t>(end - 1), 0};
  resolve_pattern({&pattern, plan_.pattern_entries.data()}, last);
  const std::int64_t missing =
      std::max<std::int64_t>((last.tile + std::int64_t{1}) * computing_.tile.block_kv - kv_len, 0);
  if (last.kind == PlanSegmentKind::full) full.cells -= rows * missing;
}

std::int64_t columns_read(const PlanWork& work, const WorkTile& work_tile,
                          std::int64_t tile_columns) {
  if (work_tile.partial != kWholeRow) return work.tiles() * tile_columns;
  return (work.of(PlanSegmentKind::full).tiles + work.of(PlanSegmentKind::bitmap).tiles +
          work.of(PlanSegmentKind::rows).tiles) *
             tile_columns +
         work_tile.num_entries;
}

ColumnDistance::ColumnDistance(const PlanHeader& header, double near_bytes, double far_bytes)
    : near_bytes_(near_bytes), far_bytes_(far_bytes) {
  const std::int64_t heads =
      std::min(heads_in_l2(header, PlanOptions().l2_bytes),
               std::max<std::int64_t>(1, header.shape.batch * header.shape.heads_kv));
  bytes_per_column_ = static_cast<double>(heads * column_bytes(header));
}

double ColumnDistance::of(std::int64_t num_columns) const {
  return logarithmic_share(bytes_per_column_ * static_cast<double>(num_columns), near_bytes_,
                           far_bytes_);
}

double logarithmic_share(double value, double low, double high) {
  if (high == 0 || value <= low) return 0;
  if (value >= high) return 1;
  return std::log(value / low) / std::log(high / low);
}

}  // namespace fdma
