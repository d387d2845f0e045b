// From bands of query rows to tiles, in closed form where tile rows move in step.
//
// Inside a band an interval [lo, hi) has lo and hi linear in q. Over the rows of one tile row it
// touches the tiles [A, B) and covers the tiles [F, G) wholly:
//   A = floor(min lo / block_kv)    F = ceil(max lo / block_kv)
//   G = floor(min hi / block_kv)    B = ceil(max hi / block_kv)
// [A, F) and [G, B) are partial, [F, G) is full. After row_period(block) tile rows each of these
// moves by exactly slope * lcm(block_q, block_kv) / block_kv tiles, and the cells of its partial
// tiles repeat. The pattern of segments stays the same while the full tiles of every interval do
// not vanish, and while no two intervals come to share or touch a tile or those that touch move in
// step. That number of rows takes one division per interval; the rows are appended at once.
//
// Example that fits: causal, one band, one interval [0, q + 1): the first tile row by itself
// (F = 0, G = 0), then all others in one run. Example that does not: a tile row that holds a
// document border. Its bands are cut to the tile row. A tile is full iff it is full in all of them,
// and partial iff it is touched in any and not full. It costs O(block_q).
//
// Longer than most files: the arithmetic of patterns and the cells of their partial tiles share the
// state of the current tile row.
//
// Bands with slopes above kMaxSlope could skip tiles from one row to the next; they are taken row
// by row.
#include "fdma/formats/row_bands.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <limits>
#include <numeric>

#include "bands/bound_sweep.hpp"
#include "fdma/formats/segment_builder.hpp"

namespace fdma {
namespace {

constexpr std::int32_t kMaxSlope = 16;  // the smallest block side

// Rows [r_begin, r_end) of one tile row, counted from its first row. Bounds are functions of that
// count.
struct SubBand {
  std::int64_t r_begin;
  std::int64_t r_end;
  std::vector<AffineInterval>::const_iterator first;
  std::vector<AffineInterval>::const_iterator last;
  std::int64_t q_begin;  // query row of count 0

  std::int64_t lo(const AffineInterval& i, std::int64_t r) const {
    return i.lo_base + i.lo_slope * (q_begin + r);
  }
  std::int64_t hi(const AffineInterval& i, std::int64_t r) const {
    return i.hi_base + i.hi_slope * (q_begin + r);
  }
  std::int64_t min_lo(const AffineInterval& i) const {
    return lo(i, i.lo_slope >= 0 ? r_begin : r_end - 1);
  }
  std::int64_t max_lo(const AffineInterval& i) const {
    return lo(i, i.lo_slope >= 0 ? r_end - 1 : r_begin);
  }
  std::int64_t min_hi(const AffineInterval& i) const {
    return hi(i, i.hi_slope >= 0 ? r_begin : r_end - 1);
  }
  std::int64_t max_hi(const AffineInterval& i) const {
    return hi(i, i.hi_slope >= 0 ? r_end - 1 : r_begin);
  }
};

// Rows r of [begin, end) with base + slope * r < limit, as a range.
std::pair<std::int64_t, std::int64_t> rows_below(std::int64_t base, std::int64_t slope,
                                                 std::int64_t limit, std::int64_t begin,
                                                 std::int64_t end) {
  if (slope == 0) return base < limit ? std::pair{begin, end} : std::pair{begin, begin};
  if (slope > 0) return {begin, std::clamp(ceil_quotient(limit - base, slope), begin, end)};
  return {std::clamp(floor_quotient(base - limit, -slope) + 1, begin, end), end};
}

struct Range {
  std::int64_t first;
  std::int64_t end;
};

// Consecutive tiles of one kind, and the number of tiles by which they move in a period.
struct MovingRun {
  std::int64_t first;
  std::int64_t end;
  std::int64_t step_first;
  std::int64_t step_end;
  bool is_full;
};

class BandLowering {
 public:
  BandLowering(const RowBands& bands, BlockShape block)
      : bands_(bands),
        block_(block),
        builder_(bands.q_len, bands.kv_len, block),
        period_(row_period(block)),
        num_rows_(ceil_div(bands.q_len, block.block_q)),
        num_cols_(ceil_div(bands.kv_len, block.block_kv)),
        words_per_bitmap_(std::int64_t{block.block_q} * block.block_kv / 64) {}

  SegmentMask run() {
    for (std::int64_t row = 0; row < num_rows_;) {
      const std::int64_t rows = add_rows_inside_one_band(row);
      if (rows > 0) {
        row += rows;
      } else {
        add_mixed_row(row++);
      }
      builder_.skip_to(static_cast<std::int32_t>(row));
    }
    return builder_.finish();
  }

 private:
  std::int64_t num_query_rows(std::int64_t row) const {
    return std::min<std::int64_t>(block_.block_q, bands_.q_len - row * block_.block_q);
  }

  SubBand sub_band(const RowBand& band, std::int64_t row) const {
    const std::int64_t q_begin = row * block_.block_q;
    const auto first = bands_.intervals.begin() + band.first_interval;
    return {std::max<std::int64_t>(band.q_begin - q_begin, 0),
            std::min<std::int64_t>(band.q_end - q_begin, num_query_rows(row)), first,
            first + band.num_intervals, q_begin};
  }

  // Appends tile rows from `row` on that lie inside one band or in no band. Returns their number, 0
  // if this row does not.
  std::int64_t add_rows_inside_one_band(std::int64_t row) {
    const std::int64_t q_begin = row * block_.block_q;
    const std::int64_t q_end = q_begin + num_query_rows(row);
    while (band_ < bands_.bands.size() && bands_.bands[band_].q_end <= q_begin) ++band_;
    if (band_ == bands_.bands.size() || bands_.bands[band_].q_begin >= q_end) {
      const std::int64_t q_next =
          band_ == bands_.bands.size() ? bands_.q_len : bands_.bands[band_].q_begin;
      const std::int64_t rows =
          q_next == bands_.q_len ? num_rows_ - row : q_next / block_.block_q - row;
      for (std::int64_t r = 0; r < std::min<std::int64_t>(rows, period_); ++r) {
        builder_.add_rows(static_cast<std::int32_t>(row + r),
                          static_cast<std::int32_t>(ceil_div(rows - r, period_)), {});
      }
      return rows;
    }
    const RowBand& band = bands_.bands[band_];
    if (band.q_begin > q_begin || band.q_end < q_end) return 0;
    const SubBand first_row = sub_band(band, row);
    for (auto i = first_row.first; i != first_row.last; ++i) {
      if (std::abs(i->lo_slope) > kMaxSlope || std::abs(i->hi_slope) > kMaxSlope) return 0;
    }
    const std::int64_t end_row =
        band.q_end == bands_.q_len ? num_rows_ : band.q_end / block_.block_q;
    const bool is_ragged = num_query_rows(end_row - 1) < block_.block_q;
    const std::int64_t whole_end = end_row - (is_ragged ? 1 : 0);
    if (row == whole_end) {  // the ragged last row by itself
      make_moving_runs(first_row);
      add_tile_rows(row, 1, {first_row});
      return 1;
    }
    // Each residue modulo the period is by itself; all are appended for the same number of periods.
    const std::int64_t residues = std::min<std::int64_t>(period_, whole_end - row);
    std::int64_t periods = std::numeric_limits<std::int64_t>::max();
    for (std::int64_t r = 0; r < residues; ++r) {
      periods = std::min(periods, make_moving_runs(sub_band(band, row + r)));
    }
    std::int64_t rows = 0;
    for (std::int64_t r = 0; r < residues; ++r) {
      const SubBand residue = sub_band(band, row + r);
      if (residues > 1) make_moving_runs(residue);
      const std::int64_t count = std::min(periods, ceil_div(whole_end - row - r, period_));
      add_tile_rows(row + r, count, {residue});
      rows += count;
    }
    return rows;
  }

  // Sets moving_runs_ to the runs of a tile row inside one band. Returns the number of periods
  // for which the pattern holds.
  std::int64_t make_moving_runs(const SubBand& band) {
    moving_runs_.clear();
    const std::int64_t block_kv = block_.block_kv;
    const std::int64_t tiles_per_slope =
        std::lcm<std::int64_t>(block_.block_q, block_kv) / block_kv;
    std::int64_t periods = std::numeric_limits<std::int64_t>::max();
    const auto bound = [&](std::int64_t room, std::int64_t step) {  // room + n * step >= 1
      if (step < 0) periods = std::min(periods, (room - 1) / -step + 1);
    };
    std::int64_t end_before = 0, step_before = 0;
    for (auto i = band.first; i != band.last; ++i) {
      const std::int64_t step_lo = i->lo_slope * tiles_per_slope;
      const std::int64_t step_hi = i->hi_slope * tiles_per_slope;
      const std::int64_t touched_first = band.min_lo(*i) / block_kv;
      const std::int64_t full_first = ceil_div(band.max_lo(*i), block_kv);
      const std::int64_t min_hi = band.min_hi(*i);
      const std::int64_t full_end = min_hi == bands_.kv_len ? num_cols_ : min_hi / block_kv;
      const std::int64_t touched_end = ceil_div(band.max_hi(*i), block_kv);
      if (i != band.first) {
        const std::int64_t gap = touched_first - end_before;
        const std::int64_t step = step_lo - step_before;
        if (gap >= 1) {
          bound(gap, step);
        } else if (step != 0) {
          periods = 1;
        }
      }
      if (full_first < full_end) {
        bound(full_end - full_first, step_hi - step_lo);
        add_moving_run({touched_first, full_first, step_lo, step_lo, false});
        add_moving_run({full_first, full_end, step_lo, step_hi, true});
        add_moving_run({full_end, touched_end, step_hi, step_hi, false});
      } else {
        if (step_lo != step_hi) periods = 1;
        add_moving_run({touched_first, touched_end, step_lo, step_hi, false});
      }
      end_before = touched_end;
      step_before = step_hi;
    }
    return periods;
  }

  // Appends a run of tiles. It is merged with the one before where both are full and adjacent,
  // or partial and adjacent or overlapping.
  void add_moving_run(const MovingRun& run) {
    if (run.first >= run.end) return;
    if (!moving_runs_.empty()) {
      MovingRun& last = moving_runs_.back();
      if (last.is_full == run.is_full && run.first <= last.end) {
        if (run.end > last.end) {
          last.end = run.end;
          last.step_end = run.step_end;
        }
        return;
      }
      // The partial edge of an interval may share its tile with the partial edge of the next one
      // only; a full tile belongs to one interval.
    }
    moving_runs_.push_back(run);
  }

  // Stores the partial runs and appends the row `count` times.
  void add_tile_rows(std::int64_t row, std::int64_t count, const std::vector<SubBand>& bands) {
    segments_.clear();
    for (const MovingRun& run : moving_runs_) {
      const auto first = static_cast<std::int32_t>(run.first);
      const auto end = static_cast<std::int32_t>(run.end);
      const auto step_first = static_cast<std::int32_t>(run.step_first);
      const auto step_end = static_cast<std::int32_t>(run.step_end);
      if (run.is_full) {
        segments_.push_back({first, end, step_first, step_end, SegmentKind::full, 0});
      } else {
        store_partial(first, end, step_first, bands);
      }
    }
    builder_.add_rows(static_cast<std::int32_t>(row), static_cast<std::int32_t>(count), segments_);
  }

  // Appends a tile row that holds borders between bands.
  void add_mixed_row(std::int64_t row) {
    const std::int64_t q_begin = row * block_.block_q;
    const std::int64_t q_end = q_begin + num_query_rows(row);
    mixed_.clear();
    std::int64_t covered = q_begin;
    bool has_gap = false;
    for (std::size_t b = band_; b < bands_.bands.size() && bands_.bands[b].q_begin < q_end; ++b) {
      const RowBand& band = bands_.bands[b];
      if (band.q_begin > covered) has_gap = true;
      covered = band.q_end;
      SubBand whole = sub_band(band, row);
      bool is_steep = false;
      for (auto i = whole.first; i != whole.last; ++i) {
        is_steep =
            is_steep || std::abs(i->lo_slope) > kMaxSlope || std::abs(i->hi_slope) > kMaxSlope;
      }
      if (!is_steep) {
        mixed_.push_back(whole);
        continue;
      }
      for (std::int64_t r = whole.r_begin; r < whole.r_end; ++r) {
        SubBand one = whole;
        one.r_begin = r;
        one.r_end = r + 1;
        mixed_.push_back(one);
      }
    }
    if (covered < q_end) has_gap = true;

    touched_.clear();
    full_.assign(1, Range{0, has_gap ? 0 : num_cols_});
    const std::int64_t block_kv = block_.block_kv;
    for (const SubBand& band : mixed_) {
      band_full_.clear();
      for (auto i = band.first; i != band.last; ++i) {
        touched_.push_back({band.min_lo(*i) / block_kv, ceil_div(band.max_hi(*i), block_kv)});
        const std::int64_t min_hi = band.min_hi(*i);
        const Range full{ceil_div(band.max_lo(*i), block_kv),
                         min_hi == bands_.kv_len ? num_cols_ : min_hi / block_kv};
        if (full.first < full.end) band_full_.push_back(full);
      }
      intersect_full();
    }
    std::sort(touched_.begin(), touched_.end(),
              [](const Range& a, const Range& b) { return a.first < b.first; });
    moving_runs_.clear();
    auto full = full_.begin();
    std::int64_t done = 0;  // tiles before `done` are decided
    const auto add_partial = [&](std::int64_t first, std::int64_t end) {
      if (first < end) add_moving_run({first, end, 0, 0, false});
    };
    for (std::size_t i = 0; i < touched_.size();) {
      Range range{std::max(touched_[i].first, done), touched_[i].end};
      while (++i < touched_.size() && touched_[i].first <= range.end) {
        range.end = std::max(range.end, touched_[i].end);
      }
      std::int64_t at = range.first;
      for (; full != full_.end() && full->end <= range.end; ++full) {
        add_partial(at, full->first);
        add_moving_run({full->first, full->end, 0, 0, true});
        at = full->end;
      }
      add_partial(at, range.end);
      done = range.end;
    }
    add_tile_rows(row, 1, mixed_);
  }

  // Sets full_ to the intersection of full_ and band_full_; both ascend.
  void intersect_full() {
    next_full_.clear();
    auto b = band_full_.begin();
    for (const Range& a : full_) {
      while (b != band_full_.end() && b->end <= a.first) ++b;
      for (auto c = b; c != band_full_.end() && c->first < a.end; ++c) {
        const Range both{std::max(a.first, c->first), std::min(a.end, c->end)};
        if (both.first < both.end) next_full_.push_back(both);
      }
    }
    full_.swap(next_full_);
  }

  // The partial tiles [first, end) of the current row, for the builder.
  class BandRun final : public PartialRun {
   public:
    BandRun(BandLowering& lowering, std::int64_t first, std::int64_t end,
            const std::vector<SubBand>& bands)
        : lowering_(lowering),
          bands_(bands),
          first_(first),
          k_begin_(first * lowering.block_.block_kv),
          k_end_(end * lowering.block_.block_kv),
          is_still_(bands.size() > 1 && stand_still()) {
      written_.clear();
      if (is_still_) begin_sweep();
    }

    std::int64_t num_intervals(std::int64_t) override {
      std::int64_t count = 0;
      for (const SubBand& band : bands_) {
        for (auto i = band.first; i != band.last; ++i) {
          const auto [begin, end] = live_rows(band, *i, k_begin_, k_end_);
          count += std::max<std::int64_t>(end - begin, 0);
        }
      }
      return count;
    }

    // A tile without a bound repeats up to the next tile with one.
    std::int64_t run_end(std::int64_t tile) override {
      const std::int64_t block_kv = lowering_.block_.block_kv;
      if (is_still_) return lowering_.sweep_.run_end(tile, (k_end_ - k_begin_) / block_kv);
      const std::int64_t begin = k_begin_ + tile * block_kv, end = begin + block_kv;
      std::int64_t next = k_end_;
      const auto is_in_tile = [&](std::int64_t lowest, std::int64_t highest) {
        if (lowest >= end) next = std::min(next, lowest);
        return highest > begin && lowest < end;
      };
      for (const SubBand& band : bands_) {
        for (auto i = band.first; i != band.last; ++i) {
          if (is_in_tile(band.min_lo(*i), band.max_lo(*i)) ||
              is_in_tile(band.min_hi(*i), band.max_hi(*i))) {
            return tile + 1;
          }
        }
      }
      return (next - k_begin_) / block_kv;
    }

    std::uint64_t bitmap_hash(std::int64_t tile) override {
      CachedBitmap* cached = lowering_.find_cached(first_ + tile, bands_);
      if (cached != nullptr && cached->is_filled) return cached->hash;
      const std::uint64_t hash = hash_words(write_new(tile), lowering_.words_per_bitmap_);
      if (cached != nullptr) {
        cached->hash = hash;
        cached->is_filled = true;
      }
      return hash;
    }

    std::int32_t intern(std::int64_t tile, std::uint64_t hash) override {
      CachedBitmap* cached = lowering_.find_cached(first_ + tile, bands_);
      if (cached != nullptr && cached->index >= 0) return cached->index;
      while (next_written_ < written_.size() && written_[next_written_] < tile) ++next_written_;
      const bool is_written = next_written_ < written_.size() && written_[next_written_] == tile;
      const std::uint64_t* words = is_written ? words_of(next_written_) : write_new(tile);
      const std::int32_t index = lowering_.builder_.intern_bitmap(words, hash);
      if (cached != nullptr) cached->index = index;
      return index;
    }

    void write_panel(std::vector<std::int64_t>& offsets,
                     std::vector<Interval>& intervals) override {
      intervals.resize(static_cast<std::size_t>(num_intervals(0)));
      std::int64_t row = 0, used = 0;
      const auto fill_to = [&](std::int64_t end) {  // rows without cells
        for (; row < end; ++row) offsets[static_cast<std::size_t>(row) + 1] = used;
      };
      const auto add = [&](std::int64_t lo, std::int64_t hi) {
        intervals[static_cast<std::size_t>(used++)] = {
            static_cast<std::int32_t>(std::max(lo, k_begin_) - k_begin_),
            static_cast<std::int32_t>(std::min(hi, k_end_) - k_begin_)};
      };
      for (const SubBand& band : bands_) {
        if (band.last - band.first == 1) {
          const AffineInterval& i = *band.first;
          const auto [begin, end] = live_rows(band, i, k_begin_, k_end_);
          fill_to(begin);
          std::int64_t lo = band.lo(i, begin), hi = band.hi(i, begin);
          for (; row < end; ++row, lo += i.lo_slope, hi += i.hi_slope) {
            add(lo, hi);
            offsets[static_cast<std::size_t>(row) + 1] = used;
          }
          continue;
        }
        fill_to(band.r_begin);
        for (; row < band.r_end; ++row) {
          for (auto i = band.first; i != band.last; ++i) {
            const std::int64_t lo = band.lo(*i, row), hi = band.hi(*i, row);
            if (lo < k_end_ && hi > k_begin_) add(lo, hi);
          }
          offsets[static_cast<std::size_t>(row) + 1] = used;
        }
      }
      fill_to(std::ssize(offsets) - 1);
    }

   private:
    bool stand_still() const {
      return std::all_of(bands_.begin(), bands_.end(), [](const SubBand& band) {
        return std::all_of(band.first, band.last, [](const AffineInterval& i) {
          return i.lo_slope == 0 && i.hi_slope == 0;
        });
      });
    }

    void begin_sweep() {
      BoundSweep& sweep = lowering_.sweep_;
      sweep.restart(lowering_.block_, k_begin_);
      for (const SubBand& band : bands_) {
        for (auto i = band.first; i != band.last; ++i) {
          if (i->lo_base >= k_end_ || i->hi_base <= k_begin_) continue;
          sweep.add(i->lo_base, band.r_begin, band.r_end);
          sweep.add(i->hi_base, band.r_begin, band.r_end);
        }
      }
      sweep.sort();
    }

    const std::uint64_t* words_of(std::size_t n) const {
      return lowering_.bitmaps_.data() + n * static_cast<std::size_t>(lowering_.words_per_bitmap_);
    }

    // Writes the cells of a tile after those already written for this partial segment.
    const std::uint64_t* write_new(std::int64_t tile) {
      const auto size = static_cast<std::size_t>(lowering_.words_per_bitmap_);
      written_.push_back(tile);
      if (lowering_.bitmaps_.size() < written_.size() * size) {
        lowering_.bitmaps_.resize(written_.size() * size);
      }
      std::uint64_t* words = lowering_.bitmaps_.data() + (written_.size() - 1) * size;
      if (is_still_) {
        lowering_.sweep_.write(tile, words);
      } else {
        lowering_.write_bitmap(first_ + tile, bands_, words);
      }
      return words;
    }

    BandLowering& lowering_;
    const std::vector<SubBand>& bands_;
    const std::int64_t first_, k_begin_, k_end_;
    const bool is_still_;                                      // sweep_ writes the tiles
    std::vector<std::int64_t>& written_ = lowering_.written_;  // tiles whose cells are in bitmaps_
    std::size_t next_written_ = 0;
  };

  void store_partial(std::int32_t first, std::int32_t end, std::int32_t step,
                     const std::vector<SubBand>& bands) {
    BandRun tile_run(*this, first, end, bands);
    builder_.add_partial_run(first, end, step, tile_run, segments_);
  }

  // Rows of the band in which the interval meets keys [k_begin, k_end).
  static std::pair<std::int64_t, std::int64_t> live_rows(const SubBand& band,
                                                         const AffineInterval& i,
                                                         std::int64_t k_begin, std::int64_t k_end) {
    // lo < k_end and hi > k_begin, that is -hi < -k_begin
    const auto a = rows_below(band.lo(i, 0), i.lo_slope, k_end, band.r_begin, band.r_end);
    const auto b = rows_below(-band.hi(i, 0), -i.hi_slope, -k_begin, band.r_begin, band.r_end);
    return {std::max(a.first, b.first), std::min(a.second, b.second)};
  }

  // The bitmaps that most bands make: of one interval over all rows of the tile, by the interval's
  // bounds relative to the tile.
  struct CachedBitmap {
    std::array<std::int64_t, 4> key{-1, -1, -1, -1};
    std::uint64_t hash = 0;
    std::int32_t index = -1;
    bool is_filled = false;
  };

  // The entry for a tile, empty if the tile is new. Null if the tile is not of that kind.
  CachedBitmap* find_cached(std::int64_t tile, const std::vector<SubBand>& bands) {
    if (bands.size() != 1 || bands[0].r_begin != 0 || bands[0].r_end != block_.block_q) {
      return nullptr;
    }
    const SubBand& band = bands[0];
    const std::int64_t k_begin = tile * block_.block_kv, k_end = k_begin + block_.block_kv;
    std::array<std::int64_t, 4> key{};
    int num_live = 0;
    for (auto i = band.first; i != band.last && num_live < 2; ++i) {
      if (band.min_lo(*i) >= k_end || band.max_hi(*i) <= k_begin) continue;
      ++num_live;
      const bool clips_lo = band.max_lo(*i) > k_begin, clips_hi = band.min_hi(*i) < k_end;
      key = {clips_lo ? band.lo(*i, 0) - k_begin : 0, clips_lo ? i->lo_slope : 0,
             clips_hi ? band.hi(*i, 0) - k_begin : block_.block_kv, clips_hi ? i->hi_slope : 0};
    }
    if (num_live != 1) return nullptr;
    for (CachedBitmap& cached : cached_bitmaps_) {
      if (cached.is_filled && cached.key == key) return &cached;
    }
    CachedBitmap& oldest = cached_bitmaps_[next_cached_];
    next_cached_ = (next_cached_ + 1) % cached_bitmaps_.size();
    oldest = CachedBitmap{};
    oldest.key = key;
    return &oldest;
  }

  // Writes the cells of a tile.
  void write_bitmap(std::int64_t tile, const std::vector<SubBand>& bands, std::uint64_t* words) {
    const std::int64_t block_kv = block_.block_kv;
    const std::int64_t k_begin = tile * block_kv;
    std::fill_n(words, words_per_bitmap_, 0);
    for (const SubBand& band : bands) {
      for (auto i = band.first; i != band.last; ++i) {
        const auto [begin, end] = live_rows(band, *i, k_begin, k_begin + block_kv);
        if (begin >= end) continue;
        std::int64_t lo = band.lo(*i, begin) - k_begin, hi = band.hi(*i, begin) - k_begin;
        if (block_kv == 128) {  // two words a row; a bound that does not move is masked once
          const std::int64_t lo_step = i->lo_slope, hi_step = i->hi_slope;
          std::uint64_t lo0 = ones_below(lo), lo1 = ones_below(lo - 64);
          std::uint64_t hi0 = ones_below(hi), hi1 = ones_below(hi - 64);
          for (std::int64_t r = begin; r < end; ++r) {
            words[2 * r] |= hi0 & ~lo0;
            words[2 * r + 1] |= hi1 & ~lo1;
            if (lo_step != 0) {
              lo += lo_step;
              lo0 = ones_below(lo);
              lo1 = ones_below(lo - 64);
            }
            if (hi_step != 0) {
              hi += hi_step;
              hi0 = ones_below(hi);
              hi1 = ones_below(hi - 64);
            }
          }
          continue;
        }
        for (std::int64_t r = begin; r < end; ++r, lo += i->lo_slope, hi += i->hi_slope) {
          set_bits(words, r * block_kv + std::max<std::int64_t>(lo, 0),
                   r * block_kv + std::min(hi, block_kv));
        }
      }
    }
  }

  // Bits 0 to n - 1, for any n.
  static std::uint64_t ones_below(std::int64_t n) {
    const std::int64_t clipped = std::clamp<std::int64_t>(n, 0, 64);
    return clipped == 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << clipped) - 1;
  }

  const RowBands& bands_;
  const BlockShape block_;
  SegmentBuilder builder_;
  const std::int64_t period_;
  const std::int64_t num_rows_;
  const std::int64_t num_cols_;
  const std::int64_t words_per_bitmap_;
  std::size_t band_ = 0;  // first band that ends below the current tile row
  std::array<CachedBitmap, 8> cached_bitmaps_;
  std::size_t next_cached_ = 0;
  // The current tile row:
  std::vector<MovingRun> moving_runs_;
  std::vector<TileSegment> segments_;
  std::vector<SubBand> mixed_;
  std::vector<Range> touched_, full_, band_full_, next_full_;
  std::vector<std::uint64_t> bitmaps_;  // of the current partial segment
  BoundSweep sweep_;
  std::vector<std::int64_t> written_;
};

}  // namespace

SegmentMask segment_from_bands(const RowBands& bands, BlockShape block) {
  return BandLowering(bands, block).run();
}

}  // namespace fdma
