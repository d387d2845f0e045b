// From tiles to bands, the inverse of row_bands.cpp.
//
// Every bitmap and row panel is read once. Its rows are divided into panel runs. In a panel run the
// same number of key intervals move linearly, and each interval touches an edge of the bitmap or
// panel in all rows or in none. The panel runs of a tile row's segments, laid side by side, give
// its bands: between two rows where a panel run changes, intervals that meet at a tile border join
// in all rows or in none.
//
// Segments of a run, and the gaps between them, move linearly. If the first two and the last but
// one tile row of a run are one band, so is everything between them. (The last row may be ragged.)
// Where blocks are not square, row_period(block) runs interleave, and that many tile rows have to
// agree.
//
// Example that fits: causal & documents, one band for each document; three or four tile rows are
// read for each run. Example that does not: block_causal(64) in blocks of 128, one run of 8192 rows
// with a step inside each. It is given up after kSpareRows of them; tiles are the better form
// there. Row panels without a pattern give one band for each of their rows, as many as they store.
#include "bands/from_segment.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <vector>

#include "fdma/formats/band_sequence.hpp"
#include "fdma/formats/segment_builder.hpp"

namespace fdma {
namespace {

constexpr std::int64_t kRowsPerRun = 4;    // tile rows read for each run
constexpr std::int64_t kSpareRows = 64;    // tile rows added to that, for short lists of runs
constexpr std::size_t kMaxIntervals = 12;  // of a query row
constexpr std::int32_t kMaxPlaces = 128;   // segments of a tile row
constexpr std::int64_t kBandsPerRow = 6;   // average for a tile row that was read; the number of
                                           // intervals of row panels is added
constexpr std::int64_t kMaxRepeats = 4;    // tiles of a bitmap that are read one by one

// Rows [r_begin, r_end) of a bitmap or panel. Bounds are functions of the row, relative to its
// first key.
struct PanelRun {
  std::int32_t r_begin;
  std::int32_t r_end;
  std::int32_t first_interval;
  std::int32_t num_intervals;
};

struct DataBlock {
  std::int64_t width = -1;  // keys; -1: not read yet
  std::int32_t first_panel_run = 0;
  std::int32_t end_panel_run = 0;
  bool is_row_wise = false;  // every row is all true or all false
};

class BandReader {
 public:
  explicit BandReader(const SegmentMask& mask)
      : mask_(mask),
        block_q_(mask.block.block_q),
        block_kv_(mask.block.block_kv),
        num_rows_(mask.num_tile_rows()),
        period_(row_period(mask.block)),
        rows_left_(kRowsPerRun * std::ssize(mask.runs) + kSpareRows),
        spare_bands_(kBandsPerRow * kSpareRows + std::ssize(mask.row_intervals)),
        bitmaps_(static_cast<std::size_t>(mask.num_bitmaps())),
        panels_(static_cast<std::size_t>(mask.num_row_panels())),
        runs_(static_cast<std::size_t>(period_)),
        bands_(mask.q_len, mask.kv_len) {}

  std::optional<RowBands> run() {
    if (!mask_.column_offsets.empty() || mask_.has_patterns()) return std::nullopt;
    for (std::int64_t row = 0; row < num_rows_;) {
      const std::int64_t periods = periods_from(row);
      if (period_ == 1 && run_at(row).num_segments == 0) {
        row += periods;
        continue;
      }
      const std::int64_t read = periods > 3 ? 2 * period_ : 1;
      for (std::int64_t r = row; r < row + read; ++r) {
        if (!add_row(r)) return std::nullopt;
      }
      const std::int64_t done = row + read, end = row + (periods - 1) * period_;
      if (read > 1 && goes_on(row, done, end)) {
        bands_.extend(end * block_q_);
        row = end;
      } else {
        row = done;
      }
    }
    return std::move(bands_.bands());
  }

 private:
  std::int64_t num_query_rows(std::int64_t row) const {
    return std::min(block_q_, mask_.q_len - row * block_q_);
  }

  // The run that holds a tile row. Rows are asked for in ascending order, except a few ahead.
  const TileRun& run_at(std::int64_t row) {
    std::size_t& i = runs_[static_cast<std::size_t>(row % period_)];
    while (!holds(mask_.runs[i], row)) ++i;
    return mask_.runs[i];
  }
  bool holds(const TileRun& run, std::int64_t row) const {
    const std::int64_t distance = row - run.first_row;
    return distance >= 0 && distance % period_ == 0 && distance / period_ < run.num_rows;
  }

  // The number of periods for which all runs at tile rows [row, row + period) go on.
  std::int64_t periods_from(std::int64_t row) {
    std::int64_t periods = INT64_MAX;
    for (std::int64_t r = row; r < std::min(row + period_, num_rows_); ++r) {
      const TileRun& run = run_at(r);
      periods = std::min(periods, run.num_rows - (r - run.first_row) / period_);
    }
    return row + period_ <= num_rows_ ? periods : 1;
  }

  // True if tile rows [row, done), which were read, are one band that holds up to `end`.
  bool goes_on(std::int64_t row, std::int64_t done, std::int64_t end) {
    if (!bands_.is_one_band(row * block_q_, done * block_q_)) return false;
    const std::span<const AffineInterval> expected = bands_.last_intervals();
    for (std::int64_t r = std::max(done, end - period_); r < end; ++r) {
      BandSequence there(mask_.q_len, mask_.kv_len);
      if (!read_row(r, there) || there.num_bands() != 1 ||
          !there.is_one_band(r * block_q_, (r + 1) * block_q_) ||
          !std::equal(expected.begin(), expected.end(), there.last_intervals().begin(),
                      there.last_intervals().end())) {
        return false;
      }
    }
    return true;
  }

  bool add_row(std::int64_t row) {
    if (--rows_left_ < 0 || !read_row(row, bands_)) return false;
    ++rows_read_;
    return std::ssize(bands_.bands().bands) <= kBandsPerRow * rows_read_ + spare_bands_;
  }

  // A segment, or a tile of one, in the current tile row.
  struct Place {
    std::int64_t k_begin;
    std::int64_t k_end;
    bool is_full;
    std::int32_t panel_run;  // the current one of its bitmap or panel
    std::int32_t end_panel_run;
  };

  // Appends the bands of a tile row to `out`. False: there are too many intervals.
  bool read_row(std::int64_t row, BandSequence& out) {
    if (!place_segments(row)) return false;
    const std::int64_t q_first = row * block_q_, end = num_query_rows(row);
    for (std::int64_t r = 0; r < end;) {
      std::int64_t next = end;
      intervals_.clear();
      for (Place& place : places_) {
        if (place.is_full) {
          if (!append({place.k_begin, place.k_end, 0, 0})) return false;
          continue;
        }
        while (place.panel_run < place.end_panel_run && panel_run_at(place).r_end <= r)
          ++place.panel_run;
        if (place.panel_run == place.end_panel_run) continue;
        const PanelRun& rows = panel_run_at(place);
        if (rows.r_begin > r) {
          next = std::min<std::int64_t>(next, rows.r_begin);
          continue;
        }
        next = std::min<std::int64_t>(next, rows.r_end);
        const auto first = static_cast<std::size_t>(rows.first_interval);
        for (std::size_t i = first; i < first + static_cast<std::size_t>(rows.num_intervals); ++i) {
          AffineInterval keys = stored_[i];
          keys.lo_base += place.k_begin - keys.lo_slope * q_first;
          keys.hi_base += place.k_begin - keys.hi_slope * q_first;
          if (!append(keys)) return false;
        }
      }
      out.add(q_first + r, q_first + next, std::span(intervals_.data(), intervals_.size()));
      r = next;
    }
    return true;
  }

  const PanelRun& panel_run_at(const Place& place) const {
    return panel_runs_[static_cast<std::size_t>(place.panel_run)];
  }

  // Bounds that meet at a tile border do not move, in all current rows.
  bool append(const AffineInterval& keys) {
    if (!intervals_.empty() && intervals_.back().hi_base == keys.lo_base &&
        intervals_.back().hi_slope == keys.lo_slope) {
      intervals_.back().hi_base = keys.hi_base;
      intervals_.back().hi_slope = keys.hi_slope;
      return true;
    }
    intervals_.push_back(keys);
    return intervals_.size() <= kMaxIntervals;
  }

  // Sets places_ to the segments of a tile row.
  bool place_segments(std::int64_t row) {
    places_.clear();
    const TileRun& run = run_holding(row);
    if (run.num_segments > kMaxPlaces) return false;
    const std::int64_t i = (row - run.first_row) / period_;
    for (std::int64_t s = run.first_segment; s < run.first_segment + run.num_segments; ++s) {
      const TileSegment& segment = mask_.segments[static_cast<std::size_t>(s)];
      const std::int64_t first = segment.first_tile + i * segment.step_first;
      const std::int64_t end = segment.end_tile + i * segment.step_end;
      const std::int64_t k_begin = first * block_kv_;
      const std::int64_t k_end = std::min(end * block_kv_, mask_.kv_len);
      if (segment.kind == SegmentKind::full) {
        places_.push_back({k_begin, k_end, true, 0, 0});
        continue;
      }
      const bool is_panel = segment.kind == SegmentKind::rows;
      const std::int64_t repeats = is_panel ? 1 : end - first;
      const DataBlock* data_index = is_panel
                                        ? read_panel(segment.data_index, (end - first) * block_kv_)
                                        : read_bitmap(segment.data_index);
      if (data_index == nullptr) return false;
      if (repeats > 1 && data_index->is_row_wise) {
        if (!place_row_wise(*data_index, k_begin, k_end)) return false;
        continue;
      }
      if (repeats > kMaxRepeats) return false;
      for (std::int64_t t = 0; t < repeats; ++t) {
        places_.push_back({k_begin + t * block_kv_, k_end, false, data_index->first_panel_run,
                           data_index->end_panel_run});
      }
    }
    return true;
  }

  // Places a bitmap over many tiles whose rows are all true or all false. Its panel runs become as
  // wide as the tiles.
  bool place_row_wise(const DataBlock& data_index, std::int64_t k_begin, std::int64_t k_end) {
    const auto first_panel_run = static_cast<std::int32_t>(panel_runs_.size());
    const auto interval = static_cast<std::int32_t>(stored_.size());
    stored_.push_back({0, k_end - k_begin, 0, 0});
    for (std::int32_t p = data_index.first_panel_run; p < data_index.end_panel_run; ++p) {
      PanelRun rows = panel_runs_[static_cast<std::size_t>(p)];
      rows.first_interval = interval;
      panel_runs_.push_back(rows);
    }
    places_.push_back(
        {k_begin, k_end, false, first_panel_run, static_cast<std::int32_t>(panel_runs_.size())});
    return true;
  }

  // The run of any row near the current ones, without moving on.
  const TileRun& run_holding(std::int64_t row) const {
    std::size_t i = runs_[static_cast<std::size_t>(row % period_)];
    while (!holds(mask_.runs[i], row)) ++i;
    return mask_.runs[i];
  }

  // In the last, ragged tile column no key reaches the bitmap's edge and nothing adjoins it.
  const DataBlock* read_bitmap(std::int32_t index) {
    DataBlock& data_index = bitmaps_[static_cast<std::size_t>(index)];
    if (data_index.width >= 0) return &data_index;
    start(data_index, block_kv_);
    const std::uint64_t* words = mask_.bitmap(index).data();
    for (std::int64_t r = 0; r < block_q_; ++r) {
      num_keys_ = 0;
      std::int64_t open = -1;
      for (std::int64_t c = 0; c < block_kv_; c += 64) {
        const int count = static_cast<int>(std::min<std::int64_t>(64, block_kv_ - c));
        const std::uint64_t bits = read_bits(words, r * block_kv_ + c, count);
        const std::uint64_t all = ~std::uint64_t{0} >> (64 - count);
        if (bits == (open >= 0 ? all : 0)) continue;
        for (int i = 0; i < count;) {  // change by change
          const std::uint64_t rest = (open >= 0 ? ~bits & all : bits) >> i;
          if (rest == 0) break;
          i += std::countr_zero(rest);
          if (open < 0) {
            open = c + i;
          } else {
            if (!add_keys(open, c + i)) return nullptr;
            open = -1;
          }
        }
      }
      if (open >= 0 && !add_keys(open, block_kv_)) return nullptr;
      add_data_row(static_cast<std::int32_t>(r), data_index);
    }
    finish(data_index);
    return &data_index;
  }

  const DataBlock* read_panel(std::int32_t index, std::int64_t width) {
    DataBlock& data_index = panels_[static_cast<std::size_t>(index)];
    if (data_index.width == width) return &data_index;
    start(data_index, width);
    for (std::int64_t r = 0; r < block_q_; ++r) {
      const auto at = static_cast<std::size_t>(index * block_q_ + r);
      num_keys_ = 0;
      for (std::int64_t i = mask_.row_offsets[at]; i < mask_.row_offsets[at + 1]; ++i) {
        const Interval& keys = mask_.row_intervals[static_cast<std::size_t>(i)];
        if (!add_keys(keys.begin, keys.end)) return nullptr;
      }
      add_data_row(static_cast<std::int32_t>(r), data_index);
    }
    finish(data_index);
    return &data_index;
  }

  void start(DataBlock& data_index, std::int64_t width) {
    data_index.width = width;
    data_index.first_panel_run = static_cast<std::int32_t>(panel_runs_.size());
    data_index.is_row_wise = true;
  }
  void finish(DataBlock& data_index) {
    data_index.end_panel_run = static_cast<std::int32_t>(panel_runs_.size());
  }

  bool add_keys(std::int64_t begin, std::int64_t end) {
    if (num_keys_ == kMaxIntervals) return false;
    keys_[num_keys_++] = {static_cast<std::int32_t>(begin), static_cast<std::int32_t>(end)};
    return true;
  }

  // Joins keys_, as row r, to the last panel run of the bitmap or panel, or begins one.
  void add_data_row(std::int32_t r, DataBlock& data_index) {
    if (num_keys_ == 0) return;
    const auto width = static_cast<std::int32_t>(data_index.width);
    data_index.is_row_wise =
        data_index.is_row_wise && num_keys_ == 1 && keys_[0].begin == 0 && keys_[0].end == width;
    if (static_cast<std::int32_t>(panel_runs_.size()) > data_index.first_panel_run) {
      PanelRun& last = panel_runs_.back();
      if (last.r_end == r && static_cast<std::size_t>(last.num_intervals) == num_keys_ &&
          continues(last, r, width)) {
        ++last.r_end;
        return;
      }
    }
    panel_runs_.push_back({r, r + 1, static_cast<std::int32_t>(stored_.size()),
                           static_cast<std::int32_t>(num_keys_)});
    for (std::size_t i = 0; i < num_keys_; ++i) {
      stored_.push_back({keys_[i].begin, keys_[i].end, 0, 0});
    }
  }

  // True if keys_ continues the panel run. A panel run of one row takes its slopes from keys_.
  bool continues(const PanelRun& last, std::int32_t r, std::int32_t width) {
    AffineInterval* mine = stored_.data() + last.first_interval;
    if (last.r_end - last.r_begin > 1) {
      for (std::size_t i = 0; i < num_keys_; ++i) {
        if (lo_at(mine[i], r) != keys_[i].begin || hi_at(mine[i], r) != keys_[i].end) return false;
      }
      // A bound that moves must not reach the edge.
      return (keys_[0].begin != 0 || mine[0].lo_slope == 0) &&
             (keys_[num_keys_ - 1].end != width || mine[num_keys_ - 1].hi_slope == 0);
    }
    const auto is_near = [](std::int64_t a, std::int64_t b) {
      return std::abs(a - b) <= kMaxBandSlope;
    };
    for (std::size_t i = 0; i < num_keys_; ++i) {
      const std::int64_t lo = mine[i].lo_base, hi = mine[i].hi_base;
      if (!is_near(lo, keys_[i].begin) || !is_near(hi, keys_[i].end)) return false;
      if ((lo == 0) != (keys_[i].begin == 0) || (hi == width) != (keys_[i].end == width)) {
        return false;
      }
    }
    for (std::size_t i = 0; i < num_keys_; ++i) {
      AffineInterval& interval = mine[i];
      interval.lo_slope = keys_[i].begin - static_cast<std::int32_t>(interval.lo_base);
      interval.hi_slope = keys_[i].end - static_cast<std::int32_t>(interval.hi_base);
      interval.lo_base -= std::int64_t{interval.lo_slope} * (r - 1);
      interval.hi_base -= std::int64_t{interval.hi_slope} * (r - 1);
    }
    return true;
  }

  const SegmentMask& mask_;
  const std::int64_t block_q_, block_kv_, num_rows_, period_;
  std::int64_t rows_left_, rows_read_ = 0;
  const std::int64_t spare_bands_;
  std::vector<DataBlock> bitmaps_, panels_;
  std::vector<PanelRun> panel_runs_;    // of all bitmaps and panels
  std::vector<AffineInterval> stored_;  // of all panel runs
  std::vector<std::size_t> runs_;       // the current ones, by residue of the tile row
  std::vector<Place> places_;           // of the current tile row
  std::vector<AffineInterval> intervals_;
  std::array<Interval, kMaxIntervals> keys_;  // of the current row of a bitmap or panel
  std::size_t num_keys_ = 0;
  BandSequence bands_;
};

}  // namespace

std::optional<RowBands> bands_from_segment(const SegmentMask& mask) {
  return BandReader(mask).run();
}

}  // namespace fdma
